#!/usr/bin/env python3
"""Drives a service's systemd unit on this host. Prints JSON.

    unitctl.py STATE_DIR verify SERVICE DIGEST
    unitctl.py STATE_DIR status|start|stop|forget|compare SERVICE

The unit is part of a release. `verify` asks systemd about a staged one and changes nothing;
`start` lays down the one of `current` and starts it, and returns at once: whether it is ready
is for gates to say. `stop` returns when the unit has stopped and says which processes are left.
`compare` holds what is installed against `current`, and changes nothing.
What needs root goes through `sudo -n`; a password is never asked for.
"""

from __future__ import annotations

import difflib
import importlib
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time

SCHEMA = "ddops.unitctl/1"
UNITS = "/etc/systemd/system"
#: systemd kills after the unit's own TimeoutStopSec, 50 s with the default grace.
STOP_S = 100
#: What a word of a unit may be made of: systemd would read anything else its own way.
PLAIN = re.compile(r"[\w./:@+,=~-]+\Z")
PROPERTIES = ("LoadState", "ActiveState", "SubState", "Result", "ControlGroup")

DRIFTING = ("DropInPaths", "NeedDaemonReload", "UnitFileState")
MOST_LINES = 40


class Refused(Exception):
    """Something that a person has to mend; its text says what."""


def main(argv):
    state_dir, verb, service = argv[:3]
    sys.path.insert(0, os.path.join(state_dir, "hostside"))
    try:
        out = Unit(state_dir, service).do(verb, *argv[3:])
    except (Refused, OSError, subprocess.SubprocessError) as error:
        out = {"error": str(error)}
    json.dump({"schema": SCHEMA, **out}, sys.stdout)
    return 0


class Unit:
    def __init__(self, state_dir, service):
        self.state_dir = state_dir
        self.dir = os.path.join(state_dir, "services", service)
        self.name = "ddops-%s.service" % service
        self.path = os.path.join(UNITS, self.name)

    def do(self, verb, *more):
        return getattr(self, {"verify": "verify", "status": "status", "start": "start",
                              "stop": "stop", "forget": "forget",
                              "compare": "compare"}[verb])(*more)  # fmt: skip

    def status(self):
        seen = show(self.name)
        state = seen["ActiveState"] if seen["LoadState"] != "not-found" else None
        return {"state": state, "sub": seen["SubState"], "why": seen["Result"]}

    def verify(self, digest):
        """Ask systemd about the unit of a staged release, and whether root can be had."""
        root("true")
        text = self.text(os.path.join(self.dir, "releases", digest))
        with tempfile.TemporaryDirectory(prefix="ddops-") as folder:
            path = os.path.join(folder, self.name)
            write(path, text)
            done = call("systemd-analyze", "verify", path)
        if done.returncode:
            raise Refused("systemd does not take the unit: " + said(done))
        return {"state": None}

    def compare(self):
        """What systemd has of the unit, beside what `current` wants; changes nothing."""
        want = self.text(os.path.join(self.dir, "current")).splitlines()
        try:
            with open(self.path, encoding="utf-8") as f:
                have = f.read().splitlines()
        except FileNotFoundError:
            return {"installed": False}
        lines = difflib.unified_diff(want, have, "released", "installed", lineterm="", n=0)
        seen = show(self.name, DRIFTING)
        return {
            "installed": True,
            "diff": [x for x in lines if not x.startswith(("---", "+++", "@@"))][:MOST_LINES],
            "drop_ins": seen["DropInPaths"].split(),
            "reload": seen["NeedDaemonReload"] == "yes",
            "enabled": seen["UnitFileState"],
        }

    def start(self):
        """Lay down the unit of `current` and start it; never waits for it."""
        before = self.status()
        if before["state"] in ("active", "activating") and before["sub"] != "auto-restart":
            return {**before, "started": False}
        self.install(self.text(os.path.join(self.dir, "current")))
        # A start that a deploy stands behind; see notify.py.
        write(os.path.join(self.dir, "run", "ticket.json"), json.dumps({"boot_id": boot_id()}))
        if before["state"] is not None:
            root("systemctl", "reset-failed", self.name)  # its count of starts begins anew
        root("systemctl", "start", "--no-block", self.name)
        return {**self.status(), "started": True}

    def install(self, text):
        """The unit on disk, known to systemd, and started at each boot."""
        try:
            with open(self.path, encoding="utf-8") as f:
                fresh = f.read() == text
        except OSError:
            fresh = False
        if not fresh:
            with tempfile.TemporaryDirectory(prefix="ddops-") as folder:
                path = os.path.join(folder, self.name)
                write(path, text)
                root("install", "-m", "0644", "-o", "root", "-g", "root", path, self.path + ".new")
            root("mv", "-f", self.path + ".new", self.path)
            root("systemctl", "daemon-reload")
        if call("systemctl", "is-enabled", "--quiet", self.name).returncode:
            root("systemctl", "enable", "--quiet", self.name)

    def stop(self):
        before = show(self.name)
        if before["LoadState"] != "not-found":
            root("systemctl", "stop", self.name, limit=STOP_S)
        return {**self.status(), "left": self.left(before["ControlGroup"])}

    def forget(self):
        """Stop it, and leave nothing of the unit behind."""
        out = self.stop()
        if os.path.exists(self.path):
            root("systemctl", "disable", "--quiet", self.name)
            root("rm", "-f", self.path)
            root("systemctl", "daemon-reload")
        if show(self.name)["ActiveState"] == "failed":
            root("systemctl", "reset-failed", self.name)
        return {**out, **self.status()}

    def left(self, group):
        """Processes of the unit's group, or with the service's tag, for up to three seconds."""
        tagged = importlib.import_module("guard").tagged  # lies beside this file
        end = time.monotonic() + 3
        while True:
            found = sorted(set(members(group)) | set(tagged(self.dir)))
            if not found or time.monotonic() > end:
                return found
            time.sleep(0.05)

    def text(self, release):
        """The unit of a release, with what differs from host to host filled in."""
        with open(os.path.join(release, "release.json"), encoding="utf-8") as f:
            text = json.load(f)["spec"]["unit"]
        values = {
            "engine_dir": os.path.dirname(self.state_dir),
            "python": shutil.which(sys.executable) or sys.executable,
            "user": pwd.getpwuid(os.getuid()).pw_name,
        }
        for name, value in values.items():
            if not PLAIN.match(value):
                raise Refused("%s cannot be written into a unit: %r" % (name, value))
            text = text.replace("${%s}" % name, value)
        if "${" in text:
            raise Refused("the unit holds a name that this host does not know: %r" % text)
        return text


def show(name, properties=PROPERTIES):
    done = call("systemctl", "show", "--property=" + ",".join(properties), name)
    if done.returncode:
        raise Refused("systemd does not answer: " + said(done))
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    return {**dict.fromkeys(properties, ""), **dict(x.split("=", 1) for x in lines if "=" in x)}


def members(group):
    """Pids in a control group and below it; version 2 first, then the named one of version 1."""
    if not group or group == "/":
        return []
    for top in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"):
        if os.path.exists(os.path.join(top, "cgroup.procs")) and os.path.isdir(top + group):
            out = []
            for folder, _, files in os.walk(top + group):
                if "cgroup.procs" in files:
                    with open(os.path.join(folder, "cgroup.procs"), encoding="ascii") as f:
                        out += [int(x) for x in f.read().split()]
            return out
    return []


def root(*words, limit=30):
    """Run as root: as ourselves, or through sudo, which must not want a password."""
    done = call(*([] if os.geteuid() == 0 else ["sudo", "-n"]), *words, limit=limit)
    if done.returncode:
        raise Refused("%s: %s" % (" ".join(words[:3]), said(done)))


def call(*words, limit=30):
    return subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit, check=False
    )


def said(done):
    text = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
    return text[-600:] or "exit %d" % done.returncode


def write(path, text):
    temp = "%s.%d" % (path, os.getpid())
    with open(temp, "w", encoding="utf-8") as f:
        f.write(text)
    os.replace(temp, path)


def boot_id():
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
        return f.read().strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
