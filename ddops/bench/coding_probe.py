"""What the grader must get right before it may grade: stubs fail, hostile programs do no harm."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ddops.bench.coding_tasks import TaskSet

_TEST = "def check(f):\n    assert f() == 1\n"

#: Name, program, verdict, limit in seconds.
HOSTILE = (
    ("endless loop", "def f():\n    while True:\n        pass\n", "timeout", 0.5),
    (
        "fork bomb",
        "import os\ndef f():\n    while True:\n        os.fork()\n",
        "sandbox_violation",
        5.0,
    ),
    ("memory", "def f():\n    return len([0] * 10**10)\n", "runtime_error", 5.0),
    (
        "socket",
        "import socket\ndef f():\n    socket.create_connection(('127.0.0.1', 22))\n    return 1\n",
        "sandbox_violation",
        5.0,
    ),
    ("early exit", "import os\ndef f():\n    os._exit(0)\n", "runtime_error", 5.0),
    (
        "printed pass",
        "def f():\n    print('passed')\n    raise SystemExit(0)\n",
        "runtime_error",
        5.0,
    ),
    ("write outside", "def f():\n    open('/usr/x', 'w')\n    return 1\n", "runtime_error", 5.0),
    ("right", "def f():\n    return 1\n", "passed", 5.0),
)

#: Three bodies that solve nothing.
STUBS = ("pass", "return None", "return 'no such answer'")

#: Runs every task's test against every stub, in one sandbox: these programs are our own.
_STUBS = """\
import json
TASKS = json.loads({tasks!r})
def f():
    passed = []
    for name, entry, test in TASKS:
        for stub in {stubs!r}:
            space = {{}}
            exec("def %s(*a, **k):\\n    %s" % (entry, stub), space)
            try:
                exec(test, space)
                space["check"](space[entry])
            except Exception:
                continue
            passed.append(name + " by " + stub)
    return passed
"""
_STUBS_TEST = "def check(f):\n    passed = f()\n    assert passed == [], passed\n"


def cases(tasks: TaskSet) -> list[dict[str, object]]:
    """Cases to grade beside the gold solutions."""
    listed = json.dumps([[t.id, t.entry, t.test] for t in tasks.tasks])
    out: list[dict[str, object]] = [
        {"id": f"hostile: {n}", "solution": p, "test": _TEST, "entry": "f", "limit_s": s}
        for n, p, _, s in HOSTILE
    ]
    program = _STUBS.format(tasks=listed, stubs=STUBS)
    stubs = {"id": "stubs", "solution": program, "test": _STUBS_TEST, "entry": "f", "limit_s": 60.0}
    return [*out, stubs]


def judge(grades: Mapping[str, Mapping[str, object]]) -> list[str]:
    """What the grader got wrong, in words."""
    out = []
    for name, _, verdict, _ in HOSTILE:
        seen = grades[f"hostile: {name}"]
        if seen["verdict"] != verdict:
            out.append(f"{name}: {seen['verdict']}, not {verdict} ({seen['detail']})")
    stubs = grades["stubs"]
    if stubs["verdict"] != "passed":
        out.append(f"stubs: {stubs['verdict']} ({stubs['detail']})")
    return out
