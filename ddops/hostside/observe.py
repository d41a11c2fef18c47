#!/usr/bin/env python3
"""Says what is seen of one service on this host, as one JSON object. Changes nothing.

    observe.py SERVICE_DIR PORT [--http TIMEOUT_S] [--log-bytes N]

Looks at the process table, the listening socket and its owner, the launch record that the
guard wrote, the end of the engine's log and, with `--http`, the engine's own answers. What
`/server_info` and `/model_info` answer is taken in by allow-list: they can hold API keys.
Three-valued: `unknown` where it could not be seen, `down` only on positive evidence.

Modules that only some looks need are loaded there: on a host that serves nothing the loading would
cost three times the look.
"""

from __future__ import annotations

import json
import os
import sys
import time

SCHEMA = "ddops.observation/1"
MODEL_INFO = ("model_path", "weight_version", "is_generation", "tokenizer_path")
SERVER_INFO = (
    "version", "ddops_simulated", "model_path", "served_model_name", "tp_size", "pp_size",
    "ep_size", "device", "dtype", "attention_backend", "speculative_algorithm",
    "speculative_num_draft_tokens", "speculative_draft_model_path", "speculative_dflash_block_size",
    "max_total_num_tokens", "max_running_requests", "effective_max_running_requests_per_dp",
    "weight_version", "host", "port",
)  # fmt: skip
#: What a look needs of a launch record, and those of it that are numbers.
RECORD = ("nonce", "weight_version", "release", "op_id", "start_ticks")
NUMBERS = ("pid", "guard_pid", "started")


def main(argv):
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("service_dir")
    parser.add_argument("port", type=int)
    parser.add_argument("--http", type=float, default=0.0)
    parser.add_argument("--log-bytes", type=int, default=32000)
    args = parser.parse_args(argv)
    seen = observe(args.service_dir, args.port, http_s=args.http, log_bytes=args.log_bytes)
    sys.stdout.write(json.dumps(seen))  # `dump` would encode it bit by bit, in Python
    return 0


def observe(service_dir, port, http_s, log_bytes):
    launch, why = launch_record(service_dir)
    engine = process(launch) if not why else {"state": "unknown", "why": why}
    out = {
        "schema": SCHEMA,
        "at": time.time(),
        "current": current(service_dir),
        "launch": launch,
        "engine": engine,
        "unit": unit(launch),
        "port": listening(port, service_dir, launch if engine["state"] == "up" else None),
        "log": log_end(os.path.join(service_dir, "log", "engine.log"), log_bytes),
    }
    if http_s > 0 and out["port"]["owned"]:
        client = Http(port, http_s, api_key(service_dir))
        out["health"] = client.get("/health")
        out["model_info"] = client.get_json("/model_info", MODEL_INFO)
        out["server_info"] = client.get_json("/server_info", SERVER_INFO)
    return out


def current(service_dir):
    """The digest that `current` names, or null."""
    try:
        return os.path.basename(os.readlink(os.path.join(service_dir, "current")))
    except OSError:
        return None


def launch_record(service_dir):
    """What the guard wrote of the last launch, and why it cannot be read.

    The guard writes it whole, by a rename. One that is cut short tells of no engine, and not that
    there is none.
    """
    try:
        with open(os.path.join(service_dir, "run", "launch.json"), encoding="utf-8") as f:
            launch = json.load(f)
        missing = [n for n in (*RECORD, *NUMBERS) if n not in launch]
        missing += [n for n in NUMBERS if not isinstance(launch.get(n), (int, float))]
        if missing:
            raise ValueError("it has no %s" % missing[0])
    except (FileNotFoundError, NotADirectoryError):
        return None, ""
    except (OSError, ValueError, TypeError, AttributeError) as error:
        words = "run/launch.json cannot be read: %s: %s" % (type(error).__name__, error)
        return None, words[:300]
    return launch, ""


def process(launch):
    """Whether the engine of the last launch runs: same pid, same start tick, same boot."""
    if launch is None:
        return {"state": "down", "why": "never launched here"}
    pid = launch["pid"]
    if launch.get("boot_id") and launch["boot_id"] != boot_id():
        return {"state": "down", "pid": pid, "why": "the host was booted since"}
    fields = stat(pid)
    if fields is None or fields[0] in ("Z", "X") or int(fields[19]) != launch["start_ticks"]:
        return {"state": "down", "pid": pid, "why": "the process is gone"}
    return {
        "state": "up",
        "pid": pid,
        "uptime_s": round(time.time() - launch["started"], 1),
        "rss_bytes": int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
    }


def listening(port, service_dir, launch):
    """Who listens on the port, and whether that process belongs to our service."""
    inodes = listen_inodes(port)
    if not inodes:
        return {"port": port, "listening": False, "owned": False, "owner": None}
    # Nearly always it is the engine; all processes' descriptors are many on a busy host.
    pid = holder(launch["pid"], inodes) if launch is not None else None
    pid = pid or socket_owner(inodes)
    if pid is None:
        return {"port": port, "listening": True, "owned": False, "owner": "another user's process"}
    # The tag holds without a launch record too: a start that was cut short is still ours.
    owned = tag(pid) == service_dir or (
        launch is not None
        and (launch["guard_pid"] in ancestors(pid) or in_group(pid, launch.get("cgroup")))
    )
    return {
        "port": port,
        "listening": True,
        "owned": owned,
        "owner_pid": pid,
        "owner": command_line(pid),
    }


def listen_inodes(port):
    out = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as f:
                next(f, None)
                for row in f:
                    words = row.split()
                    if words[3] != "0A":
                        break  # the kernel lists listeners first, then maybe thousands of others
                    if int(words[1].rpartition(":")[2], 16) == port:
                        out.add(words[9])
        except OSError:
            continue  # no IPv6 here
    return out


def holder(pid, inodes):
    """The pid, if that process has one of the sockets open."""
    want = {"socket:[%s]" % i for i in inodes}
    folder = "/proc/%d/fd" % pid
    try:
        names = os.listdir(folder)
    except OSError:
        return None  # gone, or another user's
    for name in names:
        try:
            if os.readlink(folder + "/" + name) in want:
                return pid
        except OSError:
            continue  # closed meanwhile
    return None


def socket_owner(inodes):
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return next((pid for pid in pids if holder(pid, inodes)), None)


def unit(launch):
    """What systemd says of the unit that the launch belongs to; null without one."""
    group = (launch or {}).get("cgroup")
    if not group:
        return None
    import subprocess

    out = {"name": os.path.basename(group), "active": "unknown"}
    names = ("ActiveState", "SubState", "MainPID", "NRestarts", "Result")
    words = ["systemctl", "show", "--property=" + ",".join(names), out["name"]]
    try:
        done = subprocess.run(words, capture_output=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        out["why"] = str(error)[:200]
        return out
    seen = dict(x.split("=", 1) for x in done.stdout.decode("utf-8", "replace").splitlines())
    out.update(
        active=seen["ActiveState"], sub=seen["SubState"], main_pid=int(seen["MainPID"]),
        restarts=int(seen["NRestarts"]), result=seen["Result"],
    )  # fmt: skip
    return out


def in_group(pid, group):
    """Whether a process is in the control group, or in one below it: it cannot leave by forking."""
    if not group or group == "/":
        return False
    try:
        with open("/proc/%d/cgroup" % pid, encoding="utf-8", errors="replace") as f:
            seen = managed(f.read())
    except OSError:
        return False
    return seen is not None and (seen + "/").startswith(group + "/")


def managed(text):
    """The group that systemd manages, of /proc/PID/cgroup: version 2, else the named one of 1.

    Version 2 alone has one line, `0::/path`. Version 1 has a line for each controller and
    `N:name=systemd:/path`. Both at once is common; then the one that is not the root is meant.
    """
    found = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (number, controllers) == ("0", ""):
            found[2] = path
        elif controllers == "name=systemd":
            found[1] = path
    if found.get(2, "/") != "/":
        return found[2]
    return found.get(1, found.get(2))


def ancestors(pid):
    out: list[int] = []
    while pid > 1 and len(out) < 64:
        fields = stat(pid)
        if fields is None:
            break
        pid = int(fields[1])
        out.append(pid)
    return out


def tag(pid):
    try:
        with open("/proc/%d/environ" % pid, "rb") as f:
            for item in f.read().split(b"\0"):
                if item.startswith(b"DDOPS_SERVICE="):
                    return os.fsdecode(item.partition(b"=")[2])
    except OSError:
        return None
    return None


def command_line(pid):
    """The first words of a process's command line: enough to name it, not its arguments."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as f:
            words = f.read().decode("utf-8", "replace").split("\0")
    except OSError:
        return None
    return "pid %d %s" % (pid, " ".join(w for w in words[:3] if w)[:120])


def stat(pid):
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as f:
            return f.read().rpartition(") ")[2].split()
    except OSError:
        return None


def boot_id():
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
            return f.read().strip()
    except OSError:
        return ""


def log_end(path, limit):
    """Size and last lines of the log; the controller redacts them before anyone sees them."""
    try:
        with open(path, "rb") as f:
            size = f.seek(0, os.SEEK_END)
            f.seek(max(0, size - limit))
            tail = f.read()
            if size > limit:
                # From a line's beginning: half a secret would not be known for one.
                tail = b"".join(tail.splitlines(keepends=True)[1:])
            return {"size": size, "inode": os.fstat(f.fileno()).st_ino,
                    "tail": tail.decode("utf-8", "replace")}  # fmt: skip
    except OSError:
        return {"size": 0, "inode": 0, "tail": ""}


def api_key(service_dir):
    args = read_json(os.path.join(service_dir, "current", "secret-args.yaml"))
    return (args or {}).get("api-key")


def read_json(path):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except (OSError, ValueError):
        return None


class Http:
    """GET over loopback, one connection a call, bounded in time and size."""

    def __init__(self, port, timeout, key):
        self.port = port
        self.timeout = timeout
        self.headers = {"Authorization": "Bearer " + key} if key else {}

    def get(self, path, limit=1 << 20):
        import http.client

        began = time.monotonic()
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout)
        try:
            client.request("GET", path, headers=self.headers)
            answer = client.getresponse()
            body = answer.read(limit)
            out = {"status": answer.status, "body": body.decode("utf-8", "replace")}
        except (OSError, http.client.HTTPException) as error:
            out = {"status": None, "error": "%s: %s" % (type(error).__name__, error)}
        finally:
            client.close()
        out["s"] = round(time.monotonic() - began, 3)
        if path == "/health":
            out.pop("body", None)
        return out

    def get_json(self, path, allowed):
        answer = self.get(path)
        body = answer.pop("body", None)
        if answer["status"] != 200 or body is None:
            return answer
        try:
            value = json.loads(body)
        except ValueError as error:
            return {"status": 200, "error": "not JSON: %s" % error}
        if not isinstance(value, dict):
            return {"status": 200, "error": "not a JSON object"}
        answer["values"] = {k: value[k] for k in allowed if k in value}
        return answer


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
