#!/usr/bin/env python3
"""Collects a host's facts and prints them as one JSON object. Reads only, needs no root.

    collect.py [--root DIR] [--engine-dir DIR] [--time-limit SECONDS]

Files are read below `--root` (a recorded host's folder; `/` otherwise). Every command has its
own time limit; what could not be read is listed in `unread` with the reason, and the field is
null. Nothing is guessed: null is not zero.
"""

import argparse
import csv
import io
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time

SCHEMA = "ddops.facts/1"
GPU_FIELDS = (
    "index", "name", "uuid", "compute_cap", "memory.total", "memory.used", "driver_version",
    "pci.bus_id", "power.limit", "mig.mode.current",
)  # fmt: skip
TOOLS = ("git", "nvidia-smi", "nvcc", "python3", "restic", "rsync", "sh", "systemctl", "tar")


def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="/")
    parser.add_argument("--engine-dir", default="/opt/ddops")
    parser.add_argument("--time-limit", type=float, default=10.0)
    args = parser.parse_args(argv)
    collector = Collector(args.root, args.engine_dir, args.time_limit)
    json.dump(collector.facts(), sys.stdout)
    return 0


class Collector:
    def __init__(self, root, engine_dir, time_limit):
        self.root = root
        self.engine_dir = engine_dir
        self.limit = time_limit
        self.unread = {}

    def facts(self):
        began = time.monotonic()
        out = {
            "schema": SCHEMA,
            "simulated": self.root != "/",
            "at": time.time(),
            "identity": self.identity(),
            "os": self.os(),
            "cpu": self.cpu(),
            "memory_bytes": self.memory(),
            "disk": self.disk(),
            "gpus": self.gpus(),
            "driver": self.driver(),
            "tools": {name: shutil.which(name) for name in TOOLS},
            "python": {
                "version": "%d.%d.%d" % sys.version_info[:3],
                "executable": sys.executable,
                "venv": self.can_venv(),
            },
        }
        out["unread"] = self.unread
        out["collected_s"] = round(time.monotonic() - began, 3)
        return out

    def identity(self):
        return {
            "hostname": self.text("etc/hostname", socket.gethostname()),
            "machine_id": self.text("etc/machine-id"),
            "boot_id": self.text("proc/sys/kernel/random/boot_id", real=True),
            "uid": os.getuid(),
            "container": os.path.exists("/.dockerenv") or bool(os.environ.get("container")),
        }

    def os(self):
        release = {}
        for line in (self.text("etc/os-release") or "").splitlines():
            key, sep, value = line.partition("=")
            if sep:
                release[key] = value.strip().strip("\"'")
        kernel = self.text("proc/sys/kernel/osrelease")
        libc = platform.libc_ver()
        glibc = self.text("ddops/glibc") if self.root != "/" else libc[1]
        if not glibc:
            self.unread.setdefault("os.glibc", "the C library did not name itself")
        return {
            "id": release.get("ID"),
            "version": release.get("VERSION_ID"),
            "pretty": release.get("PRETTY_NAME"),
            "kernel": kernel or (os.uname().release if self.root == "/" else None),
            "arch": os.uname().machine,
            "glibc": glibc or None,
        }

    def cpu(self):
        model, count = None, 0
        for line in (self.text("proc/cpuinfo") or "").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "processor":
                count += 1
            elif key.strip() == "model name" and model is None:
                model = value.strip()
        return {"model": model, "count": count or None}

    def memory(self):
        for line in (self.text("proc/meminfo") or "").splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
        return None

    def disk(self):
        """Free space where the engine's folder is or would be."""
        path = os.path.abspath(self.engine_dir)
        exists = os.path.isdir(path)
        probe = path
        while not os.path.isdir(probe):
            probe = os.path.dirname(probe)
        stat = os.statvfs(probe)
        return {
            "path": path,
            "exists": exists,
            "writable": os.access(probe, os.W_OK),
            "free_bytes": stat.f_bavail * stat.f_frsize,
            "total_bytes": stat.f_blocks * stat.f_frsize,
        }

    def gpus(self):
        """Rows of `nvidia-smi --query-gpu`; null when there is no way to know."""
        if not shutil.which("nvidia-smi"):
            self.unread["gpus"] = "no nvidia-smi on PATH"
            return None
        text = self.command(
            "gpus",
            "nvidia-smi",
            "--query-gpu=" + ",".join(GPU_FIELDS),
            "--format=csv,noheader,nounits",
        )
        if text is None:
            return None
        rows = []
        for values in csv.reader(io.StringIO(text), skipinitialspace=True):
            if len(values) != len(GPU_FIELDS):
                self.unread["gpus"] = "unexpected line from nvidia-smi: %r" % (values,)
                return None
            rows.append({k: self.value(v) for k, v in zip(GPU_FIELDS, values)})
        return rows

    def driver(self):
        text = self.text("proc/driver/nvidia/version")
        if text is None:
            return None
        words = text.split()
        version = next((w for w in words if w[:1].isdigit() and w.count(".") >= 1), None)
        return {"version": version, "open": "Open" in words, "raw": text}

    def can_venv(self):
        try:
            import ensurepip  # noqa: F401
            import venv  # noqa: F401
        except ImportError as error:
            self.unread["python.venv"] = str(error)
            return False
        return True

    def text(self, path, default=None, real=False):
        full = os.path.join("/" if real else self.root, path)
        try:
            with open(full, encoding="utf-8", errors="replace") as f:
                return f.read(1 << 20).strip()
        except OSError as error:
            if default is None:
                self.unread[path] = error.strerror or str(error)
            return default

    def command(self, what, *argv):
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=self.limit, check=False
            )
        except subprocess.TimeoutExpired:
            self.unread[what] = "no answer from %s within %g s" % (argv[0], self.limit)
            return None
        except OSError as error:
            self.unread[what] = "%s: %s" % (argv[0], error.strerror)
            return None
        if done.returncode:
            words = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
            self.unread[what] = "%s ended with %d: %s" % (argv[0], done.returncode, words[:300])
            return None
        return done.stdout.decode("utf-8", "replace")

    @staticmethod
    def value(text):
        """`[N/A]` and its kin become null; numbers stay text, their unit is the field's."""
        text = text.strip()
        return (
            None
            if text.strip("[]").lower() in ("n/a", "not supported", "unknown error", "")
            else text
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
