"""Streams that cannot be written: the work goes on, and what was lost is told.

To see it fail: let `Outlet.write` raise.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddops.cli.root import run
from ddops.cli.streams import Outlet, outlets, reader_gone

DDOPS = [sys.executable, "-m", "ddops"]


class Broken(io.StringIO):
    """Takes `good` texts and then none."""

    def __init__(self, error: OSError, good: int = 0) -> None:
        super().__init__()
        self._error, self.good = error, good

    def write(self, text: str) -> int:
        if self.good <= 0:
            raise self._error
        self.good -= 1
        return super().write(text)


def test_what_cannot_be_written_is_dropped_and_the_reason_kept() -> None:
    broken = Broken(BrokenPipeError(32, "Broken pipe"), good=1)
    out = Outlet(broken)
    assert [out.write(t) for t in ("one\n", "two\n", "three\n")] == [4, 4, 6]
    out.flush()
    assert broken.getvalue() == "one\n"
    assert isinstance(out.error, BrokenPipeError)
    assert out.encoding == broken.encoding, "all else is the stream's"


def test_a_loop_that_shows_learns_that_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not reader_gone()
    monkeypatch.setattr(sys, "stdout", Broken(BrokenPipeError(32, "Broken pipe"), good=1))
    with outlets():
        sys.stdout.write("seen")
        assert not reader_gone()
        sys.stdout.write("not seen")
        assert reader_gone()
    assert not reader_gone()


@pytest.mark.parametrize(
    ("error", "code"), [(BrokenPipeError(32, "Broken pipe"), 0), (OSError(28, "No space left"), 1)]
)
def test_a_reader_that_went_away_is_no_failure_and_a_full_disk_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: OSError, code: int
) -> None:
    monkeypatch.setattr(sys, "stdout", Broken(error))
    assert run(["--version"]) == code
    said = capsys.readouterr().err
    assert ("stdout cannot be written" in said) is bool(code)
    assert ("No space left" in said) is bool(code)
    assert "a fault in ddops" not in said


def test_an_exit_code_is_the_commands_own_whoever_reads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = BrokenPipeError(32, "Broken pipe")
    monkeypatch.setattr(sys, "stdout", Broken(broken))
    monkeypatch.setattr(sys, "stderr", Broken(broken))
    monkeypatch.chdir(tmp_path)
    assert run(["nonsense"]) == 2


def shell(text: str, where: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", text, "ddops", *DDOPS], cwd=where, capture_output=True, text=True,
        timeout=60, check=False, env={**os.environ, "HOME": str(where)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("redirected", "code", "words"),
    [
        ('"$@" host list >&-', 0, ""),
        ('"$@" host list 2>&-', 0, ""),
        ('"$@" host list <&- >&- 2>&-', 0, ""),
        ('"$@" --version >/dev/full', 1, "No space left on device"),
        ('"$@" nonsense >/dev/full', 2, "No such command"),
        ('set -o pipefail; "$@" runbook show new-host | head -c 1 >/dev/null', 0, ""),
    ],
)
def test_streams_of_a_shell(tmp_path: Path, redirected: str, code: int, words: str) -> None:
    (tmp_path / "ddops.toml").write_text("")
    done = shell(redirected, tmp_path)
    assert done.returncode == code, done
    assert words in done.stderr
    assert "a fault in ddops" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_closed_stream_lends_its_number_to_nobody(tmp_path: Path) -> None:
    """What is opened next would be written over by every child that talks."""
    script = (
        "from ddops.cli.streams import open_all; open_all(); import os;"
        "kept = all(map(os.get_inheritable, range(3)));"
        'print(os.open("new", os.O_CREAT) if kept else -1, file=open("number", "w"))'
    )
    done = shell(f"{sys.executable} -c '{script}' <&- >&- 2>&-", tmp_path)
    assert done.returncode == 0, done
    assert int((tmp_path / "number").read_text()) > 2
