"""Where a systemd lab cannot run it says why: to people, and as the reason of the tier's skips."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ddops.errors import ExitCode, RefusedError, UsageError
from ddops.lab import LabSpec, needs

ROOT = Path(__file__).resolve().parents[2]
SKIPS = (
    "import sys, pytest; from ddops.lab import needs;"
    "needs.why_not = lambda: ('needs a moon', 'wait for night');"
    "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', 'tests/systemd']))"
)


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine on which everything is there; each test takes one thing away."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(needs, "TOOLS", {"sh": "dash"})
    monkeypatch.setattr(needs, "cgroup_roots", lambda: [Path("/")])
    monkeypatch.setattr(needs, "UNSHARE", ("true",))
    return monkeypatch


def test_a_machine_that_can(able: pytest.MonkeyPatch) -> None:
    assert needs.why_not() == ("", "")
    needs.require(1, None)


def test_no_root(able: pytest.MonkeyPatch) -> None:
    able.setattr(os, "geteuid", lambda: 1000)
    why, next_ = needs.why_not()
    assert "needs root" in why
    assert "sudo" in next_


def test_no_tools_are_named_by_their_packages(able: pytest.MonkeyPatch) -> None:
    able.setattr(needs, "TOOLS", {"sh": "dash", "no-such-a": "pack", "no-such-b": "pack"})
    assert needs.why_not() == (
        "needs the packages pack", "apt-get install --no-install-recommends pack",
    )  # fmt: skip


def test_no_cgroups(able: pytest.MonkeyPatch) -> None:
    able.setattr(needs, "cgroup_roots", list)
    assert "cgroup2" in needs.why_not()[0]


def test_no_namespaces_says_what_the_kernel_said(able: pytest.MonkeyPatch) -> None:
    able.setattr(needs, "UNSHARE", ("sh", "-c", "echo unshare failed: not permitted >&2; exit 1"))
    why, _ = needs.why_not()
    assert why == "needs namespaces, and cannot make them: unshare failed: not permitted"
    with pytest.raises(RefusedError) as told:
        needs.require(1, None)
    assert told.value.exit_code is ExitCode.REFUSED
    assert "not permitted" in str(told.value)


def test_too_many_hosts(able: pytest.MonkeyPatch) -> None:
    with pytest.raises(RefusedError) as told:
        needs.require(10**9, None)
    assert told.value.next.startswith("sysctl fs.inotify.max_user_instances=")


def test_wheelhouses(able: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        needs.require(1, str(tmp_path / "absent"))
    tmp_path.chmod(0o700)
    with pytest.raises(RefusedError) as told:
        needs.require(1, str(tmp_path))
    assert told.value.next == f"chmod o+rx {tmp_path}"
    tmp_path.chmod(0o755)
    needs.require(1, str(tmp_path))


def test_specs_that_cannot_be() -> None:
    for wrong in ({"systemd": True}, {"systemd": True, "engine": "sim", "gpu": "b300"},
                  {"engine": "sim", "wheelhouse": "/w"}):  # fmt: skip
        with pytest.raises(UsageError):
            LabSpec(1, **wrong)
    assert LabSpec(4, engine="sim", systemd=True, wheelhouse="/w").names()[-1] == "lab4"


def test_the_tier_is_a_counted_skip_that_says_why() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SKIPS], cwd=ROOT, capture_output=True, text=True, timeout=120,
        check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    *lines, last = done.stdout.strip().splitlines()
    told = [re.match(r"SKIPPED \[(\d+)\] .*: a systemd lab needs a moon; next: wait for night$", x)
            for x in lines if "SKIPPED" in x]  # fmt: skip
    counts = [int(match[1]) for match in told if match]
    assert len(counts) == len(told) > 20
    assert re.fullmatch(rf"{sum(counts)} skipped in .*", last)
