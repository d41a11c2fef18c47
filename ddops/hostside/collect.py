#!/usr/bin/env python3
"""Collects a host's facts and prints them as one JSON object. Reads only, needs no root.

    collect.py [--root DIR] [--engine-dir DIR] [--time-limit SECONDS] [--part NAME=TEXT ...]
               [--only COMMAND ...]

Files are read below `--root` (a recorded host's folder; `/` otherwise). Every command has its
own time limit; what could not be read is listed in `unread` with the reason, and the field is
null. Nothing is guessed: null is not zero. What is risky (cuInit, importing torch and the kernel
wheel) happens in child processes, which `--part` brings along (zlib, base64) or which lie beside
this file. Beside parsed values stands the raw text: `commands` and `files`.

`--only` leaves out the probes, and all commands but these: what is left is quick.

A recorded host answers from `<root>/ddops/recorded.json`: {"commands": {...}, "probes": {...}}.
"""

import argparse
import base64
import concurrent.futures
import csv
import io
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
import zlib
from typing import Any

if sys.version_info < (3, 9):  # the caller says what is there instead
    sys.stderr.write("Python %d.%d is too old\n" % sys.version_info[:2])
    sys.exit(126)

SCHEMA = "ddops.facts/2"
GPU_FIELDS = (
    "index", "name", "uuid", "compute_cap", "memory.total", "memory.used", "driver_version",
    "pci.bus_id", "power.limit", "mig.mode.current",
)  # fmt: skip
#: Asked for one by one: a branch that lacks one refuses the whole query.
MORE_FIELDS = (
    "vbios_version", "pci.device_id", "persistence_mode", "compute_mode", "power.default_limit",
    "clocks_event_reasons.active", "temperature.gpu", "pcie.link.gen.current",
    "pcie.link.gen.max", "pcie.link.width.current", "pcie.link.width.max",
    "ecc.errors.uncorrected.volatile.total", "fabric.state", "fabric.status",
)  # fmt: skip
#: Markers that mean "has none"; others ("[Unknown Error]", "[GPU requires reset]") are data.
ABSENT = ("n/a", "not supported", "")
COMMANDS = {
    "smi": ("nvidia-smi",),
    "smi_list": ("nvidia-smi", "-L"),
    "smi_q": ("nvidia-smi", "-q"),
    "smi_apps": ("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"),
    "topo": ("nvidia-smi", "topo", "-m"),
    "p2p": ("nvidia-smi", "topo", "-p2p", "r"),
    "nvlink": ("nvidia-smi", "nvlink", "-s"),
    "lspci": ("lspci", "-Dvvvnn"),
    "dmesg": ("dmesg",),
    "journal": ("journalctl", "-k", "-b", "--no-pager", "-o", "short-iso"),
    "modinfo": ("modinfo", "nvidia"),
    "ldconfig": ("ldconfig", "-p"),
    "gcc": ("gcc", "-dumpfullversion"),
    "ninja": ("ninja", "--version"),
    "virt": ("systemd-detect-virt",),
    "fm_unit": ("systemctl", "show", "nvidia-fabricmanager", "-p", "LoadState,ActiveState,Result"),
    "fm_version": ("nv-fabricmanager", "--version"),
    "fm_log": ("journalctl", "-u", "nvidia-fabricmanager", "-b", "-n", "60", "--no-pager"),
    "nvlsm": ("nvlsm", "--version"),
    "imex_unit": ("systemctl", "show", "nvidia-imex", "-p", "LoadState,ActiveState"),
    "persistenced": ("systemctl", "is-active", "nvidia-persistenced"),
    # Not `apt-mark showhold`: for the same lines that builds apt's whole cache, for half a second.
    "holds": ("dpkg-query", "-W", "-f", "${db:Status-Want} ${Package}\n"),
    "ctk": ("nvidia-ctk", "--version"),
    "nvlink_errors": ("nvidia-smi", "nvlink", "-e"),
}
#: Run only where `--only` names it: counters say nothing until two looks are compared.
ON_REQUEST = ("nvlink_errors",)
#: Of these only the lines that matter travel: kernel logs are long.
KEPT_LINES = {
    "dmesg": re.compile(r"NVRM|Xid|AER|iommu|DMAR|AMD-Vi|nvidia|Surprise Down|fallen off", re.I),
    "journal": re.compile(r"NVRM|Xid|AER|iommu|DMAR|AMD-Vi|nvidia|Surprise Down|fallen off", re.I),
    "lspci": re.compile(r"^\S|^$|ACSCtl|LnkSta:|LnkCap:|access denied|prefetchable"),
    "holds": re.compile(r"^hold "),
    # Eight GPUs of NVLink 5 print thousands of lines, most of them no errors.
    "nvlink_errors": re.compile(r"^(?!.*: (FEC Errors|Raw |PLR |[TR]x (packets|bytes)))", re.I),
    "ldconfig": re.compile(r"libcuda|libnvidia-ml|libcudart|libnccl|libcublas|libcudnn"),
}
FILES = (
    "proc/cmdline", "proc/modules", "proc/version", "proc/driver/nvidia/version",
    "proc/sys/kernel/numa_balancing", "sys/module/nvidia/version",
    "sys/module/nvidia_uvm/parameters/uvm_disable_hmm", "etc/nccl.conf", "etc/ld.so.preload",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
)  # fmt: skip
PARTS = ("host", "env", "elf")
OUTPUT_LIMIT = 2 << 20
TOOLS = ("git", "nvidia-smi", "nvcc", "python3", "restic", "rsync", "sh", "systemctl", "tar")


def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="/")
    parser.add_argument("--engine-dir", default="/opt/ddops")
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--part", action="append", default=[])
    parser.add_argument("--only", action="append", default=[], choices=COMMANDS)
    args = parser.parse_args(argv)
    collector = Collector(args.root, args.engine_dir, args.time_limit, args.only)
    collector.parts = parts(args.part)
    json.dump(collector.facts(), sys.stdout)
    return 0


def parts(given):
    """Sources of the child probes: as sent, else from beside this file."""
    out = {}
    for text in given:
        name, _, packed = text.partition("=")
        out[name] = zlib.decompress(base64.b64decode(packed)).decode("utf-8")
    here = os.path.dirname(os.path.abspath(sys.argv[0] or "."))
    for name in PARTS:
        path = os.path.join(here, "collect_%s.py" % name)
        if name not in out and os.path.isfile(path):
            with open(path, encoding="utf-8") as f:
                out[name] = f.read()
    return out


class Collector:
    def __init__(self, root, engine_dir, time_limit, only=()):
        self.root = root
        self.engine_dir = engine_dir
        self.limit = time_limit
        self.only = only
        self.unread = {}
        self.parts = {}

    def facts(self):
        """The probes run beside the commands: they are processes, and none needs another."""
        began = time.monotonic()
        recorded = self.recorded()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            whole = recorded is None and not self.only
            probing = pool.submit(self.probes) if whole else None
            running = pool.submit(self.commands) if recorded is None else None
            out = self.seen_here()
            out["commands"] = running.result() if running else recorded["commands"]
            out["files"] = {path: self.text(path) for path in FILES}
            out["probes"] = probing.result() if probing else (recorded or {}).get("probes", {})
        out["unread"] = self.unread
        out["collected_s"] = round(time.monotonic() - began, 3)
        return out

    def seen_here(self):
        return {
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

    def identity(self):
        return {
            "hostname": self.text("etc/hostname", socket.gethostname()),
            "machine_id": self.text("etc/machine-id"),
            "boot_id": self.text("proc/sys/kernel/random/boot_id", real=True),
            "uid": os.getuid(),
            "container": self.root == "/"
            and (os.path.exists("/.dockerenv") or bool(os.environ.get("container"))),
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
        self.more(rows)
        return rows

    def more(self, rows):
        """Add the fields this driver knows of `MORE_FIELDS`; a field it refuses is left out."""
        fields = list(MORE_FIELDS)
        while fields:
            done = self.ran(
                ("nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits")
            )
            refused = re.search(r'Field "([^"]+)" is not a valid field', done["out"] + done["err"])
            if refused and refused.group(1) in fields:
                fields.remove(refused.group(1))
                continue
            lines = list(csv.reader(io.StringIO(done["out"]), skipinitialspace=True))
            if done["rc"] != 0 or len(lines) != len(rows):
                self.unread["gpus.more"] = "nvidia-smi ended with %s" % done["rc"]
                return
            for row, values in zip(rows, lines):
                if len(values) == len(fields):
                    row.update((k, self.value(v)) for k, v in zip(fields, values))
            return

    def recorded(self):
        """Answers of a recorded host; never those of the machine that replays it."""
        if self.root == "/":
            return None
        text = self.text("ddops/recorded.json")
        found = json.loads(text) if text else {}
        return {"commands": found.get("commands", {}), "probes": found.get("probes", {})}

    def commands(self):
        """Every command, side by side, each with its own time limit."""
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            waiting = {
                key: pool.submit(self.kept, key, argv)
                for key, argv in COMMANDS.items()
                if (key in self.only if self.only else key not in ON_REQUEST)
            }
            return {key: future.result() for key, future in waiting.items()}

    def kept(self, key, argv):
        done = self.ran(argv)
        wanted = KEPT_LINES.get(key)
        if wanted:
            done["out"] = "\n".join(li for li in done["out"].splitlines() if wanted.search(li))
        return done

    def ran(self, argv, stdin=None, limit=None):
        """rc null: it did not run or did not end; `why` says which."""
        began = time.monotonic()
        out: dict[str, Any] = {"argv": list(argv)[:8], "rc": None, "out": "", "err": "", "why": ""}
        env = dict(os.environ, LC_ALL="C", LANGUAGE="C", CUDA_CACHE_DISABLE="1")
        env["PATH"] = env.get("PATH", "") + ":/usr/sbin:/sbin"
        found = shutil.which(argv[0], path=env["PATH"])
        if not found:
            out["why"] = "no %s on PATH" % argv[0]
            return out
        try:
            done = subprocess.run(
                (found, *argv[1:]), env=env, capture_output=True, check=False,
                input=stdin.encode() if stdin is not None else b"", timeout=limit or self.limit,
            )  # fmt: skip
            out["rc"] = done.returncode
            out["out"] = done.stdout[:OUTPUT_LIMIT].decode("utf-8", "replace")
            out["err"] = done.stderr[:8192].decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            out["why"] = "no answer within %g s" % (limit or self.limit)
        except OSError as error:
            out["why"] = error.strerror or str(error)
        out["s"] = round(time.monotonic() - began, 3)
        return out

    def probes(self):
        """Child processes that answer with JSON; a broken one is in `unread`."""
        python = self.engine_python()
        if python is None:
            self.unread["env"] = "no engine environment below %s" % self.engine_dir
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            host = env = None
            if "host" in self.parts:
                words = (sys.executable, "-I", "-S", "-", self.engine_dir)
                host = pool.submit(self.child, "host", words, self.parts["host"], 20)
            if python is not None and "env" in self.parts:
                elf = "\n\nELF_SOURCE = %r\nmain()\n" % self.parts.get("elf", "")
                # With the site's packages: they are what it looks at.
                env = pool.submit(self.child, "env", (python, "-"), self.parts["env"] + elf, 40)
            out: dict[str, Any] = (host.result() if host else None) or {}
            if env:
                out["env"] = env.result()
        return out

    def child(self, what, words, script, limit):
        done = self.ran(words, stdin=script, limit=limit)
        try:
            return json.loads(done["out"])
        except ValueError:
            why = done["why"] or done["err"].strip()[-300:] or "ended with %s" % done["rc"]
            self.unread[what] = why
            return None

    def engine_python(self):
        """The interpreter of the newest engine environment, or None."""
        base = os.path.join(self.engine_dir, "env")
        try:
            names = [os.path.join(base, n, "bin", "python") for n in os.listdir(base)]
        except OSError:
            return None
        found = [p for p in names if os.path.exists(p)]
        return max(found, key=lambda p: os.lstat(p).st_mtime) if found else None

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
        return None if text.strip("[]").lower() in ABSENT else text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
