#!/usr/bin/env python3
"""What the systemd unit of a service runs: the guard, and a watch that tells when it is ready.

    notify.py condition SERVICE_DIR     ExecCondition: may `current` start? 0 yes, 1 no
    notify.py run SERVICE_DIR           ExecStart, Type=notify

READY=1 is sent once the port is listened on by this start, `/health` answers 200 and
`/model_info` names this start. Before that each sign of progress (the log grew) extends the time
that systemd waits. Whether the answers are right is for a deploy's gates to say, not for this.

A start belongs to a deploy when the deploy left a ticket in this boot. Without one it is the
host that boots, and only a release that once passed its gates may serve: `current` is put back to
`committed`. So a host that reboots in the middle of a deploy comes back with the old release.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import socket
import sys
import threading
import time

#: A start is told to systemd as still in progress for this long after a sign of it.
PROGRESS_S = 600
#: A load that prints and prints and never serves is not extended for ever.
TOTAL_S = 4 * 3600
POLL_S = 0.2
HTTP_S = 6.0
LOG_BYTES, LOG_KEEP = 20 << 20, 3


def main(argv):
    verb, service_dir = argv[1], os.path.abspath(argv[2])
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    if verb == "condition":
        return 0 if may_start(service_dir) else 1
    address = os.environ.pop("NOTIFY_SOCKET", "")  # the engine has nothing to tell systemd
    to_log(service_dir)
    guard = importlib.import_module("guard")
    watch = Watch(service_dir, Notify(address), importlib.import_module("observe"))
    return guard.main(["guard", service_dir], cgroup=own_group(), on_start=watch.begin)


def may_start(service_dir):
    """A deploy of this boot may start what it likes; a boot starts what is committed."""
    run = os.path.join(service_dir, "run")
    ticket = read_json(os.path.join(run, "ticket.json"))
    current = link(service_dir, "current")
    if ticket is not None and ticket.get("boot_id") == boot_id():
        return current is not None
    if os.path.exists(os.path.join(run, "op_id")):
        os.unlink(os.path.join(run, "op_id"))  # that deploy ended with the boot it began in
    committed = link(service_dir, "committed")
    if committed is None:
        print("no release of this service has passed its gates here: not started")
        return False
    if current != committed:
        print("a deploy was cut short: back to %s" % committed)
        temp = os.path.join(service_dir, ".current.%d" % os.getpid())
        os.symlink(committed, temp)
        os.replace(temp, os.path.join(service_dir, "current"))
    return True


class Watch:
    """Looks at one start until it is ready, then at the size of its log."""

    def __init__(self, service_dir, notify, observe):
        self.dir = service_dir
        self.notify = notify
        self.observe = observe
        self.log = os.path.join(service_dir, "log", "engine.log")

    def begin(self, launch):
        """Called by the guard when the engine runs; never before its fork."""
        threading.Thread(target=self.run, args=(launch,), daemon=True).start()

    def run(self, launch):
        try:
            self.until_ready(launch)
        except Exception as error:  # told, and then systemd's own limit ends the start
            print("ddops notify: cannot tell whether it is ready: %r" % error, flush=True)
            self.notify.send("STATUS=cannot tell whether it is ready: %r" % error)
        while True:
            time.sleep(5)
            rotate(self.log)

    def until_ready(self, launch):
        gates = read_json(os.path.join(self.dir, "current", "gates.json"))
        port, follower = gates["port"], gates.get("rank", 0) > 0
        client = self.observe.Http(port, HTTP_S, self.observe.api_key(self.dir))
        began, size, missing = time.monotonic(), 0, ""
        while True:
            waited = time.monotonic() - began
            now = missing_yet(self.observe, client, port, self.dir, launch, follower)
            if not now:
                self.notify.send("READY=1\nSTATUS=ready after %.0f s" % waited)
                return
            grown = os.path.getsize(self.log) != size
            if grown and waited < TOTAL_S:
                size = os.path.getsize(self.log)
                self.notify.send("EXTEND_TIMEOUT_USEC=%d" % (PROGRESS_S * 1000000))
            if grown or now != missing:
                self.notify.send("STATUS=%s; %.0f s, log %d bytes" % (now, waited, size))
                missing = now
            time.sleep(POLL_S)


def missing_yet(observe, client, port, service_dir, launch, follower=False):
    """What keeps this start from being ready, in a few words; empty when nothing does.

    A follower, of an engine on several hosts, answers /health alone.
    """
    seen = observe.listening(port, service_dir, launch)
    if not seen["listening"]:
        return "loading"
    if not seen["owned"]:
        return "port %d is held by %s" % (port, seen["owner"])
    if client.get("/health")["status"] != 200:
        return "loading: /health does not answer 200"
    if follower:
        return ""
    said = client.get_json("/model_info", ("weight_version",)).get("values", {})
    if said.get("weight_version") != launch["weight_version"]:
        return "/model_info does not name this start"
    return ""


class Notify:
    """sd_notify(3) by hand. Without an address nobody wants to know."""

    def __init__(self, address):
        self.address = "\0" + address[1:] if address.startswith("@") else address

    def send(self, text):
        if not self.address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.connect(self.address)
            s.sendall(text.encode())


def to_log(service_dir):
    """From here on standard output is the service's own log; before it, it is the journal."""
    folder = os.path.join(service_dir, "log")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    fd = os.open(os.path.join(folder, "engine.log"), flags, 0o600)
    for target in (1, 2):
        os.dup2(fd, target)
    os.close(fd)


def rotate(path, limit=LOG_BYTES, keep=LOG_KEEP):
    """Copy a log that grew too large, and empty it: the engine goes on writing to the same file."""
    try:
        if os.path.getsize(path) < limit:
            return False
        for n in range(keep - 1, 0, -1):
            if os.path.exists("%s.%d" % (path, n)):
                os.replace("%s.%d" % (path, n), "%s.%d" % (path, n + 1))
        shutil.copyfile(path, path + ".1")
        os.truncate(path, 0)
    except OSError as error:  # a full disk, most likely: the engine is worth more than its log
        print("ddops notify: the log was not rotated: %s" % error, flush=True)
        return False
    return True


def own_group():
    """The control group of our unit, as systemd numbers it; see observe.managed."""
    with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as f:
        return importlib.import_module("observe").managed(f.read()) or ""


def link(service_dir, name):
    """What a link names, where the release behind it is there; else null."""
    path = os.path.join(service_dir, name)
    if not os.path.exists(os.path.join(path, "launch.json")):
        return None
    return os.readlink(path)


def read_json(path):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except (OSError, ValueError):
        return None


def boot_id():
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
        return f.read().strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
