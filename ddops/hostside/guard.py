#!/usr/bin/env python3
"""Starts one engine and answers for every process that comes of it.

    guard.py SERVICE_DIR

SERVICE_DIR holds `current/launch.json` (argv, env, release), written by a deploy, and `run/`.
The guard makes a fresh nonce, appends `--weight-version <release12>-<nonce>`, writes
`run/launch.json` and stays as the parent. It is the reaper of its descendants, so a child
that leaves its process group or session comes back to the guard when its parent dies. When
the engine exits or a stop is asked for, all descendants and all processes that carry this
service's tag in their environment are ended: TERM, then KILL after the grace period. Nothing
else is ever signalled. Exit status: the engine's own.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import select
import signal
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
PR_SET_PDEATHSIG = 1
TAG = "DDOPS_SERVICE"
NAP_S = 0.05


def main(argv, cgroup="", on_start=None, places=None, about=None):
    """`cgroup` is the control group of our systemd unit; `on_start` is given the launch record.

    `places` are names that a deploy left in the launch for a job's node to fill in; `about` goes
    into the launch record.
    """
    service_dir = os.path.abspath(argv[1])
    with open(os.path.join(service_dir, "current", "launch.json"), encoding="utf-8") as f:
        spec = filled(json.load(f), places or {})
    if not prctl(PR_SET_CHILD_SUBREAPER, 1):
        print("ddops guard: cannot become the reaper of its children", file=sys.stderr)
        return 70
    leftover = [p for p in tagged(service_dir) if p != os.getpid()]
    if leftover:
        print("ddops guard: ending leftovers of an earlier start: %s" % leftover, flush=True)
        end(service_dir, leftover, float(spec["stop_grace_s"]))
    guard = Guard(service_dir, spec, cgroup, on_start, about)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, guard.on_signal)
    guard.listen()
    return guard.run()


class Guard:
    def __init__(self, service_dir, spec, cgroup="", on_start=None, about=None):
        self.dir = service_dir
        self.spec = spec
        self.cgroup = cgroup
        self.on_start = on_start
        self.about = about or {}
        self.asked_at = None
        self.pid = None
        self.bell = None

    def listen(self):
        """Be woken by the end of a child and by a wish to stop, not only by the clock."""
        self.bell, ring = os.pipe()  # neither outlives an exec
        for end_of_pipe in (self.bell, ring):
            os.set_blocking(end_of_pipe, False)
        signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)
        signal.set_wakeup_fd(ring, warn_on_full_buffer=False)

    def nap(self):
        """Up to 50 ms, shorter when a signal comes."""
        if self.bell is None:
            time.sleep(NAP_S)
        elif select.select([self.bell], [], [], NAP_S)[0]:
            os.read(self.bell, 4096)

    def on_signal(self, _signum, _frame):
        if self.asked_at is None:
            self.asked_at = time.monotonic()

    def run(self):
        # systemd's name for this very start; without a unit of our own it is somebody else's.
        invocation = os.environ.get("INVOCATION_ID", "") if self.cgroup else ""
        nonce = invocation[:12] or secrets.token_hex(6)
        version = "%s-%s" % (self.spec["release"][:12], nonce)
        argv = [*self.spec["argv"], "--weight-version", version]
        env = {**os.environ, **self.spec["env"], **read_secrets(self.dir), TAG: self.dir}
        env["DDOPS_LAUNCH"] = nonce
        self.pid = spawn(argv, env)
        record = {
            "nonce": nonce,
            "weight_version": version,
            "release": self.spec["release"],
            "op_id": read_text(os.path.join(self.dir, "run", "op_id")),
            "pid": self.pid,
            "guard_pid": os.getpid(),
            "start_ticks": start_ticks(self.pid),
            "boot_id": boot_id(),
            "started": time.time(),
            "cgroup": self.cgroup,
            **self.about,
        }
        write_json(os.path.join(self.dir, "run", "launch.json"), record)
        if self.on_start is not None:
            self.on_start(record)
        status = self.wait()
        end(self.dir, descendants(os.getpid()), float(self.spec["stop_grace_s"]))
        if os.WIFSIGNALED(status):
            return 128 + os.WTERMSIG(status)
        return os.WEXITSTATUS(status)

    def wait(self):
        """The engine's wait status. A stop that outlives its grace period becomes a KILL."""
        grace = float(self.spec["stop_grace_s"])
        told = False
        while True:
            status = reap(self.pid)
            if status is not None:
                return status
            if self.asked_at is not None:
                if not told:
                    kill(self.pid, signal.SIGTERM)
                    told = True
                elif time.monotonic() - self.asked_at > grace:
                    kill(self.pid, signal.SIGKILL)
            self.nap()


def filled(spec, places):
    """The launch with `${name}` of each place filled in."""

    def fill(text):
        for name, value in places.items():
            text = text.replace("${%s}" % name, value)
        return text

    env = {name: fill(value) for name, value in spec["env"].items()}
    return {**spec, "argv": [fill(word) for word in spec["argv"]], "env": env}


def spawn(argv, env):
    """Fork and exec in a new process group; the child dies with the guard."""
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setpgid(0, 0)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_DFL)
        if os.getppid() == guard:  # else the guard died before PDEATHSIG was set
            os.execve(argv[0], argv, env)
    except OSError as error:
        sys.stderr.write("ddops guard: cannot start %s: %s\n" % (argv[0], error))
        sys.stderr.flush()
    os._exit(127)


def reap(pid):
    """Collect dead children; the wait status of `pid` once it is among them."""
    found = None
    while True:
        try:
            dead, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found if found is not None else 0
        if dead == 0:
            return found
        if dead == pid:
            found = status


def end(service_dir, pids, grace):
    """TERM, wait, KILL for descendants and tagged processes, until none is left."""
    deadline = time.monotonic() + min(grace, 5.0)
    signum = signal.SIGTERM
    for pid in pids:
        kill(pid, signum)
    while True:
        reap(-1)
        left = set(descendants(os.getpid())) | set(tagged(service_dir))
        left.discard(os.getpid())
        if not left:
            return
        if time.monotonic() > deadline:
            signum = signal.SIGKILL
        if signum == signal.SIGKILL:
            for pid in left:
                kill(pid, signum)
        if time.monotonic() > deadline + 10:
            print("ddops guard: cannot end %s" % sorted(left), file=sys.stderr, flush=True)
            return
        time.sleep(0.05)


def descendants(root):
    """Pids below `root` by parent links; the root itself is not among them."""
    children: dict[int, list[int]] = {}
    for pid in pids():
        parent = stat_field(pid, 1)
        if parent is not None:
            children.setdefault(int(parent), []).append(pid)
    out, todo = [], [root]
    while todo:
        for pid in children.get(todo.pop(), ()):
            out.append(pid)
            todo.append(pid)
    return [p for p in out if stat_field(p, 0) != "Z"]


def tagged(service_dir):
    """Pids of our own user whose environment carries this service's tag."""
    want = ("%s=%s" % (TAG, service_dir)).encode()
    out = []
    for pid in pids():
        try:
            with open("/proc/%d/environ" % pid, "rb") as f:
                if want in f.read().split(b"\0") and stat_field(pid, 0) != "Z":
                    out.append(pid)
        except OSError:
            continue  # another user's, or gone
    return out


def pids():
    return [int(n) for n in os.listdir("/proc") if n.isdigit()]


def stat_field(pid, index):
    """Field `index` after the command name in /proc/PID/stat; None when the process is gone."""
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as f:
            return f.read().rpartition(") ")[2].split()[index]
    except (OSError, IndexError):
        return None


def start_ticks(pid):
    value = stat_field(pid, 19)
    return int(value) if value is not None else None


def boot_id():
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
            return f.read().strip()
    except OSError:
        return ""


def kill(pid, signum):
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return


def prctl(option, value):
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.prctl(option, value, 0, 0, 0) == 0


def read_secrets(service_dir):
    """Secret environment of the current release; a 0600 file that only this user reads."""
    path = os.path.join(service_dir, "current", "secrets.json")
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def read_text(path):
    try:
        with open(path, encoding="utf-8") as f:
            return f.read().strip()
    except OSError:
        return ""


def write_json(path, value):
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    temp = "%s.%d" % (path, os.getpid())
    with open(temp, "w", encoding="utf-8") as f:
        json.dump(value, f)
    os.replace(temp, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
