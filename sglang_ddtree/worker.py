"""The worker: one drafted block, one tree, one verify pass a step.

Everything is enqueued on the forward stream; no device value is read on the host, so that the
scheduler can run ahead.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import torch
from sglang.srt.configs.hybrid_arch import mambaish_config
from sglang.srt.lora.layers import unwrap_lora_layer
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
    enable_num_token_non_padded,
)
from sglang.srt.runtime_context import get_exec, get_spec
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2
from sglang.srt.speculative.dflash_utils import resolve_dflash_verify_mask_policy
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.draft_worker_common import make_draft_input_v2
from sglang.srt.speculative.eagle_worker_common import run_eagle_verify
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_utils import draft_tp_context, get_plan_stream
from torch import Tensor

from sglang_ddtree import cpu_sampling
from sglang_ddtree.args import DDTreeConfigError, tree_config, window_refusal
from sglang_ddtree.commit import TreePath, accepted, move
from sglang_ddtree.commit_graph import CommitGraphs
from sglang_ddtree.draft_graph import TreeSampler
from sglang_ddtree.hooks import assert_applied, stateless
from sglang_ddtree.metrics import StepLog
from sglang_ddtree.topk_head import candidates, drafted_rows
from sglang_ddtree.tree import TreeBatch, build_tree
from sglang_ddtree.verify import BRANCHING, full_mask, mask_of, verify_input

logger = logging.getLogger(__name__)


class DDTreeWorkerV2(DFlashWorkerV2):
    """DFLASH's worker with a tree between the drafter and the target.

    The drafter, its cache and the prefill are DFLASH's. `block_size` is the drafter's block,
    `tree.width` the rows of a verify pass; the two differ, and only the drafter's parts run with
    the block in the place of the engine's draft width.
    """

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        assert_applied()
        self.tree = tree_config(get_spec(), os.environ)
        with self._drafter_scope():
            super().__init__(server_args, gpu_id, nccl_port, target_worker)
        if heads := [
            name
            for name, there in (
                ("Domino", self._is_domino),
                ("LiLiCorr", self.lilicorr is not None),
                ("DFlash2 selector", self.selector is not None),
            )
            if there
        ]:
            raise DDTreeConfigError(
                f"DDTREE drafts with a plain DFlash model; this one has a {heads[0]} head, whose "
                "positions depend on each other. Use DFLASH with it"
            )
        self._plan_stream, self._plan_stream_ctx = get_plan_stream(self.device)
        self._fill_prefix = bool(get_exec().deterministic.enable_deterministic_inference)
        self._mask_blocks: Tensor | None = None
        self._commits: CommitGraphs | None = None
        self.steps = StepLog.from_environ(os.environ, self.tree)
        if torch.device(self.device).type == "cpu":
            cpu_sampling.install()

    def _drafter_scope(self) -> Any:
        """The engine's draft width and branching factor as the drafter's parts must see them."""
        return get_spec().override(
            speculative_num_draft_tokens=self.tree.block, speculative_eagle_topk=1
        )

    def init_attention_backends(self) -> None:
        with self._drafter_scope():
            super().init_attention_backends()
        runner = self.target_worker.model_runner
        verifier, _ = resolve_dflash_verify_mask_policy(runner.attn_backend)
        if refusal := window_refusal(runner.sliding_window_size, verifier):
            raise DDTreeConfigError(refusal)
        if (runner.sliding_window_size or 0) > 0:
            logger.warning("DDTREE: a window counts a tree's rows by index, not by depth")
        if mambaish_config(runner.model_config) is None:
            stateless(self.target_worker)
        if self._need_mamba_verify_commit:
            logger.warning("DDTREE: trees over linear attention layers were never measured here")

    def init_cuda_graphs(self) -> None:
        with self._drafter_scope():
            super().init_cuda_graphs()
        target = self.target_worker.model_runner.decode_cuda_graph_runner
        if self._draft_sampler is not None and target is not None:  # graphs are on for both
            self._commits = self._captured_commits(target.capture_bs)

    def _captured_commits(self, sizes: list[int]) -> CommitGraphs:
        """The end of a step for each batch size that has graphs."""

        def kept() -> list[Tensor]:
            # SGLang's helper replaces its workspace when a prefill needs a larger one.
            helper = self._fused_kv_helper
            rotary = [layer.self_attn.rotary_emb for layer in self.draft_model.layers]
            held = [*(vars(helper).values() if helper is not None else ())]
            held += [getattr(one, "cos_sin_cache", None) for one in rotary]
            return [value for value in held if isinstance(value, Tensor)]

        return CommitGraphs(
            self._commit,
            kept,
            sizes=sizes,
            front=self.tree.depth + 1,
            features=self._target_features(),
            dtype=self.target_worker.model_runner.dtype,
            device=torch.device(self.device),
        )

    def _target_features(self) -> int:
        """Columns of the hidden states that the target hands to the drafter."""
        fc = self.draft_model.fc
        return int(fc.input_size if self.draft_model.quantizable else fc.in_features)

    def prewarm_sampling(self) -> Any:
        return BaseSpecWorker.prewarm_sampling(self)

    def _defer_target_verify_gather(self) -> None:
        """The shared verify step needs whole rows of logits, so the gather is not put off."""

    def _validate_phase1_sampling_support(self, batch: Any) -> None:
        """Sampling is exact here; DFLASH's warning about its own fallback does not apply."""

    def _maybe_build_draft_sampler(self) -> TreeSampler | None:
        target = self.target_worker.model_runner
        head = unwrap_lora_layer(getattr(target.model, "lm_head", None))
        if head is None or not hasattr(head, "org_vocab_size"):
            return None
        sampler = TreeSampler(head, self.tree, backend=target.attn_backend)
        self.draft_model_runner.capture_head_hooks.append(sampler.begin)
        return sampler

    def forward_batch_generation(
        self,
        batch: Any,
        on_publish: Any = None,
        grammar_barrier: Any = None,
        pp_proxy_tensors: Any = None,
    ) -> GenerationBatchResult:
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            return super().forward_batch_generation(
                batch, on_publish=on_publish, pp_proxy_tensors=pp_proxy_tensors
            )
        if batch.forward_mode.is_idle():
            raise NotImplementedError("DDTREE has no idle step: attention data parallelism is off")
        if not isinstance(batch.spec_info, DFlashDraftInputV2):
            raise TypeError(f"DDTREE: a running batch carries {type(batch.spec_info).__name__}")
        return self._step(batch, batch.spec_info, on_publish, grammar_barrier)

    def _step(
        self, batch: Any, draft_input: Any, on_publish: Any, grammar_barrier: Any
    ) -> GenerationBatchResult:
        batch.seq_lens.record_stream(torch.get_device_module(self.device).current_stream())
        plan, block_ids, positions = self._window(batch, draft_input)
        backend = self.target_worker.model_runner.attn_backend
        flat = full_mask(batch, backend, self.tree.width, fill_prefix=self._fill_prefix)
        tree = self._draft(batch, draft_input, plan, block_ids, positions, flat)
        batch.spec_info = verify_input(tree, mask_of(tree, flat, backend), plan)
        result = run_eagle_verify(
            batch,
            target_worker=self.target_worker,
            req_to_token_pool=self.model_runner.req_to_token_pool,
            token_to_kv_pool_allocator=self.model_runner.token_to_kv_pool_allocator,
            plan_stream=self._plan_stream,
            plan_stream_ctx=self._plan_stream_ctx,
            topk=BRANCHING,
            num_draft_tokens=self.tree.width,
            device=self.device,
            metadata_ready_pre_pad=False,
            finalize_tree_path=False,  # done here, in few launches
            grammar_barrier=grammar_barrier,
        )
        self._finish(result, plan, positions)
        if on_publish is not None:
            on_publish(result.new_seq_lens)
        self.steps.record(tree, result)
        result.next_draft_input = make_draft_input_v2(
            bonus_tokens=result.next_draft_input.bonus_tokens, new_seq_lens=result.new_seq_lens
        )
        return result

    def _window(self, batch: Any, draft_input: Any) -> tuple[Any, Tensor, Tensor]:
        """The step's cache slots and positions [bs, width], and the drafter's block of tokens.

        One window serves both passes: the drafter writes the first `block` columns of its own
        cache, the target all of them. Its slots are reserved by the engine's draft width.
        """
        bs = len(batch.seq_lens)
        block_ids = self._blocks(bs)
        positions = torch.empty((bs, self.tree.width), dtype=torch.int64, device=self.device)
        plan = self.target_worker.model_runner.kv_index_translator.plan_uniform_extend(
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            seq_lens_cpu=(
                draft_input.nxt_kv_lens_cpu if batch.seq_lens_cpu is None else batch.seq_lens_cpu
            ),
            width=self.tree.width,
            positions_out=positions,
            anchor_src=draft_input.bonus_tokens,
            anchor_out=block_ids,
        )
        return plan, block_ids, positions

    def _blocks(self, bs: int) -> Tensor:
        """Blocks of mask tokens [bs, block]; column 0 is written at each step, in stream order."""
        if self._mask_blocks is None or self._mask_blocks.shape[0] < bs:
            self._mask_blocks = torch.full(
                (bs, self.tree.block), int(self._mask_token_id), device=self.device
            )
        return self._mask_blocks[:bs]

    def _draft(
        self,
        batch: Any,
        draft_input: Any,
        plan: Any,
        block_ids: Tensor,
        positions: Tensor,
        flat: Tensor | None,
    ) -> TreeBatch:
        """One pass of the drafter, and the trees of what it found, written into `flat` too."""
        bs, block = block_ids.shape
        forward_batch = self._draft_batch(batch, draft_input, block_ids, positions)
        translator = self.draft_model_runner.kv_index_translator
        plan.bind(forward_batch, translator, cols=slice(0, block))
        with (
            self._drafter_scope(),
            torch.inference_mode(),
            draft_tp_context(self.draft_parallel_layout),
        ):
            out = self.draft_model_runner.forward(forward_batch)
            sampler: TreeSampler | None = self._draft_sampler
            if sampler is not None and out.can_run_graph:
                return sampler.trees(batch.seq_lens, flat)
            hidden = out.logits_output.hidden_states
            if hidden is None:
                raise RuntimeError("DDTREE: the drafter returned no hidden states")
            ids, logprobs = candidates(
                drafted_rows(hidden[: bs * block], block), self._lm_head(), self.tree.topk
            )
        shape = (bs, block - 1, self.tree.topk)
        return build_tree(
            draft_input.bonus_tokens.view(-1), ids.view(shape), logprobs.view(shape),
            batch.seq_lens, budget=self.tree.budget, width=self.tree.width, mask_tail=flat,
        )  # fmt: skip

    def _draft_batch(
        self, batch: Any, draft_input: Any, block_ids: Tensor, positions: Tensor
    ) -> ForwardBatch:
        """The drafter's pass over [current token, masks]: all positions see each other."""
        bs, block = block_ids.shape
        if self._full_embed_gpu is not None:
            embeds = torch.nn.functional.embedding(block_ids, self._full_embed_gpu)
        else:
            embeds = unwrap_lora_layer(
                self.target_worker.model_runner.model.get_input_embeddings()
            )(block_ids)
        if self._noise_embed_scale != 1.0:
            embeds = embeds * self._noise_embed_scale
        # Bounds for planning: committed tokens and this block, or what is reserved.
        if batch.seq_lens_cpu is not None:
            seq_lens_cpu = batch.seq_lens_cpu.to(torch.int32) + block
        else:
            seq_lens_cpu = draft_input.nxt_kv_lens_cpu
        return ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=bs,
            input_ids=block_ids.flatten(),
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            out_cache_loc=None,
            seq_lens_sum=int(seq_lens_cpu.sum()),
            seq_lens_cpu=seq_lens_cpu,
            positions=positions[:, :block].reshape(-1),
            input_embeds=embeds.view(-1, embeds.shape[-1]),
            spec_algorithm=SpeculativeAlgorithm.DFLASH,
            spec_info=self._draft_block_spec_info,
            capture_hidden_mode=CaptureHiddenMode.NULL,
            num_token_non_padded=(
                torch.full((), bs * block, dtype=torch.int32, device=self.device)
                if enable_num_token_non_padded()
                else None
            ),
            global_num_token_non_padded_cpu=bs * block,
            can_run_decode_cuda_graph=batch.can_run_decode_cuda_graph,
        )

    def _lm_head(self) -> Any:
        return unwrap_lora_layer(self.target_worker.model_runner.model.lm_head)

    def _finish(self, result: GenerationBatchResult, plan: Any, positions: Tensor) -> None:
        """Move the accepted path to the front, in the target's cache and in the drafter's.

        The hidden states are read in this step: all graph sizes share one buffer, which the next
        pass of the target overwrites.
        """
        hidden = result.logits_output.hidden_states
        if hidden is None:
            raise RuntimeError("DDTREE: the target returned no hidden states")
        captured = None if self._commits is None else self._commits.of(len(positions))
        found = accepted(
            result.accept_index, result.next_token_ids, plan.write_virtual,
            self._draft_write_ids(plan), positions, result.accept_lens,
            room=None if captured is None else captured.path,
        )  # fmt: skip
        if captured is None:
            self._commit(found.path, hidden.index_select(0, found.path.rows))
        else:
            torch.index_select(hidden, 0, captured.path.rows, out=captured.hidden)
            captured.graph.replay()
        result.next_token_ids = found.tokens
        result.logits_output.hidden_states = None

    def _commit(self, path: TreePath, hidden: Tensor) -> None:
        """The target's keys and values of a path; its hidden states [bs * F, H] to the drafter."""
        move(path, self.model_runner.token_to_kv_pool_allocator)
        self._append_target_hidden_to_draft_kv_by_loc(
            target_hidden=hidden,
            cache_loc=path.places[3],
            cache_loc_2d=path.draft_slots,
            positions=path.positions,
            commit_lens=path.lens,
        )
