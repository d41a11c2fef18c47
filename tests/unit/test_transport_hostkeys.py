"""Judging a host's key, without a network."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import stat
import threading
from pathlib import Path

import pytest

from ddops.errors import HostKeyError
from ddops.transport.hostkeys import (
    KnownKey,
    Peer,
    append_known_host,
    check_key,
    fingerprint,
    key_types,
    known_hosts_line,
    load_known_hosts,
    load_revoked,
    parse_known_hosts,
)

A, B = base64.b64encode(b"key-a").decode(), base64.b64encode(b"key-b").decode()


def known(*lines: str) -> tuple[KnownKey, ...]:
    return parse_known_hosts("\n".join(lines), "kh")


def peer(*lines: str, name: str = "host", pin: str | None = None, hop: str = "") -> Peer:
    return Peer("b300", (name,), known(*lines), pin, hop)


def test_parsing_keeps_line_numbers_and_passes_over_rubbish() -> None:
    found = known("# c", "", f"host t {A} comment", "short t", "host t !!!", f"@odd host t {A}")
    assert [(k.hosts, k.blob, k.place) for k in found] == [("host", b"key-a", "kh:3")]


@pytest.mark.parametrize(
    ("hosts", "name", "covered"),
    [
        ("host", "host", True),
        ("HOST", "host", True),
        ("a,host,b", "host", True),
        ("h?st", "host", True),
        ("*.example", "x.example", True),
        ("*.example", "example", False),
        ("*,!host", "host", False),
        ("!host,*", "other", True),
        ("[host]:22", "[host]:22", True),
        ("[host]:2222", "host", False),
        ("[h]:2", "h:2", False),
        ("hos", "host", False),
        ("|1|bad", "host", False),
        ("|2|c2FsdA==|c2FsdA==", "host", False),
    ],
)
def test_patterns(hosts: str, name: str, covered: bool) -> None:
    assert known(f"{hosts} t {A}")[0].covers(name) is covered


def hashed(name: str) -> str:
    salt = os.urandom(20)
    made = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(made).decode()}"


def test_hashed_names() -> None:
    entry = known(f"{hashed('[host]:2222')} t {A}")[0]
    assert entry.covers("[host]:2222")
    assert not entry.covers("host")


def test_known_key_passes_and_another_is_named_with_both_prints() -> None:
    check_key(peer(f"host t {A}"), "t", b"key-a")
    with pytest.raises(HostKeyError, match="has changed") as caught:
        check_key(peer(f"host u {A}", f"host t {A}"), "t", b"key-b")
    for part in (fingerprint(b"key-a"), fingerprint(b"key-b"), "kh:2"):
        assert part in caught.value.why


def test_one_of_several_keys_is_enough() -> None:
    check_key(peer(f"host t {B}", f"host t {A}"), "t", b"key-a")


def test_a_key_of_another_type_counts_as_changed() -> None:
    with pytest.raises(HostKeyError, match="has changed"):
        check_key(peer(f"host t {A}"), "u", b"key-b")


def test_under_the_bare_name_a_key_matches_but_does_not_contradict() -> None:
    both = Peer("b300", ("[host]:2222", "host"), known(f"host t {A}"))
    check_key(both, "t", b"key-a")
    with pytest.raises(HostKeyError, match="is not known"):
        check_key(both, "t", b"key-b")


def test_pins() -> None:
    check_key(peer(pin=fingerprint(b"key-a")), "t", b"key-a")
    with pytest.raises(HostKeyError, match="pinned in the inventory"):
        check_key(peer(f"host t {B}", pin=fingerprint(b"key-a")), "t", b"key-b")


@pytest.mark.parametrize("pin", [None, fingerprint(b"key-a")])
def test_revoked_goes_first(pin: str | None) -> None:
    with pytest.raises(HostKeyError, match="revoked"):
        check_key(peer(f"host t {A}", f"@revoked * t {A}", pin=pin), "t", b"key-a")
    check_key(peer(f"host t {A}", f"@revoked other t {A}", pin=pin), "t", b"key-a")


def test_an_authority_is_no_key() -> None:
    with pytest.raises(HostKeyError, match="certificates cannot be verified"):
        check_key(peer(f"@cert-authority * t {A}"), "t", b"key-a")


def test_a_hop_is_not_pinned_by_ddops() -> None:
    with pytest.raises(HostKeyError, match="b300: jump host bastion") as caught:
        check_key(peer(hop="bastion"), "t", b"key-a")
    assert "ddops host trust" not in caught.value.next


def test_types_to_ask_for() -> None:
    lines = (f"host t {A}", f"host u {B}", f"other v {A}", f"@revoked host w {A}")
    assert key_types(peer(*lines)) == ("t", "u")
    assert key_types(peer(*lines, pin=fingerprint(b"key-b"))) == ("u",)
    assert key_types(peer(*lines, pin=fingerprint(b"key-c"))) == ()


def test_loading(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.write_text(f"host t {A}\n")
    assert [k.place for k in load_known_hosts([first, tmp_path / "none"])] == [f"{first}:1"]
    with pytest.raises(HostKeyError, match="cannot be read"):
        load_known_hosts([tmp_path])


@pytest.mark.parametrize("name", ["host", "[host]:2222", "a.example", "b.example", "other"])
def test_asking_by_name_finds_what_judging_all_lines_finds(tmp_path: Path, name: str) -> None:
    salt = base64.b64encode(b"s" * 20).decode()
    code = base64.b64encode(hmac.new(b"s" * 20, b"host", hashlib.sha1).digest()).decode()
    lines = [
        f"HOST,a.example t {A}", f"[host]:2222 t {B}", f"*.example,!b.example u {B}",
        f"@revoked host t {B}", f"|1|{salt}|{code} v {A}", f"@cert-authority * t {A}",
        f"ho?t w {A}", f"host,host t {B}",
    ]  # fmt: skip
    file = tmp_path / "known_hosts"
    file.write_text("\n".join(lines) + "\n")
    names = (name, "host") if ":" in name else (name,)
    found = load_known_hosts([file], names)
    assert found == tuple(k for k in load_known_hosts([file]) if any(k.covers(n) for n in names))
    assert found
    file.write_text("")
    assert load_known_hosts([file], names) == (), "a file that was mended is read anew"


def test_revoked_files(tmp_path: Path) -> None:
    listed = tmp_path / "revoked"
    listed.write_text(f"# why\nt {A} comment\n")
    found = load_revoked(listed)
    with pytest.raises(HostKeyError, match="revoked"):
        check_key(Peer("h", ("x",), (*found, *known(f"x t {A}"))), "t", b"key-a")
    listed.write_bytes(b"SSHKRL\n\0binary")
    with pytest.raises(HostKeyError, match="binary"):
        load_revoked(listed)
    with pytest.raises(HostKeyError, match="cannot be read"):
        load_revoked(tmp_path / "none")


def test_lines() -> None:
    assert known_hosts_line("Host", 22, "t", A) == f"host t {A}"
    assert known_hosts_line("::1", 2222, "t", A) == f"[::1]:2222 t {A}"


def test_appending(tmp_path: Path) -> None:
    path = tmp_path / "new" / "known_hosts"
    append_known_host(path, f"one t {A}")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.write_text(f"# kept\none t {A}")  # no newline at the end
    path.chmod(0o644)
    append_known_host(path, f"two t {B}")
    append_known_host(path, f"two t {B}")
    assert path.read_text() == f"# kept\none t {A}\ntwo t {B}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["known_hosts"]


def test_replacing_drops_the_old_key_of_that_name_alone(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    keep = [f"other t {A}", f"*.x,one t {A}", f"@revoked one t {A}"]
    path.write_text("\n".join([f"one t {A}", f"{hashed('one')} t {A}", *keep]) + "\n")
    append_known_host(path, f"one t {B}", replace=True)
    assert path.read_text().splitlines() == [*keep, f"one t {B}"]


def test_a_linked_file_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.touch()
    link.symlink_to(real)
    append_known_host(link, f"one t {A}")
    assert link.is_symlink()
    assert real.read_text() == f"one t {A}\n"


def test_appending_from_many_threads_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    threads = [
        threading.Thread(target=append_known_host, args=(path, f"h{n} t {A}")) for n in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(path.read_text().splitlines()) == 12


def test_fingerprint_is_what_ssh_keygen_prints() -> None:
    # An empty SHA-256, in base64 without padding.
    assert fingerprint(b"") == "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"
