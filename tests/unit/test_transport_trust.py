"""A key that was pinned is found again, whatever the port and the name it is kept under.

To see it fail: put the port behind a name that holds it already, as `known_hosts_line` would.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddops.errors import HostKeyError
from ddops.transport import SshTarget
from ddops.transport import trust as trust_module
from ddops.transport.hostkeys import Peer, check_key, fingerprint, load_known_hosts
from ddops.transport.sshconfig import SshSettings
from ddops.transport.trust import Shown, known_here

BLOB = b"\0\0\0\x0bssh-ed25519" + b"k" * 36


def settings(file: Path, port: int = 22, alias: str | None = None) -> SshSettings:
    return SshSettings("box", "Box.example", port, "ops", (), (), True, None, (file,), None,
                       alias, None, (), None)  # fmt: skip


@pytest.mark.parametrize("port", [22, 2222])
@pytest.mark.parametrize("alias", [None, "box-key"])
def test_a_pinned_key_is_known_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int, alias: str | None
) -> None:
    import base64

    file = tmp_path / "ssh" / "known_hosts"
    made = settings(file, port, alias)
    monkeypatch.setattr(trust_module, "resolve", lambda *_: made)
    target = SshTarget("box", "box")
    assert not known_here(target)
    key = base64.b64encode(BLOB).decode()
    Shown("ssh-ed25519", key, fingerprint(BLOB), made, file).pin()
    assert known_here(target)
    peer = Peer("box", made.key_names, load_known_hosts([file]))
    check_key(peer, "ssh-ed25519", BLOB)
    with pytest.raises(HostKeyError, match="has changed"):
        check_key(peer, "ssh-ed25519", BLOB + b"x")
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_pin_of_the_inventory_counts_without_any_file(tmp_path: Path) -> None:
    target = SshTarget("box", "box", tmp_path / "none", fingerprint(BLOB))
    assert known_here(target)


def test_another_port_is_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "known_hosts"
    one = settings(file, 2222)
    Shown("ssh-ed25519", "AAAA", "SHA256:x", one, file).pin()
    monkeypatch.setattr(trust_module, "resolve", lambda *_: replace(one, port=2223))
    assert not known_here(SshTarget("box", "box"))
