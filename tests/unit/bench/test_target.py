"""Nothing is sent before the server is known to be the start on record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from ddops.bench.target import Target, known_start, prove
from ddops.command import Redactor
from ddops.errors import RefusedError
from ddops.gates.observation import Answer, Launch, Observation, Port
from ddops.ledger import Ledger
from ddops.model import State
from tests.unit.bench.inventory import HOST, SERVICE

SEEN = Observation(
    at=0.0, current=None, engine=State.UP, engine_why="", pid=7, uptime_s=1.0, rss_bytes=1,
    launch=Launch("n1", "v-n1", "ab" * 32, "op", 7, 6, 0.0),
    port=Port(30000, True, True, "tiny, pid 7"), log_size=0, log_tail="",
    model_info=Answer(200, values={"weight_version": "v-n1"}),
)  # fmt: skip


@dataclass
class Seen:
    """A target that looks as it is told."""

    seen: Observation
    service = SERVICE
    host = HOST
    port: int = 30000

    def observe(self) -> Observation:
        return self.seen


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", redactor=Redactor()) as opened:
        yield opened


def test_the_start_on_record_is_proven(ledger: Ledger) -> None:
    proof = prove(cast("Target", Seen(SEEN)), ledger)
    assert (proof.nonce, proof.weight_version, proof.launch) == ("n1", "v-n1", None)


def test_a_start_that_another_ledger_knows_is_not_this_one_s() -> None:
    """No row may refer to it: a run would be refused when it is stored, behind all its work."""

    class Book:
        ledger_id = "own"

        def __init__(self, whose: str) -> None:
            self.whose = whose

        def launch(self, nonce: str) -> SimpleNamespace:
            return SimpleNamespace(nonce=nonce, ledger=self.whose)

    assert known_start(cast("Ledger", Book("other")), "n1") is None
    assert known_start(cast("Ledger", Book("own")), "n1") is not None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"port": Port(30000, True, False, "python3, pid 4711")}, "python3, pid 4711"),
        ({"engine": State.DOWN, "engine_why": "it ended"}, "does not run"),
        ({"engine": State.UNKNOWN}, "does not run"),
        ({"launch": None}, "does not run"),
        ({"model_info": Answer(200, values={"weight_version": "v-n0"})}, "v-n0"),
        ({"model_info": Answer(200)}, "None"),
        ({"model_info": None}, "None"),
    ],
)
def test_a_strangers_server_is_named_and_left_alone(
    ledger: Ledger, changes: dict[str, object], says: str
) -> None:
    """No process is ended: the owner of the port is named. An old start is no start."""
    target = Seen(replace(SEEN, **changes))  # type: ignore[arg-type]
    with pytest.raises(RefusedError) as e:
        prove(cast("Target", target), ledger)
    assert says in str(e.value)
