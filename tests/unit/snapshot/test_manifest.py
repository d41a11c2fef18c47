"""Manifests: named by their bytes, ordered by what came after what, kept by rule."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest

from ddops.errors import DdopsError
from ddops.snapshot.model import Manifest, make_manifest, name_of, name_text, parse_manifest
from ddops.snapshot.record import expanded, unexpanded
from ddops.snapshot.retain import surplus
from ddops.snapshot.store import in_order

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def manifest(
    number: int, previous: Manifest | None = None, *, hours: float = 0, release: str = "r",
    host: str = "box", tree: str = "t",
) -> Manifest:  # fmt: skip
    return make_manifest({
        "schema": "ddops.snapshot/1", "ddops": "1", "host": host, "service": "k26",
        "at": (NOW + timedelta(hours=hours)).isoformat(), "host_clock": "x", "skew_s": 0.0,
        "by": "ann@here", "previous": previous.id if previous else None, "engine_env": "sim",
        "tree": {"path": "/t", "tree": f"{tree}{number}", "commit": f"c{number}", "nested": [],
                 "allowed": []},
        "large": [], "release": release * 64, "lock": None, "upstream": None, "model": None,
        "draft": None, "facts": None, "simulated": None,
        "record": {"record/x.json": {"sha256": f"{number:064d}", "bytes": 1}},
    })  # fmt: skip


def chain(*hours: float) -> list[Manifest]:
    out: list[Manifest] = []
    for number, at in enumerate(hours):
        out.append(manifest(number, out[-1] if out else None, hours=at))
    return out


def test_the_id_is_the_sha256_of_the_bytes() -> None:
    one = manifest(1)
    assert parse_manifest(one.text, one.id).content == one.content
    for position in range(0, len(one.text), 17):
        hurt = bytearray(one.text)
        hurt[position] ^= 1
        with pytest.raises(DdopsError, match="not what was written"):
            parse_manifest(bytes(hurt), one.id)


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b"\xff", b'{"schema": "ddops.snapshot/9"}'])
def test_what_is_no_manifest_is_one_clear_error(raw: bytes) -> None:
    import hashlib

    with pytest.raises(DdopsError, match="cannot be read"):
        parse_manifest(raw, hashlib.sha256(raw).hexdigest())


def test_the_same_content_at_another_time_is_the_same() -> None:
    one, later = manifest(1), manifest(1, manifest(0), hours=5)
    assert one.id != later.id
    assert one.same == later.same
    assert one.same != manifest(2).same
    assert one.same != manifest(1, release="s").same


@pytest.mark.parametrize("hours", list(itertools.permutations([0.0, -30.0, 7.0])))
def test_a_clock_that_jumps_does_not_change_the_order(hours: tuple[float, ...]) -> None:
    made = chain(*hours)
    assert in_order([made[1], made[2], made[0]]) == made[::-1]


def test_a_chain_with_a_hole_and_one_with_a_loop_are_ordered_all_the_same() -> None:
    a, b, c = chain(0, 1, 2)
    assert in_order([a, c]) == [c, a]
    assert in_order([]) == []
    assert b.previous == a.id


def test_retention_keeps_the_newest_and_one_of_each_release() -> None:
    made: list[Manifest] = []
    for number, release in enumerate("aabbbc"):
        made.append(manifest(number, made[-1] if made else None, release=release))
    newest = made[::-1]
    assert surplus(newest, 6) == []
    # c, then two of b, then one of a: what a rollback to each release needs.
    assert surplus(newest, 2) == [made[3], made[2], made[0]]
    assert made[1] not in surplus(newest, 1)


@pytest.mark.parametrize("name", ["plain", "säge", "caf\udce9", "base64:x", ""])
def test_file_names_of_any_bytes_go_through_json(name: str) -> None:
    if not name.startswith("base64:"):
        assert name_of(name_text(name)) == name
    name_text(name).encode()


def test_paths_below_the_engine_folder_are_the_same_on_every_host() -> None:
    assert unexpanded("/opt/ddops/tree", "/opt/ddops") == "${engine_dir}/tree"
    assert unexpanded("/opt/ddops-old/tree", "/opt/ddops") == "/opt/ddops-old/tree"
    assert expanded("${engine_dir}/tree", "/data/x/") == "/data/x/tree"
    assert expanded("/root/sglang", "/data/x") == "/root/sglang"
