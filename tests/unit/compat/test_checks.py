"""Checks of the inventory, blocking, the gate of a deploy, kept proofs, files of device code.

To see it fail: let `refuses` of ddops/compat/model.py take every UNKNOWN for a refusal.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddops.compat import Finding, Subject, judge_all
from ddops.hostside import collect_elf
from ddops.model import Verdict
from tests.guards.source import ROOT
from tests.unit.compat import hosts


def of(kind: str, changes: dict[str, Any] | None = None, **more: Any) -> dict[str, Finding]:
    raw = hosts.changed(hosts.host(kind), changes or {})
    subject = Subject(hosts.facts(raw), hosts.KINDS[kind]["host_class"], "sglang", **more)
    return {f.check: f for f in judge_all(subject)}


def test_the_inventory_s_own() -> None:
    bad = of(
        "pcie",
        {"python|version": "3.9.2", "disk|free_bytes": 1 << 30, "gpus": []},
        pinned_gpus=("GPU-x",),
    )
    for check in ("HOST-PY", "HOST-DISK", "GPU-LIST"):
        assert bad[check].verdict is Verdict.FAIL
        assert bad[check].refuses
    assert bad["GPU-PINS"].verdict is Verdict.SKIP
    assert "GPU-LIST" in bad["GPU-PINS"].seen
    pins = of("pcie", pinned_gpus=("GPU-x",))
    assert pins["GPU-PINS"].verdict is Verdict.FAIL
    raw = hosts.host("b300")
    found = judge_all(Subject(hosts.facts(raw), "pcie", "sglang"))
    assert next(f for f in found if f.check == "GPU-CLASS").verdict is Verdict.FAIL


def test_one_root_cause_is_one_failure() -> None:
    found = of("b300", {"files|proc/modules": "ext4 1 0"})
    failed = [f.check for f in found.values() if f.verdict is Verdict.FAIL]
    assert failed == ["DRV-01"]
    assert "blocked by DRV-01" in found["DRV-07"].seen
    assert "blocked by DRV-01" in found["P2P-02"].seen, "through DRV-07"


def test_a_gpu_nobody_knows_is_unknown() -> None:
    found = of("b300", {"gpus|*|compute_cap": "13.0"})
    assert found["GPU-CLASS"].verdict is Verdict.UNKNOWN
    assert "table ends at" in found["GPU-CLASS"].seen
    for check in ("DRV-04", "TOOL-06", "TOOL-02", "FAB-02"):
        assert found[check].verdict is Verdict.UNKNOWN, check


@pytest.mark.parametrize("kind", ["pcie", "b300"])
def test_a_deploy_is_not_stopped_by_what_nobody_has_asked(kind: str) -> None:
    raw = hosts.changed(hosts.host(kind), {"probes|proved": "__absent__", "commands|dmesg": {}})
    subject = Subject(hosts.facts(raw), hosts.KINDS[kind]["host_class"], "sglang")
    everything = judge_all(subject)
    assert [f for f in everything if f.verdict is Verdict.UNKNOWN]
    assert not [f for f in everything if f.refuses]


def test_a_deploy_is_stopped_by_a_blocker_and_by_a_missing_required_answer() -> None:
    raw = hosts.changed(hosts.host("pcie"), {"gpus": "__null__", "commands|smi_list": {}})
    found = judge_all(Subject(hosts.facts(raw), "pcie", "sglang"))
    assert "GPU-LIST" in [f.check for f in found if f.verdict is Verdict.UNKNOWN and f.refuses]


def test_a_proof_of_another_chain_is_no_proof() -> None:
    raw = hosts.host("pcie")
    raw["probes"]["proved"]["digest"] = hosts.facts(raw).chain_digest
    assert of("pcie", {"probes|proved": raw["probes"]["proved"]})["P2P-02"].verdict is Verdict.PASS
    changed = of(
        "pcie", {"probes|proved": raw["probes"]["proved"], "probes|env|packages|torch": "2.13.0"}
    )
    assert changed["P2P-02"].verdict is Verdict.UNKNOWN


def test_the_digest_keeps_still() -> None:
    first, later = hosts.host("pcie"), hosts.host("pcie")
    later["gpus"][0] |= {"temperature.gpu": "80", "memory.used": "9000"}
    later["at"] = 99
    assert hosts.facts(first).digest == hosts.facts(later).digest
    later["gpus"][0]["driver_version"] = "590.1"
    assert hosts.facts(first).digest != hosts.facts(later).digest


def look(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = collect_elf.look(str(file))  # type: ignore[no-untyped-call]
    return found


def elf(fatbin: bytes) -> bytes:
    """A 64-bit ELF file with one section of device code."""
    names = b"\0.nv_fatbin\0.shstrtab\0"
    offset = 64
    table = offset + len(fatbin) + len(names)
    head = (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, table, 0, 64, 0, 0, 64, 3, 2)
    )
    rows = [
        (0, 0, 0, 0),
        (1, 1, offset, len(fatbin)),
        (12, 3, offset + len(fatbin), len(names)),
    ]
    return (
        head
        + fatbin
        + names
        + b"".join(
            struct.pack("<IIQQQQIIQQ", n, k, 0, 0, at, size, 0, 0, 0, 0) for n, k, at, size in rows
        )
    )


def entry(
    kind: int, arch: int, flags: int, isa: tuple[int, int] = (9, 0), layout: int = 0x101
) -> bytes:
    head = struct.pack("<HHIQIIHHI", kind, layout, 64, 8, 0, 0, isa[1], isa[0], arch)
    return head + struct.pack("<QQ", 0, flags) + bytes(16) + b"\xaa" * 8


def fatbin(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


@pytest.mark.parametrize(
    ("data", "targets"),
    [
        (fatbin(entry(2, 100, 0x01000011)), ["sm_100"]),
        (fatbin(entry(2, 100, 0x01100011), entry(2, 120, 0x01200011)), ["sm_100a", "sm_120f"]),
        (fatbin(entry(1, 120, 0x8011)), ["compute_120@9.0"]),
        (fatbin(entry(2, 90, 0x11)) + bytes(16) + fatbin(entry(2, 80, 0x11)), ["sm_80", "sm_90"]),
        (b"", []),
    ],
)
def test_device_code_is_read_from_files(tmp_path: Path, data: bytes, targets: list[str]) -> None:
    file = tmp_path / "x.so"
    file.write_bytes(elf(data))
    found = look(file)
    assert found["error"] is None
    assert found["targets"] == targets


@pytest.mark.parametrize(
    "data",
    [
        b"not an elf file at all, but long enough to be one" * 4,
        elf(fatbin(entry(7, 100, 0))),
        elf(fatbin(entry(2, 100, 0, layout=0x202))),
        elf(fatbin(entry(2, 9999, 0))),
        elf(b"\x01" * 64),
        elf(fatbin(entry(2, 100, 0)))[:90],
    ],
)
def test_what_is_laid_out_otherwise_is_an_error_and_no_target(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "x.so"
    file.write_bytes(data)
    found = look(file)
    assert found["error"]
    assert found["targets"] is None


def test_the_reference_is_fresh() -> None:
    tool = ROOT / "tools" / "gen_checks_reference.py"
    done = subprocess.run([sys.executable, str(tool), "--check"], cwd=ROOT, check=False, timeout=60)
    assert done.returncode == 0, "stale: .venv/bin/python tools/gen_checks_reference.py"
