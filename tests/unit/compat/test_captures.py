"""Real collections, redacted: one and two NVIDIA H200 in a virtual machine, driver 580.159.04.

`h200-engine` has SGLang 0.5.23 there with a kernel wheel and a torch that it does not pin, and the
results of `--prove`.

Captured on 2026-11-29 with the collector as it is. Left out: the kernel log, boot parameters,
ids. What a healthy machine of another kind than ours looks like must not be refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ddops.compat import Finding, Subject, judge_all
from ddops.model import Verdict
from ddops.probe import Chain, parse_facts

CAPTURES = Path(__file__).resolve().parents[2] / "fixtures" / "captures"


def findings(name: str) -> dict[str, Finding]:
    facts = parse_facts((CAPTURES / f"{name}.json").read_text())
    assert not facts.simulated
    return {f.check: f for f in judge_all(Subject(facts, "nvlink", "sglang"))}


@pytest.mark.parametrize("name", ["h200-1", "h200-2"])
def test_a_healthy_h200_is_not_refused(name: str) -> None:
    seen = findings(name)
    assert not [f.check for f in seen.values() if f.refuses]
    assert not [f.check for f in seen.values() if f.verdict is Verdict.FAIL]
    assert seen["DRV-03"].verdict is Verdict.PASS
    assert sum(f.verdict is Verdict.PASS for f in seen.values()) >= 15


def test_what_the_machine_did_not_show_is_unknown_and_never_pass() -> None:
    """No systemctl, no kernel log in the fixture, nothing proved: none of it may pass."""
    seen = findings("h200-2")
    for check in ("FAB-02", "GPU-04", "P2P-02", "P2P-03"):
        assert seen[check].verdict is Verdict.UNKNOWN, check


def test_a_setting_that_only_the_host_has_is_told() -> None:
    """NCCL_NVLS_ENABLE=0 stands in /etc/nccl.conf there."""
    assert findings("h200-2")["P2P-04"].verdict is Verdict.WARN
    assert "NCCL_NVLS_ENABLE" in findings("h200-2")["P2P-04"].seen


def test_one_gpu_is_no_fault_of_a_fabric() -> None:
    assert findings("h200-1")["FAB-04"].verdict is Verdict.UNKNOWN
    assert findings("h200-2")["FAB-04"].verdict is Verdict.PASS


def test_a_wheel_set_that_does_not_fit_is_refused_though_each_part_works() -> None:
    """Kernel wheel 0.4.5 beside torch 2.11: both run there, and SGLang 0.5.23 wants neither."""
    seen = findings("h200-engine")
    assert [f.check for f in seen.values() if f.refuses] == ["PY-02"]
    assert "sglang-kernel is 0.4.5, wanted ==0.4.10" in seen["PY-02"].seen
    for check in ("PY-03", "PY-04", "PY-05", "TOOL-02", "TOOL-06"):
        assert seen[check].verdict is Verdict.PASS, check
    facts = parse_facts((CAPTURES / "h200-engine.json").read_text())
    proved = Chain(facts).proved
    assert proved is not None
    assert proved["kernel"] == {"ok": True, "op": "silu_and_mul", "s": proved["kernel"]["s"]}
    targets = Chain(facts).probes["env"]["objects"]["sgl_kernel/sm90/common_ops.abi3.so"]["targets"]  # type: ignore[index]
    assert {"sm_90a", "sm_100a", "sm_103a", "sm_120a"} <= set(targets)


def test_a_proof_that_one_gpu_cannot_give_is_unknown_with_its_reason() -> None:
    assert findings("h200-engine")["FAB-06"].seen == "fewer than two GPUs"
