"""The collector itself, run as a host would run it: parts, recorded answers, its own limits.

To see it fail: let `recorded` in ddops/hostside/collect.py return None.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddops.compat import Subject, judge_all
from ddops.model import Verdict
from ddops.probe import collect, parse_facts
from ddops.transport import LocalTransport
from tests.guards.source import ROOT

LAB = ROOT / "lab" / "hosts"


def recorded(kind: str, tmp_path: Path) -> str:
    (tmp_path / "bin").mkdir(exist_ok=True)
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.write_text((LAB / "bin" / "nvidia-smi").read_text())
    smi.chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "DDOPS_RECORDED_SMI": str(LAB / kind / "nvidia-smi.json"),
    }
    script = ROOT / "ddops" / "hostside" / "collect.py"
    done = subprocess.run(
        [sys.executable, str(script), "--root", str(LAB / kind / "root"),
         "--engine-dir", str(tmp_path)],
        env=env, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize(("kind", "host_class"), [("pcie", "pcie"), ("b300", "nvlink")])
def test_a_recorded_host_answers_for_itself_alone(
    kind: str, host_class: str, tmp_path: Path
) -> None:
    facts = parse_facts(recorded(kind, tmp_path))
    assert facts.simulated
    findings = {f.check: f for f in judge_all(Subject(facts, host_class, "sglang"))}
    assert not [f for f in findings.values() if f.refuses]
    assert findings["DRV-03"].verdict is Verdict.PASS
    assert findings["PCI-04"].verdict is (Verdict.UNKNOWN if kind == "pcie" else Verdict.SKIP)
    assert findings["FAB-04"].verdict is (Verdict.SKIP if kind == "pcie" else Verdict.PASS)
    assert findings["P2P-02"].verdict is Verdict.UNKNOWN, "nothing was ever run on it"


def test_this_machine_in_one_round_trip(tmp_path: Path) -> None:
    facts = collect(LocalTransport("here"), sys.executable, str(tmp_path))
    probes: Any = facts.raw["probes"]
    assert {"cuda", "environ", "toolkits", "pci"} <= set(probes)
    assert "no engine environment" in facts.unread["env"]
    assert not [k for k in probes["environ"] if "TOKEN" in k or "KEY" in k]
    assert json.dumps(facts.raw)
