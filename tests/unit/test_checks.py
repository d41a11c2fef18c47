"""The gate of a deploy on little evidence: what is judged unfit, and what must not be.

The chain itself: tests/unit/compat.
"""

from __future__ import annotations

import dataclasses

import pytest

from ddops.compat import Finding, Launch, Subject, judge_all
from ddops.model import Verdict
from ddops.probe import Disk, Facts, Gpu

GPU = Gpu(0, "RTX PRO 6000", "GPU-1", "12.0", 97000, "580.82.07")
WELL = Facts(
    simulated=False, hostname="box", os="Debian 12", arch="x86_64", glibc="2.36",
    python=(3, 11, 2), can_venv=True, disk=Disk("/opt/ddops", True, True, 1 << 40),
    gpus=(GPU, dataclasses.replace(GPU, index=1, uuid="GPU-2")), driver="580.82.07",
    driver_open=True, tools={}, unread={}, raw={},
)  # fmt: skip


def judged(kind: str = "pcie", env: str = "sglang", pins: tuple[str, ...] = (),
           launch: Launch | None = None, **facts: object) -> dict[str, Finding]:  # fmt: skip
    seen = dataclasses.replace(WELL, **facts)  # type: ignore[arg-type]
    return {f.check: f for f in judge_all(Subject(seen, kind, env, pins, launch=launch))}


def verdicts(*args: str, **facts: object) -> dict[str, Verdict]:
    return {k: f.verdict for k, f in judged(*args, **facts).items()}  # type: ignore[arg-type]


def gpus(**changes: object) -> tuple[Gpu, ...]:
    return (dataclasses.replace(GPU, **changes),)  # type: ignore[arg-type]


def test_a_fit_host_passes() -> None:
    found = judged(pins=("GPU-2",))
    assert not [f.check for f in found.values() if f.refuses or f.verdict is Verdict.FAIL]
    seen = {k: f.verdict for k, f in found.items()}
    for check in ("HOST-01", "HOST-PY", "HOST-DISK", "GPU-LIST", "GPU-CLASS", "GPU-PINS"):
        assert seen[check] is Verdict.PASS


@pytest.mark.parametrize(
    ("check", "verdict", "facts"),
    [
        ("HOST-01", Verdict.FAIL, {"arch": "aarch64"}),
        ("HOST-01", Verdict.FAIL, {"glibc": "2.31"}),
        ("HOST-01", Verdict.PASS, {"glibc": "2.34"}),
        ("HOST-01", Verdict.PASS, {"glibc": "3.0"}),
        ("HOST-01", Verdict.UNKNOWN, {"glibc": None}),
        ("HOST-01", Verdict.UNKNOWN, {"glibc": "musl"}),
        ("HOST-PY", Verdict.FAIL, {"python": (3, 9, 18)}),
        ("HOST-PY", Verdict.FAIL, {"can_venv": False}),
        ("HOST-DISK", Verdict.FAIL, {"disk": Disk("/opt/ddops", True, True, 1 << 30)}),
        ("HOST-DISK", Verdict.FAIL, {"disk": Disk("/opt/ddops", True, False, 1 << 40)}),
        ("GPU-LIST", Verdict.UNKNOWN, {"gpus": None}),
        ("GPU-LIST", Verdict.FAIL, {"gpus": ()}),
        ("GPU-CLASS", Verdict.FAIL, {"gpus": gpus(compute_cap="10.3")}),
        ("GPU-CLASS", Verdict.UNKNOWN, {"gpus": gpus(compute_cap=None)}),
    ],
)
def test_one_thing_wrong(check: str, verdict: Verdict, facts: dict[str, object]) -> None:
    assert verdicts(**facts)[check] is verdict


def test_what_hangs_on_a_failed_check_is_skipped_not_failed() -> None:
    seen = verdicts(gpus=())
    assert {seen[c] for c in ("GPU-CLASS", "GPU-PINS")} == {Verdict.SKIP}


def test_too_few_gpus_for_the_launch() -> None:
    two, four = (Launch(("--tp-size", n), engine="sglang-0.5.23") for n in ("2", "4"))
    assert judged(launch=two)["RUN-07"].verdict is Verdict.UNKNOWN, "the weights are not known"
    assert judged(launch=four)["RUN-07"].verdict is Verdict.FAIL
    assert judged(launch=four)["RUN-07"].refuses


def test_a_launch_for_gpus_is_refused_where_no_gpu_is_judged() -> None:
    """Everything about GPUs is SKIP on a host of class cpu, which must not read as fit."""
    plain = Launch(("--tp-size", "1"), engine="sglang-0.5.23")
    found = judged("cpu", "sim", launch=plain, gpus=())["RUN-02"]
    assert (found.verdict, found.refuses) == (Verdict.FAIL, True)
    assert "for GPUs" in found.seen
    assert "device" in found.mend
    unset = judged("cpu", "sglang", launch=plain)["RUN-02"]
    assert (unset.verdict, "of class cpu with 2" in unset.seen) == (Verdict.FAIL, True)
    assert "`class`" in unset.mend
    for launch in (
        Launch(("--device", "cpu", "--attention-backend", "torch_native"), engine="sglang-0.5.23"),
        Launch(("--tp-size", "1"), {"SGLANG_USE_CPU_ENGINE": "1"}, engine="sglang-0.5.23"),
    ):
        fit = judged("cpu", "sglang-cpu", launch=launch, gpus=())
        assert not [f.check for f in fit.values() if f.refuses]
    assert judged(launch=plain)["RUN-02"].verdict is Verdict.PASS


def test_pins() -> None:
    assert verdicts()["GPU-PINS"] is Verdict.INFO
    assert verdicts(pins=("GPU-9",))["GPU-PINS"] is Verdict.FAIL


def test_a_cpu_host_is_asked_for_no_gpu() -> None:
    found = judged("cpu", "sglang-cpu", gpus=None)
    assert not [f.check for f in found.values() if f.refuses]
    assert found["GPU-LIST"].verdict is Verdict.SKIP


def test_the_stand_in_runs_on_an_old_c_library() -> None:
    assert verdicts("cpu", "sim", glibc="2.28")["HOST-01"] is Verdict.PASS
