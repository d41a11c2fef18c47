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
from ddops.probe import Chain, collect, parse_facts
from ddops.probe.chain import Weights
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


def test_a_kernel_wheel_is_found_where_the_interpreter_would_take_it_from(tmp_path: Path) -> None:
    """On PYTHONPATH, as an editable or vendored wheel lies: not in site-packages."""
    wheel = tmp_path / "vendored" / "sgl_kernel"
    (wheel / "sm90").mkdir(parents=True)
    (wheel / "__init__.py").write_text("raise SystemExit('finding it must not import it')")
    (wheel / "sm90" / "common_ops.abi3.so").write_bytes(b"not an ELF file")
    script = (ROOT / "ddops/hostside/collect_env.py").read_text()
    elf = (ROOT / "ddops/hostside/collect_elf.py").read_text()
    code = f"{script}\nELF_SOURCE = {elf!r}\nprint(json.dumps(objects()))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(wheel.parent)},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert list(found) == ["sgl_kernel/sm90/common_ops.abi3.so"]
    assert "not a 64-bit" in found["sgl_kernel/sm90/common_ops.abi3.so"]["error"]


def test_weights_and_what_sizes_their_cache(tmp_path: Path) -> None:
    model, broken = tmp_path / "models" / "kimi", tmp_path / "models" / "broken"
    for folder in (model, broken):
        folder.mkdir(parents=True)
    (model / "a.safetensors").write_bytes(b"x" * 1000)
    (model / "b.safetensors").write_bytes(b"x" * 24)
    (model / "notes.txt").write_bytes(b"x" * 99)
    sizes = {"num_hidden_layers": 61, "kv_lora_rank": 512, "rope_scaling": {"a": 1}}
    (model / "config.json").write_text(json.dumps({"hidden_size": 7168, "text_config": sizes}))
    (broken / "config.json").write_text("[1, ")
    (broken / "w.safetensors").symlink_to("nowhere")
    facts = collect(LocalTransport("here"), sys.executable, str(tmp_path))
    assert Chain(facts).models == {
        str(model): Weights(
            1024, {"hidden_size": 7168, "num_hidden_layers": 61, "kv_lora_rank": 512}
        ),
        str(broken): Weights(None, {}),
    }
