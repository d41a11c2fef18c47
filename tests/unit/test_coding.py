"""The sandboxed grader, and the gate above it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from ddops import hostside
from ddops.bench import coding, coding_probe
from ddops.bench.coding import (
    Answer,
    CodingResult,
    Graded,
    Preflight,
    grade,
    local,
    preflight,
    to_samples,
)
from ddops.bench.coding_extract import Rule
from ddops.bench.coding_gate import FLOOR, judge, paired, pass_interval, shifted_rules
from ddops.bench.coding_tasks import KEYS, Task, TaskSet, audit, humaneval, parse
from ddops.errors import DdopsError, RefusedError
from ddops.model import Verdict

TEST = "def check(f):\n    assert f() == 1\n"


def task(n: int) -> Task:
    """A task of our own: f_n must return n."""
    prompt = f'def f_{n}():\n    """ Gives {n}. """\n'
    return Task(
        f"T/{n}", prompt, f"f_{n}", f"def check(f):\n    assert f() == {n}\n", f"    return {n}\n"
    )


FEW = TaskSet("own", "0" * 64, tuple(task(n) for n in range(1, 5)))


def verdicts(*programs: str, limit_s: float = 10.0, jobs: int = 2) -> list[tuple[str, str]]:
    """(verdict, detail) of programs that should make f() return 1."""
    cases = [
        {"id": str(n), "solution": p, "test": TEST, "entry": "f", "limit_s": limit_s}
        for n, p in enumerate(programs)
    ]
    answer = local({**coding._job(cases), "jobs": jobs})
    return [(str(g["verdict"]), str(g["detail"])) for g in coding._grades(answer)]


def inside(body: str) -> tuple[str, str]:
    """What a program says that runs in the sandbox: it raises its finding."""
    [found] = verdicts(f"import os, sys\ndef f():\n    {body}\n")
    return found


@pytest.mark.parametrize("name", [n for n, *_ in coding_probe.HOSTILE])
def test_hostile_programs_are_contained(name: str) -> None:
    [(program, verdict, limit)] = [(p, v, s) for n, p, v, s in coding_probe.HOSTILE if n == name]
    [(seen, detail)] = verdicts(program, limit_s=limit)
    assert seen == verdict, detail


def test_nothing_is_left_behind() -> None:
    """Children, grandchildren and sleepers end with their case."""
    mark = f"sleeper-{os.getpid()}"
    program = f"""
import os, time
MARK = "{mark}"
def f():
    os.setsid()
    time.sleep(30)
    return 1
"""
    [(seen, _)] = verdicts(program, limit_s=1.0)
    assert seen == "timeout"
    for _ in range(50):
        left = [
            p
            for p in Path("/proc").glob("[0-9]*/cmdline")
            if _read(p).startswith(os.fsencode(sys.base_prefix)) and b"harness.py" in _read(p)
        ]
        if not left:
            break
        time.sleep(0.1)
    assert left == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_inside_there_is_nobody_and_nothing() -> None:
    """Not root, not us, no environment, no home, no network device, no other process."""
    body = (
        "raise Exception([os.getuid(), os.geteuid(), os.getgid(), os.getppid(), sorted(os.environ),"
        " os.getcwd(), os.path.exists('/proc/1'), os.path.exists('/etc/passwd'),"
        " os.path.exists('/tmp'), os.listdir('/box'), sys.argv[3:]])"
    )
    assert inside(body) == (
        "runtime_error",
        "Exception: [65534, 65534, 65534, 1, ['LC_CTYPE'], '/box', False, False, False, [], ['f']]",
    )


@pytest.mark.parametrize(
    "body",
    [
        "os.mkdir('/new')",
        "open('/case/solution.py', 'a')",
        "os.remove('/case/test.py')",
        "open(os.__file__, 'a')",
        "os.chroot('/box')",
        "os.setuid(0)",
    ],
)
def test_outside_the_box_nothing_can_be_changed(body: str) -> None:
    seen, detail = inside(body)
    assert seen == "runtime_error"
    assert "Read-only" in detail or "not permitted" in detail or "Permission denied" in detail


def test_the_box_can_be_used_but_not_filled() -> None:
    assert inside("open('x', 'w').write('1'); return int(open('x').read())")[0] == "passed"
    seen, detail = inside(
        "b = b'x' * (1 << 20)\n    for n in range(99): open(str(n), 'wb').write(b)"
    )
    assert seen == "runtime_error" and "space" in detail


@pytest.mark.parametrize(
    ("program", "verdict"),
    [
        ("def f():\n    return 2\n", "wrong"),
        ("def f():\n    return 1 / 0\n", "runtime_error"),
        ("def f(:\n", "syntax_error"),
        ("def f():\n    return 1\0\n", "syntax_error"),
        ("g = 1\n", "no_code"),
        ("f = 1\n", "no_code"),
        ("import numpy\ndef f():\n    return 1\n", "runtime_error"),
        ("raise SystemExit(0)\n", "runtime_error"),
        ("def f():\n    return 1 # \ud800\n", "passed"),
        ("import os\ndef f():\n    os.close(3)\n    return 1\n", "runtime_error"),
        ("import os\nwhile True:\n    os.write(3, b'x' * 9999)\n", "runtime_error"),
        ("import subprocess\ndef f():\n    subprocess.run(['true'])\n", "sandbox_violation"),
        ("import ctypes\ndef f():\n    return 1\n", "sandbox_violation"),
        ("import os\ndef f():\n    os.system('true')\n    return 1\n", "sandbox_violation"),
        (
            "import socket\ndef f():\n    try:\n        socket.socket()\n"
            "    except OSError:\n        pass\n    return 1\n",
            "sandbox_violation",
        ),
        (
            "class E(Exception):\n    def __str__(self):\n        raise E\nraise E\n",
            "runtime_error",
        ),
        ("def f():\n    raise KeyboardInterrupt\n", "runtime_error"),
        ("def f():\n    assert False, 'mine'\n", "wrong"),
        ("def f():\n    import sys\n    sys.stdout.write('x' * 10**7)\n    return 1\n", "passed"),
    ],
)  # fmt: skip
def test_verdicts(program: str, verdict: str) -> None:
    [(seen, detail)] = verdicts(program)
    assert seen == verdict, detail


def test_a_pass_needs_the_nonce() -> None:
    """Any line a program writes itself is no result, wherever it writes it."""
    forged = f"result {'0' * 32} 1.0 passed "
    program = f"""
import os
def f():
    for fd in range(1, 6):
        try:
            os.write(fd, {forged!r}.encode() + b"\\n")
        except OSError:
            pass
    os._exit(0)
"""
    assert verdicts(program)[0][0] == "runtime_error"


def test_order_and_number_are_kept_whatever_ends_first() -> None:
    programs = [
        f"import time\ndef f():\n    time.sleep({0.2 if n % 3 else 0})\n    return 2 - {n % 2}\n"
        for n in range(9)
    ]
    seen = [v for v, _ in verdicts(*programs, jobs=4)]
    assert seen == ["wrong" if n % 2 == 0 else "passed" for n in range(9)]


def test_another_user_can_grade_too(tmp_path: Path) -> None:
    """Without root, as anybody: needs only user namespaces."""
    if os.geteuid() != 0 or not Path("/usr/bin/python3").exists():
        pytest.skip("needs root to become another user")
    folder = Path("/usr/share") / f"ddops-test-{os.getpid()}"
    folder.mkdir()
    try:
        for name in ("coding.py", "coding_box.py"):
            shutil.copy(Path(hostside.__file__).with_name(name), folder)
        job = coding._job(
            [
                {
                    "id": "a",
                    "solution": "def f():\n    return 1\n",
                    "test": TEST,
                    "entry": "f",
                    "limit_s": 9,
                }
            ]
        )
        done = subprocess.run(
            ["/usr/bin/python3", "-I", str(folder / "coding.py")],
            input=json.dumps(job).encode(),
            capture_output=True,
            check=True,
            timeout=60,
            user=65534,
            group=65534,
            extra_groups=[],
        )
    finally:
        shutil.rmtree(folder)
    assert [g["verdict"] for g in json.loads(done.stdout)["grades"]] == ["passed"]


def test_without_namespaces_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The honest answer where the kernel says no: refused, and no program was run."""
    for name in ("coding.py", "coding_box.py"):
        text = Path(hostside.__file__).with_name(name).read_text()
        # As on a host where `unshare` is not permitted.
        broken = text.replace('call("unshare", FLAGS)', 'raise PermissionError(1, "unshare")')
        (tmp_path / name).write_text(broken)
    monkeypatch.setattr(hostside, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(RefusedError, match="cannot be graded") as e:
        preflight(FEW, local)
    assert "PermissionError" in e.value.why and e.value.exit_code == 4


def test_the_grader_says_what_is_wrong_with_a_job() -> None:
    with pytest.raises(DdopsError, match="the grader failed"):
        local({"schema": "another", "cases": []})


# The tasks.


def test_humaneval_is_the_known_file() -> None:
    tasks = humaneval()
    assert len(tasks.tasks) == 164
    assert audit(tasks.tasks) == []
    assert len(tasks.prompts_sha256) == 64
    assert all(t.prompt in t.asked for t in tasks.tasks)


def test_another_file_is_refused() -> None:
    import gzip

    with pytest.raises(RefusedError, match="not the known one"):
        parse(b"x")
    rows = [
        dict(zip(KEYS, (t.id, t.prompt, t.entry, t.test, t.gold), strict=True)) for t in FEW.tasks
    ]
    data = gzip.compress("\n".join(json.dumps(r) for r in rows).encode(), mtime=0)
    import hashlib

    sha = hashlib.sha256(data).hexdigest()
    assert parse(data, sha, 4).tasks == FEW.tasks
    with pytest.raises(RefusedError, match="do not hold together"):
        parse(data, sha, 164)


def test_the_audit_sees_what_makes_tasks_unfit() -> None:
    """The same test twice; a changed prompt is another hash."""
    one, two = FEW.tasks[:2]
    twice = Task(two.id, two.prompt, two.entry, one.test, two.gold)
    assert audit([one, twice], 2) == ["1 tasks have the same test as another"]
    assert audit([one], 2) == ["1 tasks, not 2"]
    assert "has no check()" in audit([Task("a", one.prompt, "f", "pass", one.gold)], 1)[0]
    stripped = Task(one.id, one.prompt.rstrip(), one.entry, one.test, one.gold)
    assert TaskSet("x", "", (stripped,)).prompts_sha256 != TaskSet("x", "", (one,)).prompts_sha256


# Grading.


@pytest.fixture(scope="module")
def ready() -> Preflight:
    return preflight(FEW, local)


def test_replies_become_verdicts(ready: Preflight) -> None:
    answers = [
        Answer("T/1", "Sure:\n```python\ndef f_1():\n    return 1\n```"),
        Answer("T/2", "```python\ndef f_2():\n    return 7", truncated=True),
        Answer("T/3", "I do not know."),
        Answer("T/4", None),
    ]
    result = grade(FEW, answers, ready=ready)
    assert [(g.verdict, g.rule, g.truncated) for g in result.graded] == [
        ("passed", Rule.FENCE, False),
        ("wrong", Rule.UNCLOSED, True),
        ("no_code", Rule.NONE, False),
        ("no_answer", Rule.NONE, False),
    ]
    assert not result.conclusive and result.pass_rate == pytest.approx(1 / 3)
    samples = to_samples(result)
    assert [s.outcome for s in samples] == ["ok", "ok", "ok", "no_answer"]
    assert samples[0].verdict == "passed" and samples[0].prompt == "T/1"
    with pytest.raises(DdopsError, match="unknown tasks"):
        grade(FEW, [Answer("T/9", "x")], ready=ready)


def test_limits_come_from_the_gold_solutions() -> None:
    seen: list[Mapping[str, object]] = []

    def slow(job: Mapping[str, object]) -> Mapping[str, object]:
        answer = dict(local(job))
        rows = [dict(g) for g in coding._grades(answer)]
        for row in rows:
            if row["id"] == "T/2":
                row["wall_ms"] = 500.0
        seen.append(job)
        return {**answer, "grades": rows}

    limits, python = preflight(FEW, slow)
    assert limits["T/2"] == 10.0 and all(v >= 2.0 for v in limits.values())
    assert python.count(".") >= 1


def test_no_variable_of_the_environment_sets_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other graders read limits as text from there, and fail on the type of them."""
    for name in ("EVALPLUS_TIMEOUT_PER_TASK", "TIMEOUT", "DDOPS_TIMEOUT", "PYTHONSTARTUP"):
        monkeypatch.setenv(name, "0")
    limits, _ = preflight(FEW, local)
    assert all(isinstance(x, float) and x >= 2 for x in limits.values())


def test_a_gold_that_fails_stops_everything() -> None:
    bad = Task("T/0", "def g():\n", "g", "def check(f):\n    assert f() == 1\n", "    return 2\n")
    with pytest.raises(RefusedError, match="gold T/0: wrong"):
        grade(TaskSet("own", "", (bad,)), [Answer("T/0", "def g():\n    return 1")])


def test_a_stub_that_passes_stops_everything() -> None:
    soft = Task("T/0", "def g():\n", "g", "def check(f):\n    f()\n", "    return 2\n")
    with pytest.raises(RefusedError, match="stubs: wrong") as e:
        grade(TaskSet("own", "", (soft,)), [])
    assert "T/0 by pass" in str(e.value)


def test_a_hostile_program_that_gets_through_stops_everything() -> None:
    def lax(job: Mapping[str, object]) -> Mapping[str, object]:
        answer = dict(local(job))
        rows = [dict(g) for g in coding._grades(answer)]
        for row in rows:
            row["verdict"] = "passed" if row["id"] == "hostile: socket" else row["verdict"]
        return {**answer, "grades": rows}

    with pytest.raises(RefusedError, match="socket: passed, not sandbox_violation"):
        preflight(FEW, lax)


# The gate.


def outcome(*solved: bool, verdict: str | None = None, rule: Rule = Rule.FENCE) -> CodingResult:
    graded = [
        Graded(f"T/{n}", "passed" if ok else "wrong", "", rule, False)
        for n, ok in enumerate(solved)
    ]
    if verdict:
        graded[0] = Graded("T/0", verdict, "", Rule.NONE, False)
    return CodingResult("own", "0" * 64, tuple(graded), "3.11", {})


def of(n: int, solved: int, shift: int = 0) -> CodingResult:
    return outcome(*((i + shift) % n < solved for i in range(n)))


def test_alike_runs_pass() -> None:
    found = judge(of(164, 120), of(164, 120))
    assert found.verdict is Verdict.PASS
    assert found.evidence["mcnemar_p"] == 1.0


def test_a_real_loss_fails() -> None:
    found = judge(of(164, 120), of(164, 105))
    assert found.verdict is Verdict.FAIL and "15 tasks lost and 0 won" in found.message


def test_a_gain_is_no_failure() -> None:
    assert judge(of(164, 105), of(164, 120)).verdict is Verdict.PASS


def test_noise_that_may_hide_a_loss_is_not_passed() -> None:
    """20 lost and 20 won is no difference, but excludes none of 3 points either."""
    found = judge(of(164, 100), of(164, 100, shift=20))
    assert found.verdict is Verdict.UNKNOWN and "not excluded" in found.message


@pytest.mark.parametrize("verdict", ["infra_error", "no_answer"])
@pytest.mark.parametrize("which", [0, 1])
def test_what_was_not_graded_makes_it_inconclusive(verdict: str, which: int) -> None:
    """One lost reply of 164, on either side, and the gate neither passes nor fails."""
    runs = [of(164, 120), of(164, 20)]
    runs[which] = outcome(*(i < 120 for i in range(164)), verdict=verdict)
    found = judge(runs[0], runs[1])
    assert found.verdict is Verdict.UNKNOWN and f"1 {verdict}" in found.message
    assert f"{verdict}" not in pass_interval_text(runs[which])


def pass_interval_text(result: CodingResult) -> str:
    interval = pass_interval(result)
    assert interval is not None and interval.n == 163, "it does not count against the model"
    return str(interval)


def test_a_weak_reference_has_no_power() -> None:
    found = judge(of(164, int(164 * FLOOR) - 1), of(164, 0))
    assert found.verdict is Verdict.UNKNOWN and "no_power" in found.message
    assert judge(of(164, 0), of(164, 0)).verdict is Verdict.UNKNOWN


def test_other_tasks_cannot_be_compared() -> None:
    other = CodingResult("own", "1" * 64, of(4, 4).graded, "3.11", {})
    assert judge(of(4, 4), other).verdict is Verdict.UNKNOWN
    assert judge(
        CodingResult("own", "", (), "", {}), CodingResult("own", "", (), "", {})
    ).verdict is (Verdict.UNKNOWN)


def test_mcnemar_and_interval() -> None:
    found = paired(of(164, 120), of(164, 110))
    assert (found.tasks, found.only_reference, found.only_candidate) == (164, 10, 0)
    assert found.p == pytest.approx(2 / 2**10)
    assert found.loss.value == pytest.approx(10 / 164)
    assert found.loss.low < found.loss.value < found.loss.high
    whole = pass_interval(of(164, 164))
    assert whole is not None and whole.low == pytest.approx(0.9771, abs=1e-3)


def test_a_shift_of_rules_is_seen() -> None:
    before = outcome(*[True] * 20)
    after = outcome(*[True] * 20, rule=Rule.PLAIN)
    assert shifted_rules(before, after) == {"fence": [1.0, 0.0], "plain": [0.0, 1.0]}
    assert shifted_rules(before, before) == {}
