"""DDTREE on the real engine: one visit to a GPU machine, the most important proof first.

    python bench/gpu/serve_visit.py first  --gpu-dir .gpu --out OUT --limit 535
    python bench/gpu/serve_visit.py second --gpu-dir .gpu --out OUT --limit 265
    python bench/gpu/serve_visit.py mla    --gpu-dir .gpu --out OUT --limit 390
    python bench/gpu/serve_visit.py first  --cpu PYTHON --out OUT   # with the lab's engine

Servers start side by side, since a start is mostly compilers. Each part is caught on its own, and
what it found is in OUT/serve.json as soon as it ends: a time limit loses only the parts after it.
A server that dies while starting ends the visit at once, since the time is better kept.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import mla_plan  # noqa: E402
import serve_plans  # noqa: E402
from serve_fleet import Fleet  # noqa: E402

PLANS = {**serve_plans.PLANS, "mla": mla_plan.mla}

#: Logs and compile caches go back in two archives; a caller gets few files, none above 16 MiB.
CACHES = (".cache/sglang", ".cache/tvm-ffi", ".triton")
SKIP = ("*.ttir", "*.ttgir", "*.llir", "*.ptx", "*.source", "*.o", "*.cu", "*.ninja*", "*.lock")


class Stop(Exception):
    """The visit is over: what is left could not succeed."""


class Visit:
    """The clock, the results and the fleet of one visit."""

    def __init__(self, out: Path, scratch: Path, limit: float, cpu: str) -> None:
        self.out, self.scratch, self.cpu = out, scratch, bool(cpu)
        self.began = time.monotonic()
        self.limit = limit
        self.results: dict[str, Any] = {"seconds": {}, "errors": {}, "skipped": []}
        self.fleet = Fleet(scratch / "servers", cpu=self.cpu, python=cpu or "python3")
        # What a visit left there before would be read as this one's.
        shutil.rmtree(scratch / "servers", ignore_errors=True)
        (scratch / "servers").mkdir(parents=True)
        out.mkdir(parents=True, exist_ok=True)

        self.kept: list[Any] = []  # the reference's answers

    @staticmethod
    def stop(why: str) -> Stop:
        return Stop(why)

    @property
    def now(self) -> float:
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        return self.limit - self.now

    def say(self, text: str) -> None:
        print(f"[{self.now:6.1f}s] {text}", flush=True)

    def save(self) -> None:
        part = self.out / "serve.json.part"
        part.write_text(json.dumps(self.results, indent=1) + "\n")
        part.replace(self.out / "serve.json")

    def put(self, name: str, value: Any) -> None:
        self.results[name] = value
        self.save()
        self.say(f"{name}: {json.dumps(value)[:420]}")

    def part(self, name: str, cap: float, work: Callable[[], Any]) -> Any:
        """Run `work` if `cap` seconds are left; its result or its error is kept."""
        if self.left < min(cap, 15):
            self.results["skipped"].append(name)
            self.save()
            self.say(f"{name}: skipped, {self.left:.0f} s left")
            return None
        self.fleet.be_patient(max(5, min(cap, self.left)))
        began = self.now
        try:
            value = work()
        except Stop:
            raise
        except Exception as error:
            self.results["errors"][name] = f"{error}\n{traceback.format_exc()[-1500:]}"
            value = None
            self.say(f"{name} FAILED: {type(error).__name__}: {str(error)[:500]}")
        self.results["seconds"][name] = round(self.now - began, 1)
        if value is not None:
            self.put(name, value)
        self.save()
        return value

    def ready(self, *names: str, by: float, vital: bool = True) -> list[str]:
        """Those of `names` that answer by second `by`. A vital one that ended stops the visit."""
        by = min(by, self.limit - 10)
        self.fleet.be_patient(max(10, by - self.now))
        self.pack_logs()  # what a server said stays, whatever the wait comes to
        why = self.fleet.wait(names, self.began + by)
        for name in names:
            if name not in why:
                self.results["seconds"][f"start {name}"] = round(self.fleet[name].ready_after, 1)
        for name, text in why.items():
            self.results["errors"][f"start {name}"] = text
            self.say(f"{name} is not up: {text[-1800:]}")
        self.save()
        self.pack_logs()
        if vital and any(not t.startswith("late") for t in why.values()):
            raise Stop("servers failed while they started: " + ", ".join(why))
        return [n for n in names if n not in why]

    def pack_logs(self) -> None:
        subprocess.run(
            ["tar", "-czf", str(self.out / "logs.tar.gz"), "-C", str(self.scratch), "servers"],
            check=False, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def pack_caches(self) -> None:
        """What was compiled, for the next machine; in the background, at the lowest priority."""
        home = Path.home()
        there = [c for c in CACHES if (home / c).exists()]
        if not there or self.cpu:
            return
        words = ["tar", "-C", str(home), "-I", "xz -3 -T4", *(f"--exclude={s}" for s in SKIP)]
        command = [*words, "-cf", str(self.out / "caches.tar.xz"), *there]
        subprocess.Popen(["nice", "-n", "19", *command], stderr=subprocess.DEVNULL)

    def finish(self) -> None:
        self.pack_logs()
        self.fleet.end_all(self.fleet.servers)
        caches = self.out / "caches.tar.xz"
        if caches.exists() and caches.stat().st_size > 15 << 20:
            self.say(f"caches.tar.xz has {caches.stat().st_size >> 20} MiB: left out")
            caches.unlink()
        self.say("done")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plan", choices=sorted(PLANS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpu-dir", type=Path, default=Path(".gpu"))
    parser.add_argument(
        "--scratch", type=Path, default=Path(tempfile.gettempdir()) / "ddtree-visit"
    )
    parser.add_argument("--limit", type=float, default=535)
    parser.add_argument("--cpu", default="", metavar="PYTHON", help="an engine for CPUs")
    args = parser.parse_args()
    visit = Visit(args.out, args.scratch, args.limit, args.cpu)

    def stop(*_: object) -> None:
        raise Stop("terminated")

    signal.signal(signal.SIGTERM, stop)
    visit.results |= {"plan": args.plan, "host": os.uname().release, "cpus": os.cpu_count()}
    try:
        PLANS[args.plan](visit, args.gpu_dir)
    except Stop as why:
        visit.results["stopped"] = str(why)
        visit.save()
        visit.say(f"STOPPED: {why}")
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        visit.finish()
    return 3 if "stopped" in visit.results else 0


if __name__ == "__main__":
    sys.exit(main())
