"""DDTREE as SGLang's registry sees it."""

from __future__ import annotations

import logging
import os
from typing import Any

from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from sglang_ddtree import compat
from sglang_ddtree.args import DDTreeConfigError, refusals, tree_config
from sglang_ddtree.plugin import misfit

logger = logging.getLogger(__name__)

#: As DFLASH sets it: a verify pass costs `width` rows a request.
DEFAULT_MAX_RUNNING_REQUESTS = 48


class DDTreeAlgo(CustomSpecAlgo):
    """Answers the engine's questions about the algorithm.

    To the scheduler, the caches and the drafter's model it is DFLASH; only the verify pass is wider
    and has a tree's mask. `CustomSpecAlgo` of 0.5.23 lacks four methods that the engine calls on
    every algorithm (create_future_map and what follows it here).
    """

    def is_dflash(self) -> bool:
        return True

    def is_dflash_family(self) -> bool:
        return True

    def supports_target_verify_for_draft(self) -> bool:
        return True

    def supports_mixed_chunk(self) -> bool:
        return True

    def supports_grammar_overlap(self) -> bool:
        return True

    def supports_prefill_shared_read_done(self) -> bool:
        return True

    def has_draft_kv(self) -> bool:
        """No: the block is drafted in one pass, so no branch needs pages of its own."""
        return False

    def get_num_tokens_per_req_for_target_verify(
        self, num_draft_tokens: int, is_draft_worker: bool
    ) -> int:
        """Rows a request of one pass: the target's graphs and masks are as wide as the tree, the
        drafter's as its block. Sizing both by the block sends every verify pass to eager mode."""
        if is_draft_worker:
            return int(get_spec().speculative_dflash_block_size)
        return num_draft_tokens

    def make_capture_verify_input(
        self, *, custom_mask: Any, num_tokens_per_req: int, is_draft_worker: bool
    ) -> Any:
        """What verify graphs are captured with. A patched engine asks; the hooks ask in others."""
        if is_draft_worker:
            return None
        from sglang_ddtree.verify import capture_input

        return capture_input(custom_mask, width=num_tokens_per_req)

    def create_future_map(self, *args: Any, **kwargs: Any) -> Any:
        return SpeculativeAlgorithm.create_future_map(self, *args, **kwargs)

    def need_topk(self) -> bool:
        return False

    def carries_draft_hidden_states(self) -> bool:
        return False

    def get_platform_worker_cls(self) -> type | None:
        return None

    def handle_server_args(self, server_args: Any) -> None:
        """Refuse what cannot be served, then fix the numbers. Writes are recorded by the engine."""
        from sglang.srt.arg_groups.overrides import use_mla_backend

        if moved := compat.problems():
            raise DDTreeConfigError(misfit(moved))
        found = list(refusals(server_args, uses_mla=use_mla_backend(server_args)))
        if found:
            raise DDTreeConfigError("\n".join(found))
        config = tree_config(server_args, os.environ, lambda: _drafter_block(server_args))
        server_args.speculative_num_draft_tokens = config.width
        server_args.speculative_eagle_topk = config.topk
        server_args.speculative_dflash_block_size = config.block
        # Not EAGLE's steps: the engine sizes caches by max(steps * topk, width).
        server_args.speculative_num_steps = 1
        if server_args.max_running_requests is None:
            server_args.max_running_requests = DEFAULT_MAX_RUNNING_REQUESTS
        if server_args.device == "cpu" and not server_args.disable_overlap_schedule:
            server_args.disable_overlap_schedule = True
            logger.warning("DDTREE: no overlap scheduling of speculation on a CPU in this engine")
        logger.info(
            "DDTREE: budget %d, topk %d, block %d, verify width %d",
            config.budget, config.topk, config.block, config.width,
        )  # fmt: skip


def _drafter_block(server_args: Any) -> int | None:
    """The block size in the drafter's own configuration."""
    import json

    from sglang.srt.speculative.dflash_utils import parse_dflash_draft_config
    from sglang.srt.utils.hf_transformers_utils import get_config

    config = get_config(
        server_args.speculative_draft_model_path,
        trust_remote_code=server_args.trust_remote_code,
        revision=server_args.speculative_draft_model_revision,
        model_override_args=json.loads(server_args.json_model_override_args),
    )
    block = parse_dflash_draft_config(draft_hf_config=config).resolve_block_size(default=None)
    return None if block is None else int(block)
