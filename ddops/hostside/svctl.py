#!/usr/bin/env python3
"""Talks to this host's supervisord, and starts it where it does not run. Prints JSON.

    svctl.py STATE_DIR SOCKET ensure
    svctl.py STATE_DIR SOCKET status|start|stop|forget SERVICE
    svctl.py STATE_DIR SOCKET shutdown

`start` returns at once: whether the engine is ready is for gates to say. `stop` returns when
the program has stopped and says which tagged processes are left, if any.
"""

from __future__ import annotations

import http.client
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import xmlrpc.client

SCHEMA = "ddops.svctl/1"
#: supervisord kills after the service's own stop time, at most 50 s with the default grace.
HALT_S = 100.0
#: Between two questions while something ends: soon at first, then longer.
SOON_S, LATER_S = 0.005, 0.05


def main(argv):
    state_dir, socket_path, verb = argv[0], argv[1], argv[2]
    sys.path.insert(0, os.path.join(state_dir, "hostside"))
    service = argv[3] if len(argv) > 3 else ""
    out = {"schema": SCHEMA, **Control(state_dir, socket_path).do(verb, service)}
    json.dump(out, sys.stdout)
    return 0


class Control:
    def __init__(self, state_dir, socket_path):
        self.dir = state_dir
        self.socket = socket_path
        self.conf = os.path.join(state_dir, "supervisor", "supervisord.conf")

    def do(self, verb, service):
        if verb == "ensure":
            return self.ensure()
        api = self.connect()
        if verb == "status" and api is None:
            return {"daemon": "down", "state": None}
        if verb in ("stop", "forget", "shutdown") and api is None:
            return {"daemon": "down", "left": self.left(service) if service else []}
        if api is None:
            self.ensure()
            api = self.connect()
        if api is None:
            return {"daemon": "down", "error": "supervisord does not answer on its socket"}
        return getattr(self, verb)(api, service)

    def ensure(self):
        api = self.connect()
        if api is not None:
            return {"daemon": "up", "started": False, "pid": api.supervisor.getPID()}
        folder = os.path.dirname(self.socket)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        seen = os.lstat(folder)
        if seen.st_uid != os.getuid() or seen.st_mode & 0o077 or os.path.islink(folder):
            return {"daemon": "down", "error": "%s is not ours alone" % folder}
        self.end_lost()
        if os.path.exists(self.socket):
            os.unlink(self.socket)  # nobody answers there: left by a daemon that was killed
        env = {**os.environ, "PYTHONPATH": os.path.join(self.dir, "lib")}
        done = subprocess.run(
            [sys.executable, "-m", "supervisor.supervisord", "-c", self.conf],
            env=env, cwd=self.dir, stdin=subprocess.DEVNULL, capture_output=True, timeout=30,
            check=False,
        )  # fmt: skip
        if done.returncode:
            words = (done.stderr or done.stdout).decode("utf-8", "replace")
            return {"daemon": "down", "error": words.strip()[-600:]}
        api = self.wait(10)
        if api is None:
            return {"daemon": "down", "error": "supervisord does not answer on its socket"}
        return {"daemon": "up", "started": True, "pid": api.supervisor.getPID()}

    def end_lost(self):
        """End a daemon of ours whose socket went, with its folder or without.

        Nobody can reach it any more, and it would start its programs again beside the next one's:
        two guards that end each other's engine. KILL, since TERM would take the engines along.
        """
        guard = importlib.import_module("guard")  # lies beside this file
        want = [b"supervisor.supervisord", b"-c", os.fsencode(self.conf)]
        for pid in guard.pids():
            try:
                with open("/proc/%d/cmdline" % pid, "rb") as f:
                    ours = f.read().split(b"\0")[-4:-1] == want
                if ours and os.stat("/proc/%d" % pid).st_uid == os.getuid():
                    guard.kill(pid, signal.SIGKILL)
            except OSError:
                continue  # gone

    def connect(self):
        if not os.path.exists(self.socket):
            return None
        api = xmlrpc.client.ServerProxy("http://127.0.0.1", transport=Unix(self.socket))
        try:
            api.supervisor.getState()
        except (OSError, xmlrpc.client.Error, http.client.HTTPException):
            return None
        return api

    def wait(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            api = self.connect()
            if api is not None:
                return api
            time.sleep(0.05)
        return None

    def status(self, api, service):
        try:
            info = api.supervisor.getProcessInfo(service)
        except xmlrpc.client.Fault:
            return {"daemon": "up", "state": None}
        return {
            "daemon": "up",
            "state": info["statename"],
            "pid": info["pid"] or None,
            "exit_status": info["exitstatus"],
            "why": info["spawnerr"] or None,
        }

    def start(self, api, service):
        """Load the service's program file anew and start it; never waits for it."""
        known = self.status(api, service)["state"]
        if known in ("RUNNING", "STARTING"):
            return {**self.status(api, service), "started": False}
        if known is not None:
            self.halt(api, service)
            api.supervisor.removeProcessGroup(service)
        api.supervisor.reloadConfig()
        api.supervisor.addProcessGroup(service)  # its program has autostart
        return {**self.status(api, service), "started": True}

    def halt(self, api, service):
        """Stop and wait. Each question wakes supervisord; left alone it looks once a second."""
        api.supervisor.stopProcessGroup(service, False)
        end, naps = time.monotonic() + HALT_S, growing()
        while self.status(api, service)["state"] == "STOPPING" and time.monotonic() < end:
            time.sleep(next(naps))

    def stop(self, api, service):
        if self.status(api, service)["state"] is not None:
            self.halt(api, service)
        return {**self.status(api, service), "left": self.left(service)}

    def forget(self, api, service):
        """Stop, and take the program out, so that a restart of the daemon does not start it."""
        out = self.stop(api, service)
        path = os.path.join(self.dir, "services", service, "program.conf")
        if os.path.exists(path):
            os.unlink(path)
        if out.get("state") is not None:
            api.supervisor.removeProcessGroup(service)
            api.supervisor.reloadConfig()
        return out

    def shutdown(self, api, _service):
        pid = api.supervisor.getPID()
        api.supervisor.shutdown()
        end = time.monotonic() + 60
        while os.path.exists("/proc/%d" % pid) and time.monotonic() < end:
            time.sleep(0.05)
        gone = not os.path.exists("/proc/%d" % pid)
        return {"daemon": "down" if gone else "up", "left": []}

    def left(self, service):
        """Processes that still carry the service's tag, for up to three seconds."""
        tagged = importlib.import_module("guard").tagged  # lies beside this file

        where = os.path.join(self.dir, "services", service)
        end, naps = time.monotonic() + 3, growing()
        found = tagged(where)
        while found and time.monotonic() < end:
            time.sleep(next(naps))
            found = tagged(where)
        return found


class Unix(xmlrpc.client.Transport):
    """XML-RPC over a socket of the file system, a connection for each call.

    supervisor's own transport does the same; loading it takes as long as all else here. The base
    class would ask a second time when a connection breaks, and not every verb may be said twice.
    """

    def __init__(self, path):
        super().__init__()
        self.path = path

    def request(self, host, handler, request_body, verbose=False):
        try:
            return self.single_request(host, handler, request_body, verbose)
        finally:
            self.close()

    def make_connection(self, host):
        connection = self._connection[1]
        if connection is None:
            connection = UnixHttp(self.path)
            self._connection = host, connection
        return connection


class UnixHttp(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self.path)


def growing():
    nap = SOON_S
    while True:
        yield nap
        nap = min(2 * nap, LATER_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
