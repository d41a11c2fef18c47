"""The plugin against the real SGLang's code: registration, widths, masks, the verify input."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from sglang.srt.arg_groups.overrides import resolving_view, use_mla_backend
from sglang.srt.layers.attention.verify_mask import VerifyMask
from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner
from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import prepare_server_args
from sglang.srt.speculative.eagle_utils import TreeMaskMode
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_utils import resolve_num_tokens_per_req
from torch import Tensor

from sglang_ddtree import (
    algo,
    compat,
    cpu_sampling,
    draft_graph,
    graph_runner,
    metrics,
    plugin,
    verify,
)
from sglang_ddtree import tree as tree_module
from sglang_ddtree.args import TreeConfig, window_refusal
from sglang_ddtree.graph_runner import DDTreeDecodeCudaGraphRunner
from sglang_ddtree.tree import build_tree
from sglang_ddtree.tree_types import TreeBatch

load_plugins()

BLOCK, BUDGET, TOPK, PREFIXES = 8, 12, 3, (5, 0, 11)
WIDTH = BUDGET + 1


@pytest.fixture
def tree() -> TreeBatch:
    return built(None)


def resolved(*flags: str) -> Any:
    """A server's arguments as its start resolves them, plugins included."""
    models = os.environ["DDTREE_TEST_MODELS"]
    argv = ["--model-path", f"{models}/tiny-qwen3", "--device", "cpu", "--dtype", "float32",
            "--attention-backend", "torch_native", "--speculative-algorithm", "DDTREE",
            "--speculative-draft-model-path", f"{models}/tiny-qwen3-dflash", *flags]  # fmt: skip
    args = prepare_server_args(argv)
    args.resolve_once()
    return resolving_view(args)


def test_nothing_stands_in_the_way_of_a_start() -> None:
    assert plugin.preflight() == []
    assert plugin.health().ok
    assert isinstance(SpeculativeAlgorithm.from_string("ddtree"), algo.DDTreeAlgo)


def test_every_fingerprint_names_a_function_that_is_there() -> None:
    table = compat.known()
    assert sum(map(len, table.values())) > 25
    assert list(compat.moved(table)) == []
    for module, names in table.items():
        for name in names:
            assert compat.source_of(module, name), (module, name)


def test_a_function_that_moved_is_named() -> None:
    module = "srt.speculative.eagle_worker_common"
    (said,) = compat.moved({module: {"run_eagle_verify": ["0" * 12]}})
    assert said.startswith(f"sglang.{module}.run_eagle_verify has changed (")
    assert list(compat.moved({module: {"gone": ["0"]}, "srt.no": {"x": ["0"]}})) == [
        f"sglang.{module}.gone is missing",
        "sglang.srt.no.x is missing",
    ]


def test_a_changed_engine_is_refused_at_start_and_says_what_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compat, "known", lambda: {"srt.speculative.eagle_utils": {"gone": ["0"]}})
    one = SpeculativeAlgorithm.from_string("DDTREE")
    with pytest.raises(ValueError, match=r"eagle_utils\.gone is missing"):
        one.handle_server_args(SimpleNamespace())


def test_another_release_leaves_an_algorithm_that_refuses_and_a_health_that_says_so() -> None:
    code = (
        "import sglang_ddtree.compat as c; c.SGLANG_VERSION = '0.5.99'\n"
        "from sglang.srt.plugins import load_plugins; load_plugins()\n"
        "import sglang_ddtree.plugin as p; print(p.health().problems)\n"
        "from sglang.srt.speculative.spec_info import SpeculativeAlgorithm as S\n"
        "S.from_string('DDTREE').validate_server_args(None)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], text=True, capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 1
    assert "hooks private functions of 0.5.99" in done.stdout
    assert "DDTREE cannot run in this engine: sglang 0.5.23 is installed" in done.stderr


def test_arguments_resolve_and_the_plugins_writes_survive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDTREE_BUDGET", "8")
    view = resolved("--speculative-eagle-topk", "4")
    assert (view.speculative_num_draft_tokens, view.speculative_eagle_topk) == (9, 4)
    assert (view.speculative_dflash_block_size, view.speculative_num_steps) == (8, 1)
    assert (view.max_running_requests, view.disable_overlap_schedule) == (48, True)


def mla() -> tuple[str, ...]:
    """A target with latent attention, and its drafter; the last of an option counts."""
    models = os.environ["DDTREE_TEST_MODELS"]
    pair = ("--model-path", f"{models}/tiny-mla")
    return (*pair, "--speculative-draft-model-path", f"{models}/tiny-mla-dflash")


def test_latent_attention_is_served_on_the_labs_backend_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DDTREE_BUDGET", "8")
    view = resolved("--speculative-eagle-topk", "4", *mla())
    assert use_mla_backend(view)
    assert view.attention_backend == "torch_native"
    other = ("--attention-backend", "flashinfer")
    with pytest.raises(ValueError, match="verifies with --attention-backend torch_native; got fl"):
        resolved("--speculative-eagle-topk", "4", *mla(), *other)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--pp-size", "2"), "pipeline parallelism"),
        (("--speculative-accept-threshold-acc", "0.9"), "lossy acceptance"),
        (("--speculative-draft-window-size", "64"), "a draft window"),
        (("--speculative-num-draft-tokens", "8"), "max(budget + 1, block) = 9 rows"),
        (("--speculative-num-draft-tokens", "12", "--disaggregation-mode", "prefill"),
         "prefill/decode disaggregation"),
        (("--enable-return-hidden-states",), "hidden states in answers"),
    ],
    ids=lambda v: v if isinstance(v, str) else None,
)  # fmt: skip
def test_what_is_not_served_ends_the_start(
    flags: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDTREE_BUDGET", "8")
    with pytest.raises(ValueError, match=re.escape(says)):
        resolved("--speculative-eagle-topk", "4", *flags)


def widths(target_algorithm: Any) -> tuple[int, int]:
    """Rows a request of the graphs of target and drafter, as the engine derives them."""
    both = [
        resolve_num_tokens_per_req(
            phase="target_verify", spec_algorithm=target_algorithm, is_draft_worker=draft,
            num_draft_tokens=WIDTH,
        )
        for draft in (False, True)
    ]  # fmt: skip
    return both[0], both[1]


class SizedByBlock(algo.DDTreeAlgo):
    """Bug 1 put back: the target's graphs are as wide as the drafter's block."""

    def get_num_tokens_per_req_for_target_verify(
        self, num_draft_tokens: int, is_draft_worker: bool
    ) -> int:
        return super().get_num_tokens_per_req_for_target_verify(num_draft_tokens, True)


def replays(algorithm: Any) -> bool:
    """Whether a verify batch of a tree passes the width guard of graphs sized by `algorithm`."""
    runner: Any = object.__new__(DDTreeDecodeCudaGraphRunner)
    runner.captured_req_width = widths(algorithm)[0]
    runner.ragged_verify_mode = None
    runner.require_mlp_tp_gather = runner.enable_pdmux = False

    class Passed(Exception):
        """The guard is behind us."""

    def next_step(*args: object, **kwargs: object) -> None:
        raise Passed

    runner._make_graph_key = runner._resolve_lora_variant = next_step
    batch = SimpleNamespace(
        replace_embeds=None, batch_size=1, forward_mode=None,
        spec_info=verify.capture_input(torch.ones(1), width=WIDTH),
    )  # fmt: skip
    try:
        return bool(DecodeCudaGraphRunner.can_run_graph(runner, batch))
    except Passed:
        return True


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    bag = SimpleNamespace(speculative_dflash_block_size=BLOCK, speculative_num_draft_tokens=WIDTH)
    for module in (algo, verify):
        monkeypatch.setattr(module, "get_spec", lambda: bag)
    monkeypatch.setattr("sglang.srt.speculative.spec_utils.get_spec", lambda: bag)


def test_target_graphs_are_as_wide_as_the_tree_and_the_drafters_as_its_block(
    numbers: None,
) -> None:
    right = SpeculativeAlgorithm.from_string("DDTREE")
    assert widths(right) == (WIDTH, BLOCK)
    assert replays(right)
    wrong = SizedByBlock("DDTREE", lambda _: object, supports_overlap=True)
    assert widths(wrong) != (WIDTH, BLOCK)
    assert not replays(wrong)  # the engine falls to eager mode without a word


def test_the_target_is_captured_with_a_mask_and_the_drafter_without(numbers: None) -> None:
    runner: Any = object.__new__(DDTreeDecodeCudaGraphRunner)
    runner.buffers = SimpleNamespace(custom_mask=torch.ones(4, dtype=torch.bool))
    runner.captured_req_width = WIDTH
    captured = runner.get_spec_info(3 * WIDTH)
    assert captured.custom_mask is runner.buffers.custom_mask
    assert (captured.draft_token_num, captured.num_tokens_per_req) == (WIDTH, WIDTH)
    assert captured.topk > 1
    choose = _hooked("sglang.srt.model_executor.model_runner", "ModelRunner",
                     "_decode_cuda_graph_runner_cls")  # fmt: skip
    mine = SpeculativeAlgorithm.from_string("DDTREE")
    kinds = [
        choose(SimpleNamespace(spec_algorithm=algorithm, is_draft_worker=draft))
        for algorithm, draft in ((mine, False), (mine, True), (SpeculativeAlgorithm.DFLASH, False))
    ]
    assert kinds == [DDTreeDecodeCudaGraphRunner, DecodeCudaGraphRunner, DecodeCudaGraphRunner]


def _hooked(module: str, *names: str) -> Callable[..., Any]:
    value: Any = sys.modules[module]
    for name in names:
        value = getattr(value, name)
    found: Callable[..., Any] = value
    return found


def full_mask_by_loops(mask: Tensor, prefixes: tuple[int, ...]) -> list[bool]:
    """FULL_MASK by its definition: per request, rows of `prefix + width` cells."""
    cells: list[bool] = []
    for request, prefix in enumerate(prefixes):
        for row in mask[request].tolist():
            cells += [True] * prefix + row
    return cells


def backend_with(mask: Any) -> Any:
    return SimpleNamespace(verify_mask=mask, max_context_len=16)


def built(flat: Tensor | None) -> TreeBatch:
    """The tree of the fixture, its cells written into `flat`."""
    generator = torch.Generator().manual_seed(7)
    shape = (len(PREFIXES), BLOCK - 1, 64)
    logprobs, ids = torch.randn(shape, generator=generator).log_softmax(-1).topk(TOPK)
    return build_tree(
        torch.tensor([1, 2, 3]), ids, logprobs, torch.tensor(PREFIXES),
        budget=BUDGET, width=WIDTH, mask_tail=flat,
    )  # fmt: skip


def placed(owned: Any, *, fill: bool, total: int | None = sum(PREFIXES)) -> Tensor:
    """The mask of a step, by the calls that the worker makes."""
    batch = SimpleNamespace(seq_lens=torch.tensor(PREFIXES), seq_lens_sum=total)
    backend = backend_with(owned)
    flat = verify.full_mask(batch, backend, WIDTH, fill_prefix=fill)
    return verify.mask_of(built(flat), flat, backend)


def owns(cells: int, mode: Any = TreeMaskMode.FULL_MASK, most: int = 3) -> VerifyMask:
    return VerifyMask(torch.zeros(cells, dtype=torch.uint8), mode, most)


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU's default is the short layout; the long one is what GPUs read."""
    monkeypatch.setattr(verify, "default_tree_mask_mode", lambda: TreeMaskMode.FULL_MASK)


def test_the_mask_lies_where_the_engine_reads_it(tree: TreeBatch) -> None:
    wanted = full_mask_by_loops(tree.mask, PREFIXES)
    assert placed(None, fill=False).tolist() == wanted
    one = owns(len(wanted) + 40)  # a backend's own, larger buffer
    assert placed(one, fill=True) is one.buffer
    assert one.buffer[: len(wanted)].bool().tolist() == wanted
    # Backends that read the tree's cells alone are spared the prefix.
    bare = owns(len(wanted))
    assert int(placed(bare, fill=False).sum()) == int(tree.mask.sum())
    # A batch too large for the buffer, with no length known on the host: an upper bound.
    spare = placed(owns(9, most=2), fill=False, total=None)
    assert spare.numel() == WIDTH * (3 * 16 + 3 * WIDTH)
    assert spare[: len(wanted)].tolist() == wanted


def test_offsets_taken_from_the_block_put_it_elsewhere(
    tree: TreeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug 2 put back: the stride of a request's mask is the block's."""
    right = tree_module.tail_rows

    def by_block(prefix_lens: Tensor, width: int) -> Tensor:
        return right(prefix_lens, BLOCK)[:, :1] + torch.arange(width) * BLOCK

    monkeypatch.setattr(tree_module, "tail_rows", by_block)
    assert placed(None, fill=False).tolist() != full_mask_by_loops(tree.mask, PREFIXES)


def test_a_short_mask_has_the_trees_cells_alone(
    tree: TreeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "default_tree_mask_mode", lambda: TreeMaskMode.QLEN_ONLY)
    assert torch.equal(placed(None, fill=False).view_as(tree.mask), tree.mask)
    one = owns(3 * WIDTH * WIDTH, TreeMaskMode.QLEN_ONLY)
    assert torch.equal(placed(one, fill=False).bool().view_as(tree.mask), tree.mask)
    with pytest.raises(NotImplementedError):
        placed(owns(9, TreeMaskMode.QLEN_ONLY_BITPACKING), fill=False)


def test_a_mask_that_is_in_place_is_not_copied_onto_itself() -> None:
    class TritonAttnBackend:
        verify_mask = SimpleNamespace(buffer=torch.ones(8))

    backend, other = TritonAttnBackend(), torch.ones(8)
    mine = SimpleNamespace(custom_mask=backend.verify_mask.buffer)
    with graph_runner.mask_in_place(mine, backend):
        assert mine.custom_mask.numel() == 0
    assert mine.custom_mask is backend.verify_mask.buffer
    foreign = SimpleNamespace(custom_mask=other)
    with graph_runner.mask_in_place(foreign, backend):
        assert foreign.custom_mask is other


def test_the_verify_input_is_the_tree(tree: TreeBatch) -> None:
    plan = SimpleNamespace(write_virtual=torch.arange(3 * WIDTH))
    one = verify.verify_input(tree, torch.ones(1, dtype=torch.bool), plan)
    assert one.max_tree_depth == tree.max_depth + 1 == BLOCK
    assert (one.draft_token_num, one.num_tokens_per_req) == (WIDTH, WIDTH)
    wanted = torch.tensor(PREFIXES).view(-1, 1) + tree.depths
    assert torch.equal(one.positions.view(3, WIDTH), wanted)
    assert torch.equal(one.retrieve_index.view(-1), torch.arange(3 * WIDTH))


class Drafted:
    """The end of a drafter's graph for at most four requests, and what it must leave for three."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
        generator = torch.Generator().manual_seed(3)
        weight = torch.randn((97, 16), generator=generator)

        def candidates(hidden: Tensor, head: Tensor, topk: int) -> tuple[Tensor, Tensor]:
            best = (hidden @ head.T).log_softmax(-1).topk(topk)
            return best.indices, best.values

        monkeypatch.setattr(draft_graph, "candidates", candidates)
        numbers = TreeConfig(budget=BUDGET, topk=TOPK, block=BLOCK, width=WIDTH)
        self.sampler = draft_graph.TreeSampler(weight, numbers, backend=backend)
        self.hidden = torch.randn((4 * BLOCK, 16), generator=generator)
        roots = torch.tensor([11, 12, 13, 0])
        self.ids = torch.full((4, BLOCK), 96)
        self.ids[:, 0] = roots
        self.prefixes = torch.tensor(PREFIXES)
        tokens, best = candidates(self.hidden.view(4, BLOCK, 16)[:3, 1:], weight, TOPK)
        self.cells = sum(WIDTH * (prefix + WIDTH) for prefix in PREFIXES)
        self.flat = torch.zeros(self.cells, dtype=torch.uint8)
        self.wanted = build_tree(
            roots[:3], tokens, best, self.prefixes, budget=BUDGET, width=WIDTH, mask_tail=self.flat
        )

    def captured(self) -> None:
        """A batch of three in a graph of four: the last one fills up, at the engine's length 1."""
        lens = torch.cat([self.prefixes, torch.ones(1, dtype=torch.int64)])
        self.sampler.begin(SimpleNamespace(max_bs=4), SimpleNamespace(seq_lens=lens))
        self.sampler(self.hidden, self.ids.flatten())

    def check(self, found: TreeBatch) -> None:
        assert found.max_depth == self.wanted.max_depth
        for name in ("tokens", "parents", "positions", "next_token", "next_sibling", "mask"):
            assert torch.equal(getattr(found, name), getattr(self.wanted, name)), name


#: Cells of a mask of four requests, whose last has a prefix of 1.
CELLS = sum(WIDTH * (prefix + WIDTH) for prefix in (*PREFIXES, 1))


def test_the_drafters_graph_ends_in_the_tree_of_its_candidates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is captured: hidden states in, trees and the target's mask out, always at one place."""
    backend = backend_with(owns(CELLS, most=4))
    one = Drafted(monkeypatch, backend)
    with pytest.raises(RuntimeError, match="without prefix lengths"):
        one.sampler(one.hidden, one.ids.flatten())
    with pytest.raises(RuntimeError, match="not captured here"):
        one.sampler.trees(one.prefixes, None)
    one.captured()
    mask = one.sampler.mask
    assert mask is not None and mask is backend.verify_mask.buffer
    assert torch.equal(mask[: one.cells], one.flat)
    mask.zero_()  # a step that finds its own buffer there has nothing left to write
    one.check(one.sampler.trees(one.prefixes, mask))
    assert not mask.any()


@pytest.mark.parametrize(
    "owned",
    [None, owns(CELLS, most=3), owns(CELLS, TreeMaskMode.QLEN_ONLY, most=4)],
    ids=["a backend without one", "one for fewer requests", "one of another layout"],
)
def test_a_step_lays_out_a_mask_that_the_graph_does_not_write(
    owned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left alone, it would show every node to every other: plausible text, wrong tokens."""
    one = Drafted(monkeypatch, backend_with(owned))
    one.captured()
    assert one.sampler.mask is None
    flat = torch.zeros(one.cells, dtype=torch.uint8)
    one.check(one.sampler.trees(one.prefixes, flat))
    assert torch.equal(flat, one.flat)
    one.check(one.sampler.trees(one.prefixes, None))


def test_a_backend_that_captured_again_gets_its_new_mask_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Drafted(monkeypatch, backend_with(owns(CELLS, most=4)))
    one.captured()
    other = owns(CELLS, most=4).buffer
    one.check(one.sampler.trees(one.prefixes, other))
    assert torch.equal(other[: one.cells], one.flat)


def test_a_drafter_that_captures_again_writes_into_the_mask_of_the_new_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """New weights with new graphs: for the target first, then for the drafter."""
    backend = backend_with(owns(CELLS, most=4))
    one = Drafted(monkeypatch, backend)
    one.captured()
    first = one.sampler.mask
    backend.verify_mask = owns(CELLS, most=4)
    one.captured()
    mask = one.sampler.mask
    assert mask is backend.verify_mask.buffer and mask is not first
    assert torch.equal(mask[: one.cells], one.flat)
    mask.zero_()
    one.check(one.sampler.trees(one.prefixes, mask))
    assert not mask.any()


def test_a_verify_backend_is_known_by_the_name_that_windows_are_refused_by() -> None:
    from sglang.srt.speculative.dflash_utils import resolve_dflash_verify_mask_policy

    class FlashInferAttnBackend:
        """Stands for the engine's, whose module wants a GPU's packages."""

    found = importlib.util.find_spec("sglang.srt.layers.attention.flashinfer_backend")
    assert found is not None and found.origin is not None
    assert "\nclass FlashInferAttnBackend(" in Path(found.origin).read_text()
    whole = SimpleNamespace(full_attn_backend=FlashInferAttnBackend())
    for backend in (FlashInferAttnBackend(), whole):
        name, _ = resolve_dflash_verify_mask_policy(backend)
        assert window_refusal(64, name) is not None


@pytest.mark.parametrize(("algorithm", "carried"), [("DDTREE", False), ("EAGLE", True)])
def test_no_hidden_states_are_carried_from_step_to_step(
    algorithm: str, carried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bag = SimpleNamespace(speculative_algorithm=algorithm, enable_multi_layer_eagle=False)
    for module in ("speculative.spec_utils", "runtime_context"):
        monkeypatch.setattr(f"sglang.srt.{module}.get_spec", lambda: bag)
    needs = _hooked("sglang.srt.speculative.spec_utils", "spec_need_hidden_states")
    assert needs() is carried


@pytest.mark.parametrize("seed", range(5))
def test_the_cpu_sampler_is_greedy_when_the_target_is_certain(tree: TreeBatch, seed: int) -> None:
    """With all mass on one token, sampling and the shim's greedy walk must agree."""
    from sgl_kernel import verify_tree_greedy_cpu

    generator = torch.Generator().manual_seed(seed)
    vocabulary = torch.cat([tree.tokens.unique(), torch.tensor([77])])
    pick = torch.randint(len(vocabulary), tree.tokens.shape, generator=generator)
    target = vocabulary[pick]
    # Half of the nodes are followed by their first child, so that paths are accepted.
    child = tree.tokens.gather(1, tree.next_token.clamp(min=0))
    follow = (torch.rand(tree.tokens.shape, generator=generator) < 0.7) & (tree.next_token >= 0)
    target = torch.where(follow, child, target)
    rows = torch.arange(3 * WIDTH).view(3, WIDTH)
    links = {
        "candidates": tree.tokens, "retrive_index": rows, "retrive_next_token": tree.next_token,
        "retrive_next_sibling": tree.next_sibling,
    }  # fmt: skip

    def outputs() -> dict[str, Tensor]:
        return {
            "predicts": torch.zeros(3 * WIDTH, dtype=torch.int32),
            "accept_index": torch.full((3, BLOCK), -1, dtype=torch.int32),
            "accept_token_num": torch.zeros(3, dtype=torch.int32),
        }

    greedy, sampled = outputs(), outputs()
    verify_tree_greedy_cpu(**greedy, **links, target_predict=target)
    cpu_sampling.sample_tree(
        **sampled, **links,
        target_probs=torch.nn.functional.one_hot(target, 128).float(),
        uniform_samples=torch.rand((3, WIDTH), generator=generator),
        uniform_samples_for_final_sampling=torch.rand(3, generator=generator),
    )  # fmt: skip
    for name, value in greedy.items():
        assert torch.equal(value, sampled[name]), name


def test_truncated_distributions() -> None:
    probs = torch.tensor([[0.1, 0.4, 0.3, 0.2]])
    kept = cpu_sampling.renorm_top_k(probs, torch.tensor([2]))
    torch.testing.assert_close(kept, torch.tensor([[0.0, 4 / 7, 3 / 7, 0.0]]))
    torch.testing.assert_close(cpu_sampling.renorm_top_p(probs, torch.tensor([0.5])), kept)
    torch.testing.assert_close(cpu_sampling.renorm_top_p(probs, torch.tensor([1.0])), probs)


def test_the_spine_is_what_the_first_children_alone_would_have_committed(tree: TreeBatch) -> None:
    spine = [0]
    while int(tree.next_token[0, spine[-1]]) >= 0:
        spine.append(int(tree.next_token[0, spine[-1]]))
    other = int(tree.next_sibling[1, int(tree.next_token[1, 0])])
    paths = torch.full((3, BLOCK), -1)
    paths[0, : len(spine)] = torch.tensor(spine)  # request 0 followed its spine to the end
    paths[1, :2] = torch.tensor([WIDTH, WIDTH + other])  # request 1 left it at once
    paths[2, 0] = 2 * WIDTH  # request 2 accepted nothing
    assert metrics.spine_commit(tree, paths).tolist() == [len(spine), 1, 1]


class Scope:
    """The engine's `spec` group, which remembers what it is overridden with."""

    speculative_num_draft_tokens, speculative_eagle_topk = WIDTH, TOPK
    speculative_dflash_block_size = BLOCK
    now: ClassVar[dict[str, int]] = {}

    @contextmanager
    def override(self, **values: int) -> Iterator[None]:
        Scope.now = values
        yield
        Scope.now = {}


@pytest.mark.parametrize(
    ("attribute", "head"),
    [("_is_domino", "Domino"), ("lilicorr", "LiLiCorr"), ("selector", "DFlash2 selector")],
)
def test_a_drafter_whose_positions_depend_on_each_other_is_refused(
    attribute: str, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

    from sglang_ddtree import worker

    seen: list[dict[str, int]] = []

    def start(self: Any, *args: object) -> None:
        seen.append(Scope.now)
        self._is_domino, self.lilicorr, self.selector = False, None, None
        setattr(self, attribute, object())

    monkeypatch.setattr(DFlashWorkerV2, "__init__", start)
    monkeypatch.setattr(worker, "get_spec", Scope)
    monkeypatch.delenv("DDTREE_BUDGET", raising=False)
    with pytest.raises(ValueError, match=f"this one has a {head} head"):
        worker.DDTreeWorkerV2(None, 0, 0, None)
    # The drafter was built as wide as its block, and as a chain.
    assert seen == [{"speculative_num_draft_tokens": BLOCK, "speculative_eagle_topk": 1}]


def test_a_hook_that_was_not_applied_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    from sglang_ddtree import hooks

    hooks.assert_applied()
    monkeypatch.setattr(HookRegistry, "_patched", set())
    with pytest.raises(RuntimeError, match="create_dummy_verify_input"):
        hooks.assert_applied()
