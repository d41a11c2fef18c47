"""A recording gives back what was heard; a damaged one is refused, a cut one is used as far.

To see it fail: let `read_recording` skip lines it cannot read.
"""

from __future__ import annotations

import gzip
import json
import stat
from pathlib import Path

import pytest

from ddops.board.fleet import Fleet, Heard, Kind
from ddops.board.recording import Recorder, Replay, read_recording
from ddops.board.source import Replayed
from ddops.errors import DdopsError, UsageError
from tests.unit.board.looks import NOW, SPEC, look

HEARD = (
    Heard(NOW + 0.5, "", Kind.BOOKS, {"error": "no ledger"}),
    Heard(NOW + 1, "box1", Kind.LOOK, look()),
    Heard(NOW + 2, "box1", Kind.DRIFT, {"rows": []}),
    Heard(NOW + 6, "box1", Kind.ERROR, {"error": "gone"}),
)


def recorded(path: Path) -> Path:
    made = Recorder(path, [SPEC], NOW)
    for heard in HEARD:
        made(heard)
    made.close()
    made(HEARD[0])  # too late: nothing happens
    return path


@pytest.mark.parametrize("name", ["fleet.jsonl", "fleet.jsonl.gz"])
def test_it_comes_back_as_it_was_heard(tmp_path: Path, name: str) -> None:
    path = recorded(tmp_path / name)
    back = read_recording(path)
    assert (back.began, back.hosts, back.heard, back.cut) == (NOW, (SPEC,), HEARD, False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    live, replayed = Fleet.of([SPEC]), Fleet.of(back.hosts)
    for one, other in zip(HEARD, back.heard, strict=True):
        live.apply(one)
        replayed.apply(other)
    assert live == replayed


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path = recorded(tmp_path / "fleet.jsonl")
    before = path.read_bytes()
    with pytest.raises(UsageError, match="cannot record"):
        Recorder(path, [SPEC], NOW)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["fleet.jsonl", "fleet.jsonl.gz"])
def test_an_end_that_is_missing_costs_the_end_alone(tmp_path: Path, name: str) -> None:
    path = recorded(tmp_path / name)
    if name.endswith(".gz"):
        text = gzip.decompress(path.read_bytes())
        path.write_bytes(gzip.compress(text)[:-9])
    else:
        path.write_bytes(path.read_bytes()[:-9])
    back = read_recording(path)
    assert back.cut
    assert 1 <= len(back.heard) < len(HEARD) + 1
    assert back.heard == HEARD[: len(back.heard)]


HEAD = json.dumps({"schema": "ddops.recording/1", "at": NOW, "hosts": []}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\n", b"\x00\xff\xfe", b"{}", b"[1]", b'{"schema": "ddops.recording/9"}',
        b"\x1f\x8bnot gzip", HEAD + b"\nnonsense\n" + HEAD, HEAD + b'\n{"t": 1, "host": "a"}\n',
        HEAD + b'\n{"t": 1, "host": "a", "look": 3}\n', HEAD + b'\n{"t": "x", "look": {}}\n',
        b'{"schema": "ddops.recording/1", "at": 1, "hosts": [{"name": "a", "more": 1}]}',
    ],
)  # fmt: skip
def test_what_is_no_recording_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "fleet.jsonl"
    path.write_bytes(data)
    with pytest.raises(UsageError):
        read_recording(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_recording(tmp_path / "none.jsonl")


def test_a_replay_keeps_the_recordings_pace_and_stops_its_clock(tmp_path: Path) -> None:
    replay = Replay(read_recording(recorded(tmp_path / "fleet.jsonl")))
    assert [h.kind for h in replay.due(1.5)] == [Kind.BOOKS, Kind.LOOK]
    assert list(replay.due(1.5)) == []
    assert not replay.ended
    assert [h.kind for h in replay.due(1000)] == [Kind.DRIFT, Kind.ERROR]
    assert replay.ended
    assert replay.now(1000) == NOW + 6


def test_the_board_begins_where_every_host_was_heard_of(tmp_path: Path) -> None:
    source = Replayed(Replay(read_recording(recorded(tmp_path / "fleet.jsonl"))), "replay")
    source.start()
    assert {h.kind for h in source.drain()} >= {Kind.BOOKS, Kind.LOOK}
    assert source.label == "replay"


def test_an_empty_recording_says_so(tmp_path: Path) -> None:
    path = tmp_path / "fleet.jsonl"
    Recorder(path, [SPEC], NOW).close()
    with pytest.raises(DdopsError, match="holds no look"):
        Replay(read_recording(path))
