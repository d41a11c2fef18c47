"""restic's words as errors of ours: Debian's 0.14 ends with 1 for nearly everything."""

from __future__ import annotations

import subprocess

import pytest

from ddops.command import Secret
from ddops.errors import ExitCode
from ddops.snapshot.resticio import Restic, Trouble, classify

CASES = (
    (1, "Fatal: wrong password or no key found", Trouble.PASSWORD, ExitCode.REFUSED),
    (12, "Fatal: wrong password", Trouble.PASSWORD, ExitCode.REFUSED),
    (1, "Fatal: unable to create lock in backend: repository is already locked exclusively by PID"
     " 7 on box by ann (UID 0, GID 0)\nlock was created at 2026-01-01 (5s ago)", Trouble.LOCKED,
     ExitCode.LOCK_HELD),
    (11, "unable to create lock", Trouble.LOCKED, ExitCode.LOCK_HELD),
    (1, "Fatal: unable to open config file: Stat: stat /x/config: no such file or directory\nIs"
     " there a repository at the following location?\n/x", Trouble.MISSING, ExitCode.FAILED),
    (10, "", Trouble.MISSING, ExitCode.FAILED),
    (1, "Fatal: create repository at /x failed: config file already exists", Trouble.EXISTS,
     ExitCode.FAILED),
    (1, "Save(<data/ab>) returned error, retrying: write: no space left on device", Trouble.FULL,
     ExitCode.FAILED),
    (1, 'subprocess ssh: ssh: connect to host b port 22: Connection refused\nFatal: unable to open'
     " repository at sftp:b:/r: unable to start the sftp session, error: EOF", Trouble.LINK,
     ExitCode.UNREACHABLE),
    (1, "Fatal: unable to open config file: ssh command exited: exit status 255", Trouble.LINK,
     ExitCode.UNREACHABLE),
    (1, "error: pack ab: hash does not match\nFatal: repository contains errors", Trouble.DAMAGED,
     ExitCode.FAILED),
    (1, "Pack ID does not match, want 1, got 2", Trouble.DAMAGED, ExitCode.FAILED),
    (3, "Warning: at least one source file could not be read", Trouble.INCOMPLETE,
     ExitCode.FAILED),
    (1, "Fatal: something nobody has seen", Trouble.OTHER, ExitCode.FAILED),
)  # fmt: skip


@pytest.mark.parametrize(("rc", "said", "trouble", "code"), CASES)
def test_each_end_has_its_own_error(rc: int, said: str, trouble: Trouble, code: ExitCode) -> None:
    assert classify(rc, said) is trouble
    done = subprocess.CompletedProcess(["restic"], rc, b"", said.encode())
    error = Restic("/r", Secret("pw-never-shown")).error("backup", done)
    assert error.exit_code == code
    assert error.next
    assert "pw-never-shown" not in str(error)


def test_every_kind_of_end_has_words_of_its_own() -> None:
    ends = [subprocess.CompletedProcess([""], rc, b"", s.encode()) for rc, s, _, _ in CASES]
    said = {Restic("/r", Secret("x")).error("backup", end).what for end in ends}
    assert len(said) >= len(Trouble) - 1
