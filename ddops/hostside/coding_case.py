"""Runs one solution against its test, inside the sandbox that `coding.py` makes.

    coding_case.py REPORT_FD NONCE_FD ENTRY_POINT

Reports in lines on REPORT_FD: `ready`, `violation EVENT` for what a task never needs (sockets,
processes, foreign code), and at last `result NONCE MS VERDICT DETAIL`, the detail in hex. The nonce
is read only after the test has returned: text on stdout, `sys.exit(0)` or `os._exit(0)` cannot
make a pass. It runs once a case, so it imports nothing that takes longer than a case.
"""

import os
import sys
import time

MYPY = False
if MYPY:
    from typing import Any

FORBIDDEN = (
    "socket.", "subprocess.", "ctypes.", "pty.", "os.system", "os.exec", "os.posix_spawn",
    "os.spawn", "os.fork", "os.kill", "mmap.", "syslog.",
)  # fmt: skip
SHOWN = 300


def watch(report):
    """Deny and report forbidden events. An audit hook cannot be taken out again."""
    write, hidden = os.write, PermissionError

    def hook(event, _args):
        if event.startswith(FORBIDDEN):
            write(report, ("violation %s\n" % event).encode())
            raise hidden("not allowed here: " + event)

    sys.addaudithook(hook)


def judge(entry):
    """(verdict, detail) of the solution in /case."""
    with open("/case/solution.py", encoding="utf-8") as f:
        solution = f.read()
    with open("/case/test.py", encoding="utf-8") as f:
        test = f.read()
    space: "Any" = {"__name__": "solution"}
    try:
        code = compile(solution, "solution.py", "exec")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as e:
        return "syntax_error", shown(e)
    try:
        exec(code, space)  # noqa: S102 - what the sandbox is for
        if not callable(space.get(entry)):
            return "no_code", "%s is not defined" % entry
        exec(compile(test, "test.py", "exec"), space)  # noqa: S102
        space["check"](space[entry])
    except AssertionError as e:
        return "wrong", shown(e)
    except BaseException as e:  # SystemExit too: leaving is no pass
        return "runtime_error", shown(e)
    return "passed", ""


def shown(error):
    try:
        text = str(error)
    except BaseException:  # an exception class of the solution may do anything
        text = "?"
    return ("%s: %s" % (type(error).__name__, text))[:SHOWN]


def main():
    report, nonce = int(sys.argv[1]), int(sys.argv[2])
    os.write(report, b"ready\n")
    write, read, clock = os.write, os.read, time.perf_counter
    watch(report)
    began = clock()
    verdict, detail = judge(sys.argv[3])
    ms = (clock() - began) * 1000
    words = detail.encode("utf-8", "replace").hex()
    line = "result %s %r %s %s\n" % (read(nonce, 64).decode(), ms, verdict, words)
    write(report, line.encode())
    os._exit(0)  # no exit handlers of the solution


if __name__ == "__main__":
    main()
