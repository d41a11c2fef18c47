"""Secrets come by reference; nothing but `reveal` shows one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ddops.config import resolve_secret, secret_ref_fault
from ddops.config import secrets as module
from ddops.errors import DdopsError, UsageError

VALUE = "pa$s 'w\"ord"


def test_from_the_environment() -> None:
    secret = resolve_secret("env:X_KEY", env={"X_KEY": VALUE})
    assert secret.reveal() == VALUE
    assert secret.origin == "env:X_KEY"
    assert str(secret) == "***"
    with pytest.raises(UsageError, match="the variable X_KEY is not set, or empty"):
        resolve_secret("env:X_KEY", env={"X_KEY": ""})


def test_from_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(VALUE + "\n")
    file.chmod(0o600)
    assert resolve_secret("file:key", base=tmp_path).reveal() == VALUE
    assert resolve_secret(f"file:{file}").reveal() == VALUE


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_file_others_may_touch_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "key"
    file.write_text(VALUE)
    file.chmod(mode)
    with pytest.raises(UsageError) as caught:
        resolve_secret("file:key", base=tmp_path)
    assert f"others may read or write this secret (mode {mode:04o})" in caught.value.what
    assert caught.value.next == f"chmod 600 {file}"
    assert VALUE not in str(caught.value)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "dir").mkdir()
    (tmp_path / "bin").write_bytes(b"\xff\xfe")
    (tmp_path / "bin").chmod(0o600)
    (tmp_path / "big").write_bytes(b"a" * 70_000)
    (tmp_path / "big").chmod(0o600)
    for name in ("pipe", "dir", "bin", "big", "absent"):
        with pytest.raises(UsageError):
            resolve_secret(f"file:{name}", base=tmp_path)


def test_from_a_command_without_a_shell() -> None:
    assert resolve_secret("cmd:printf '%s' 'a  $HOME;b'").reveal() == "a  $HOME;b"


def test_a_failing_command_shows_its_errors_but_not_its_output() -> None:
    with pytest.raises(DdopsError) as caught:
        resolve_secret("cmd:sh -c 'echo s3cret-out; echo locked >&2; exit 3'")
    assert caught.value.what == "sh: ended with status 3"
    assert caught.value.why == "locked"
    with pytest.raises(UsageError, match="cannot be run: no such file"):
        resolve_secret("cmd:/does/not/exist")


def test_a_command_that_waits_is_ended_with_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMAND_DEADLINE_S", 0.3)
    start = time.monotonic()
    with pytest.raises(DdopsError, match=r"no answer within 0\.3 s"):
        resolve_secret("cmd:sh -c 'sleep 60 & sleep 60; wait'")
    assert time.monotonic() - start < 10


def test_an_empty_answer_is_no_secret() -> None:
    with pytest.raises(DdopsError, match="empty or binary"):
        resolve_secret("cmd:true")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hunter2", "got a literal value; a value written here would end up in git"),
        ("env:", "nothing usable follows `env:`"),
        ("env:A B", "what follows `env:` is not a variable's name"),
        ("file: ", "nothing usable follows `file:`"),
        ("cmd:'open", "cannot be split into words: no closing quotation"),
        ("cmd:a\nb", "nothing usable follows `cmd:`"),
    ],
)
def test_what_is_no_reference_is_said_without_repeating_it(text: str, said: str) -> None:
    assert said in secret_ref_fault(text)
    assert "hunter2" not in secret_ref_fault(text)
    with pytest.raises(UsageError, match="not a reference to a secret"):
        resolve_secret(text)
