"""A recommendation as a profile that can be deployed, on record with its runs."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from ddops.command import Redactor
from ddops.config import find_project
from ddops.inventory import load
from ddops.ledger import Cell, Device, Identity, Ledger, NewRun, Status
from ddops.model import GateResult, Verdict, digest
from tests.ledgers import START
from tests.unit.cli_support import Run, runner

LEDGER = Path(".ddops") / "ledger.db"
LAUNCH = {"tp-size": 8, "attention-backend": "triton", "list": ["a", 'b"\\']}


def measured(device: Device = Device.GPU, launches: int = 6) -> list[str]:
    """A tree and an autoregressive server at one request at once, as a sweep records them."""
    LEDGER.parent.mkdir(mode=0o700, exist_ok=True)
    ids = []
    with Ledger.open(LEDGER, redactor=Redactor()) as book:
        book.add_host("box", {})
        for name, algorithm, budget, tps in (("ar", "none", None, 98.0), ("k26-tree", "DDTREE", 8,
                                                                          150.0)):  # fmt: skip
            release = digest(name)
            spec = {"argv": [], "env": {}, "secret_env": {"HF_TOKEN": "env:HF"}}
            book.add_release(release, service="k26", spec=spec, at=START)
            vary = {
                "release": release, "engine": "sglang-0.5.23", "algorithm": algorithm,
                "budget": budget, "topk": 4 if budget else None, "block": 8 if budget else None,
                "launch": LAUNCH, "env": {"NCCL_IB_DISABLE": "1"},
            }  # fmt: skip
            fix = {"host": "box", "host_class": "pcie", "concurrency": 1, "graph": False,
                   "overlap": True, "model": "k26"}  # fmt: skip
            cell = Cell(suite="sweep", vary=vary, fix=fix, service="k26", label=f"{name} C=1",
                        concurrency=1)  # fmt: skip
            book.add_cell(cell, at=START)
            for n in range(launches):
                op, nonce = f"{name}-{n}", f"{name}-n{n}"
                book.add_deployment(
                    op, service="k26", release=release, host="box", by="t", at=START
                )
                book.add_launch(nonce, deployment=op, host="box", release=release, started=START)
                gate = book.add_gate(
                    GateResult("exactness", Verdict.PASS, ""), deployment=op, launch=nonce, at=START
                )
                ids.append(
                    book.add_run(
                        NewRun(
                            cell=cell.key, launch=nonce, gates=(gate,), status=Status.VALID,
                            identity=Identity.PROVEN, device_class=device, device="8x GPU",
                            started=START, ended=START, concurrency=1, requests=9,
                            output_tps=tps + n / 10,
                        )
                    )
                )  # fmt: skip
    return ids


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    return runner(tmp_path, monkeypatch, capfd)


def test_a_written_profile_is_a_profile(run: Run) -> None:
    ids = measured()
    Path("ddops.toml").touch()
    done = run("recommend", "--concurrency", "1", "--write", "one-user")
    assert done.code == 0, done.err
    path = Path("inventory/profiles/one-user.toml")
    text = path.read_text(encoding="utf-8")
    made = load(find_project(Path())).profiles["one-user"]
    assert (made.spec.algorithm, made.spec.budget, made.spec.topk, made.spec.block) == (
        "DDTREE", 8, 4, 8,
    )  # fmt: skip
    assert dict(made.launch) == {**LAUNCH, "list": tuple(LAUNCH["list"]),  # type: ignore[arg-type]
                                 "disable-cuda-graph": True}  # fmt: skip
    assert dict(made.env) == {"NCCL_IB_DISABLE": "1"}
    assert made.evidence.status == "measured" and set(made.evidence.runs) == set(ids)
    assert "# proven: better than all others" in text and "over ar: 98.2 tok/s (better)" in text
    assert "HF_TOKEN" in text and "HF_TOKEN" in done.err, "what is not in the ledger is named"
    again = run("recommend", "--concurrency", "1", "--write", "one-user")
    assert again.code == 2 and "is there already" in again.err
    assert path.read_text(encoding="utf-8") == text


def test_it_falls_with_its_runs(run: Run) -> None:
    ids = measured()
    assert run("recommend", "--concurrency", "1", "--write", "one-user").code == 0
    done = run("ledger", "retract", "--run", ids[-1], "--reason", "mask", "-y", "--json")
    (fallen,) = done.document["data"]["findings"]
    assert fallen["kind"] == "recommendation" and fallen["subject"] == "k26 at 1"
    assert fallen["text"].startswith("k26-tree at 1: proven")


@pytest.mark.parametrize(("device", "status"), [(Device.SIM, "untested"), (Device.CPU, "measured")])
def test_what_was_not_measured_on_a_gpu_says_so(run: Run, device: Device, status: str) -> None:
    measured(device, launches=4)
    assert run("recommend", "--concurrency", "1", "--write", "p").code == 0
    text = Path("inventory/profiles/p.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text)["evidence"]["status"] == status
    assert "says nothing about a GPU" in text and device.value in text


def test_a_profile_is_of_one_population(run: Run) -> None:
    measured(Device.GPU, 4)
    measured_again = Path(".ddops/gpu.db")
    LEDGER.rename(measured_again)
    measured(Device.CPU, 4)
    with Ledger.open(LEDGER, redactor=Redactor()) as book:
        book.merge(measured_again)
    done = run("recommend", "--concurrency", "1", "--write", "p")
    assert done.code == 2 and "there are 2" in done.err
    table = run("recommend", "--json").document["data"]["populations"]
    assert [p["device_class"] for p in table] == ["gpu", "cpu"], "never ranked together"
