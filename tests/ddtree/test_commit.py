"""The accepted path to the front: the kernel against torch, and torch against what it is for."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from sglang_ddtree import commit_kernels, hooks
from sglang_ddtree.commit import TreePath, accepted, accepted_in_torch, move
from sglang_ddtree.commit_graph import CommitGraphs
from sglang_ddtree.metrics import accepted_nodes

Step = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def batch(bs: int, width: int, front: int, seed: int) -> Step:
    """Random paths with the root first and rows that ascend, as a tree's are."""
    rng = torch.Generator().manual_seed(seed)
    index = torch.full((bs, front), -1, dtype=torch.int32)
    for req in range(bs):
        length = int(torch.randint(1, front + 1, (), generator=rng))
        rest = torch.randperm(width - 1, generator=rng)[: length - 1].sort().values + 1
        path = torch.cat([torch.zeros(1, dtype=torch.int64), rest])
        index[req, :length] = (req * width + path).to(torch.int32)
    slots = torch.randperm(bs * width * 3, generator=rng)[: bs * width] + 1
    predicted = torch.randint(0, 5000, (bs * width,), generator=rng, dtype=torch.int32)
    prefix = torch.randint(1, 900, (bs, 1), generator=rng)
    lens = (index >= 0).sum(1, dtype=torch.int32)
    return index, predicted, slots, slots + 7000, prefix + torch.arange(width), lens


def used(bs: int, front: int) -> TreePath:
    """A room with what an earlier batch left in it."""
    room = TreePath.of(bs, front, torch.device("cpu"))
    room.places.fill_(77)
    room.lens.fill_(5)
    return room


@pytest.mark.parametrize(
    ("bs", "width", "front"), [(1, 8, 8), (3, 9, 8), (5, 16, 8), (40, 9, 8), (2, 2, 2), (7, 48, 8)]
)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_kernel_says_what_torch_says(bs: int, width: int, front: int, seed: int) -> None:
    given = batch(bs, width, front, seed)
    for room in (None, bs, bs + 3):
        wanted, found = (
            one(*given, room=None if room is None else used(room, front))
            for one in (accepted_in_torch, commit_kernels.accepted)
        )
        same(wanted.tokens, found.tokens)
        same(wanted.path.places, found.path.places)
        same(wanted.path.lens, found.path.lens)


def same(one: torch.Tensor, two: torch.Tensor) -> None:
    assert one.dtype == two.dtype and one.shape == two.shape
    assert torch.equal(one, two)


def test_what_fills_up_a_room_is_an_empty_path() -> None:
    given = batch(3, 9, 8, 1)
    plain = accepted_in_torch(*given).path
    for one in (accepted_in_torch, commit_kernels.accepted):
        path = one(*given, room=used(5, 8)).path
        assert torch.equal(path.places[:, :24], plain.places)
        assert path.places[:, 24:].count_nonzero() == 0
        assert path.lens.tolist() == [*plain.lens.tolist(), 0, 0]


@pytest.mark.parametrize(("bs", "front"), [(2, 8), (3, 7), (4, 9)])
def test_a_room_of_another_shape_is_refused(bs: int, front: int) -> None:
    """A kernel would write beyond it."""
    with pytest.raises(ValueError, match="asked for 3 of 8"):
        accepted(*batch(3, 9, 8, 1), room=used(bs, front))


def test_nothing_accepted_but_the_root_moves_the_root_onto_itself() -> None:
    index, predicted, slots, draft_slots, positions, _ = batch(2, 9, 8, 3)
    index[:, 1:] = -1
    ones = torch.ones(2, dtype=torch.int32)
    found = accepted_in_torch(index, predicted, slots, draft_slots, positions, ones)
    path = found.path
    assert found.tokens.view(2, 9)[:, 0].tolist() == predicted.view(2, 9)[:, 0].tolist()
    assert found.tokens.view(2, 9)[:, 1:].count_nonzero() == 0
    moved = (path.targets != path.sources).sum()
    assert moved == 0
    assert set(path.targets.tolist()) == {0, *slots.view(2, 9)[:, 0].tolist()}


class Pool:
    """Values by slot; moved as SGLang moves them, all read before any is written."""

    def __init__(self, size: int) -> None:
        self.values = torch.arange(size)

    def get_kvcache(self) -> Pool:
        return self

    def move_kv_cache(self, targets: torch.Tensor, sources: torch.Tensor) -> None:
        self.values[targets] = self.values[sources]


def test_a_chain_reader_finds_the_path_in_the_first_slots() -> None:
    given = batch(6, 16, 8, 5)
    index, predicted, slots = given[:3]
    pool = Pool(400)
    found = accepted_in_torch(*given)
    move(found.path, pool)
    for req in range(6):
        rows = [int(i) for i in index[req] if i >= 0]
        first = slots.view(6, 16)[req, : len(rows)]
        assert pool.values[first].tolist() == [int(slots[r]) for r in rows]
        assert found.tokens.view(6, 16)[req, : len(rows)].tolist() == predicted[rows].tolist()
    assert pool.values[0] == 0


class StandIn:
    """A captured graph as the code sees it: a replay does again, on the same tensors, what was done
    between `graph(...)` and its end. What the work looked up then is fixed."""

    def __init__(self) -> None:
        self.done: list[Callable[[], None]] = []

    def replay(self) -> None:
        for one in self.done:
            one()


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[StandIn]:
    """torch.cuda without a device; the graph that is being captured comes first in the list."""
    open_graphs: list[StandIn] = []

    @contextmanager
    def graph(one: StandIn, **how: object) -> Iterator[None]:
        assert how["capture_error_mode"] == "thread_local" and how["pool"] == "pool"
        open_graphs.insert(0, one)
        yield
        open_graphs.remove(one)

    @contextmanager
    def stream(_: object) -> Iterator[None]:
        yield

    for name, value in (("CUDAGraph", StandIn), ("graph", graph), ("stream", stream),
                        ("synchronize", lambda: None),
                        ("graph_pool_handle", lambda: "pool")):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: device)
    return open_graphs


@pytest.mark.parametrize("bs", [1, 2, 3, 4])
def test_a_replay_moves_what_launches_would_have_moved(bs: int, recorded: list[StandIn]) -> None:
    launched, replayed = Pool(400), Pool(400)
    drafted: dict[str, torch.Tensor] = {n: torch.zeros(9000) for n in ("launched", "replayed")}

    def commit(name: str, pool: Pool, path: TreePath, hidden: torch.Tensor) -> None:
        move(path, pool)
        cells = drafted[name]
        for slots, length, rows in zip(
            path.draft_slots, path.lens, hidden.view(len(path.lens), -1), strict=True
        ):
            cells[slots[:length]] = rows[:length]

    def work(path: TreePath, hidden: torch.Tensor) -> None:
        def once() -> None:
            commit("replayed", replayed, path, hidden)

        if recorded:
            recorded[0].done.append(once)
        else:
            once()

    lent: list[weakref.ref[torch.Tensor]] = []

    def kept() -> list[torch.Tensor]:
        """What somebody else owned and has dropped by now."""
        one = torch.ones(1)
        lent.append(weakref.ref(one))
        return [one]

    graphs = CommitGraphs(
        work, kept, sizes=(4, 1, 2), front=8, features=1, dtype=torch.float32,
        device=torch.device("cpu"),
    )  # fmt: skip
    assert replayed.values.tolist() == list(range(400))  # warming up moved nothing
    assert not drafted["replayed"].any()
    for seed in (1, 2):  # the second batch finds what the first one left
        given = batch(bs, 16, 8, seed)
        hidden = torch.arange(1.0, bs * 16 + 1).view(-1, 1) + 1000 * seed
        plain = accepted_in_torch(*given).path
        commit("launched", launched, plain, hidden.index_select(0, plain.rows))
        one = graphs.of(bs)
        assert one is not None and len(one.path.lens) == {1: 1, 2: 2, 3: 4, 4: 4}[bs]
        accepted_in_torch(*given, room=one.path)
        torch.index_select(hidden, 0, one.path.rows, out=one.hidden)
        one.graph.replay()
        assert torch.equal(launched.values, replayed.values)
        assert torch.equal(drafted["launched"], drafted["replayed"])
    assert graphs.of(5) is None
    assert [one() is not None for one in lent] == [True] * 3  # after each of the captures


def test_a_step_names_the_nodes_of_each_path_as_the_search_took_them() -> None:
    index = torch.tensor([[0, 1, 3, -1], [8, -1, -1, -1], [16, 18, 19, 23]])
    assert accepted_nodes(index, 8) == [[1, 3], [], [2, 3, 7]]


class Worker:
    """Stands for a target worker of SGLang's."""


def test_states_are_committed_but_where_a_model_has_none() -> None:
    seen: list[tuple[object, ...]] = []
    hybrid, plain = Worker(), Worker()
    hooks.stateless(plain)
    for worker in (hybrid, plain, hybrid):
        hooks.commit_states(lambda *given: seen.append(given), worker, "batch", "lens")
    assert seen == [(hybrid, "batch", "lens")] * 2
    target = "sglang.srt.speculative.eagle_worker_common.commit_mamba_states_after_verify"
    assert dict(hooks.HOOKS)[target] is hooks.commit_states
