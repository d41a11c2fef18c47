"""Grades solutions, each in a sandbox of its own; a job in on stdin, verdicts out, as JSON.

    python3 coding.py < job.json

Job: {schema, harness, jobs, memory_mb, cases: [{id, solution, test, entry, limit_s}]}. Without
namespaces it refuses ({"refused": why}) and runs nothing: there is no unsafe way. `coding_box`
lies beside this file.

Verdicts: passed, wrong, runtime_error, syntax_error, no_code, timeout, sandbox_violation,
infra_error. A timeout is run once more, alone, before it counts.
"""

import contextlib
import json
import os
import secrets
import selectors
import signal
import sys
import time
from typing import Any

# Isolated Python does not look beside the script by itself.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import coding_box  # type: ignore[import-not-found]

JOB, GRADES = "ddops.coding-job/1", "ddops.coding-grades/1"
#: Seconds a sandbox may take to start: on a busy machine that is no fault of the program.
START_S = 60.0
#: Bytes of report a case may send: a few lines are honest.
MOST = 64 * 1024
PROBE = {"id": "", "solution": "def f():\n    return 1\n", "entry": "f", "limit_s": 20.0,
         "test": "def check(f):\n    assert f() == 1\n"}  # fmt: skip


def main():
    job = json.load(sys.stdin)
    if not isinstance(job, dict) or job.get("schema") != JOB:
        print("not a %s" % JOB, file=sys.stderr)
        return 2
    memory = job["memory_mb"]
    [probe] = run([PROBE], job["harness"], memory, 1)
    answer = {"schema": GRADES, "python": sys.version.split()[0]}
    if probe["verdict"] != "passed":
        answer["refused"] = "%s: %s" % (probe["verdict"], probe["detail"])
    else:
        grades = run(job["cases"], job["harness"], memory, job["jobs"])
        again = {g["id"] for g in grades if g["verdict"] == "timeout"}
        if again:
            alone = run([c for c in job["cases"] if c["id"] in again], job["harness"], memory, 1)
            second = {g["id"]: dict(g, tried=2) for g in alone}
            grades = [second.get(g["id"], g) for g in grades]
        answer["grades"] = grades
    json.dump(answer, sys.stdout)
    return 0


class Case:
    """One case under way."""

    def __init__(self, case, harness, memory_mb):
        self.case = case
        self.nonce = secrets.token_hex(16)
        self.began = time.monotonic()
        self.deadline = self.began + START_S  # until it is ready: then its own time begins
        self.ready = False
        self.said = b""
        self.stopped: Any = None
        self.pid, self.fd = coding_box.start(harness, case, memory_mb, self.nonce)

    def heard(self, more):
        """Take more of its report; its own time begins when it says that it is ready."""
        self.said += more[: MOST - len(self.said)]
        if not self.ready and self.said.startswith(b"ready\n"):
            self.ready = True
            self.deadline = time.monotonic() + self.case["limit_s"]
        if len(self.said) >= MOST:
            self.stop("runtime_error", "floods its report")

    def stop(self, verdict, detail):
        """End the whole process tree: process 1 of a pid namespace takes all with it."""
        self.stopped = self.stopped or (verdict, detail)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def grade(self):
        """What it came to, once its report has ended."""
        os.close(self.fd)
        os.waitpid(self.pid, 0)
        verdict, detail, ms = self.verdict()
        wall = (time.monotonic() - self.began) * 1000
        row = {"id": self.case["id"], "verdict": verdict, "detail": detail, "tried": 1}
        return dict(row, ms=ms, wall_ms=wall)

    def verdict(self):
        lines = self.said.decode("utf-8", "replace").splitlines()
        row = next(filter(None, (self.row(x) for x in lines)), None)
        for line in lines:
            if line.startswith("infra "):
                return "infra_error", line[6:], None
            if line.startswith("violation "):
                return "sandbox_violation", line[10:], None
        if "ready" not in lines:
            why = self.stopped[1] if self.stopped else "the sandbox did not start"
            return "infra_error", why, None
        if self.stopped:
            return (*self.stopped, None)
        if row is None:
            status = next((x for x in lines if x.startswith("status ")), "status unknown")
            return "runtime_error", "ended without a result (%s)" % status, None
        return row["verdict"], row["detail"], row["ms"]

    def row(self, line):
        """The result, if this line is one and carries the nonce."""
        words = line.split(" ")
        if len(words) != 5 or words[:2] != ["result", self.nonce]:
            return None
        try:
            detail = bytes.fromhex(words[4]).decode("utf-8", "replace")
            return {"verdict": words[3], "detail": detail, "ms": float(words[2])}
        except ValueError:
            return None


def run(cases, harness, memory_mb, jobs):
    """Grades in the order of the cases; at most `jobs` at a time."""
    waiting = list(reversed(cases))
    under_way: Any = {}
    done = {}
    with selectors.DefaultSelector() as poll:
        while waiting or under_way:
            while waiting and len(under_way) < jobs:
                case = Case(waiting.pop(), harness, memory_mb)
                under_way[case.fd] = case
                poll.register(case.fd, selectors.EVENT_READ, case)
            soonest = min(c.deadline for c in under_way.values())
            for key, _ in poll.select(max(0.0, min(soonest - time.monotonic(), 1.0))):
                case = key.data
                more = os.read(case.fd, 1 << 16)
                case.heard(more)
                if not more:
                    poll.unregister(case.fd)
                    del under_way[case.fd]
                    done[id(case.case)] = case.grade()
            for case in under_way.values():
                if time.monotonic() > case.deadline:
                    limit = case.case["limit_s"] if case.ready else START_S
                    case.stop("timeout", "over %.1f s" % limit)
    return [done[id(c)] for c in cases]


if __name__ == "__main__":
    sys.exit(main())
