"""Correctable memory errors, remaps and NVLink counters between two looks of a soak.

The memory part changes the recording of two H200 (driver 580.159.04). The NVLink texts are MADE UP:
the wording is that which drivers print in public (three counters a link up to Hopper; packets,
recoveries and BER with NVLink 5), every number and id is ours.

To see it fail: let `_rise` in ddops/compat/counters_since.py say a warning where it says a fault.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddops.compat.counters_since import KEPT, compare
from ddops.compat.errors_since import COMMANDS, judge_errors
from ddops.deploy.climb import Climb, with_errors
from ddops.errors import GateFailed
from ddops.model import GateResult, Verdict
from ddops.probe import Facts, parse_facts
from ddops.probe.error_counts import Counters, link_counters, memory_counters, value_of
from tests.guards.source import ROOT

CAPTURE = ROOT / "tests" / "fixtures" / "captures" / "h200-2.json"
RAW = CAPTURE.read_text()
UUID = "GPU-00000000-0000-4000-8000-00000000000{}"
SOAK_S = 60.0

OLD = ("Replay Errors", "Recovery Errors", "CRC Errors")
NEW = (
    "Malformed packet Errors", "Buffer overrun Errors", "Rx Errors", "Rx remote Errors",
    "Rx General Errors", "Local link integrity Errors", "Tx discards",
    "Link recovery successful events", "Link recovery failed events",
    "Total link recovery events", "Effective Errors", "Symbol Errors",
)  # fmt: skip


def nvlink(
    names: tuple[str, ...] = OLD, gpus: int = 2, links: int = 2, said: dict[str, str] | None = None
) -> str:
    """MADE UP. `said` by `g0_l1_Replay_Errors`."""
    lines = []
    for g in range(gpus):
        lines.append(f"GPU {g}: NVIDIA H200 (UUID: {UUID.format(g)})")
        for n in range(links):
            for name in names:
                value = (said or {}).get(f"g{g}_l{n}_{name.replace(' ', '_')}", "0")
                lines.append(f"\t Link {n}: {name}: {value}")
            lines.append("")
    return "\n".join(lines)


def look(
    after_s: float = 0.0,
    memory: dict[str, str] | None = None,
    links: str | None = None,
    nvlink_rc: int | None = 0,
    smi_rc: int | None = 0,
) -> Facts:
    """The recording, `after_s` later, with lines of `-q` of the first GPU changed."""
    raw: Any = json.loads(RAW)
    raw["at"] += after_s
    for name in ("dmesg", "journal"):
        raw["commands"][name] = {"rc": 0, "out": "", "err": "", "why": ""}
    smi = raw["commands"]["smi_q"]
    smi["rc"], smi["why"] = smi_rc, "" if smi_rc is not None else "no answer within 10 s"
    head, *blocks = smi["out"].split("\nGPU 0000")
    for path, value in (memory or {}).items():
        blocks[0] = with_line(blocks[0], path, value)
    smi["out"] = "\nGPU 0000".join([head, *blocks])
    why = "" if nvlink_rc is not None else "no answer within 10 s"
    raw["commands"]["nvlink_errors"] = {
        "rc": nvlink_rc, "out": nvlink() if links is None else links, "err": "", "why": why,
    }  # fmt: skip
    return parse_facts(json.dumps(raw))


def with_line(text: str, path: str, value: str) -> str:
    """`Volatile/DRAM Correctable`: the first line of that key behind its heading."""
    heading, _, key = path.partition("/")
    lines, seen = text.splitlines(), False
    for i, line in enumerate(lines):
        seen = seen or line.strip() == heading
        if seen and line.strip().startswith(key):
            lines[i] = f"{line.partition(' :')[0]} : {value}"
            return "\n".join(lines)
    raise AssertionError(f"the recording has no {path}")


def judged(before: Facts, after: Facts, verdict: Verdict, *words: str) -> GateResult:
    found = judge_errors(before, after)
    assert found.verdict is verdict, found.message
    for part in words:
        assert part in found.message
    json.dumps(dict(found.evidence))
    return found


def memory(was: dict[str, str], now: dict[str, str], verdict: Verdict, *words: str) -> GateResult:
    return judged(look(memory=was), look(SOAK_S, memory=now), verdict, *words)


def links(was: str, now: str, verdict: Verdict, *words: str) -> GateResult:
    return judged(look(links=was), look(SOAK_S, links=now), verdict, *words)


def test_nothing_new_says_what_was_counted() -> None:
    found = judged(look(), look(SOAK_S), Verdict.PASS, "12 NVLink counters, none risen")
    kept: Any = found.evidence
    assert kept["memory"]["counted"] == 2 * 20 and kept["seconds"] == SOAK_S


C, A = "Volatile/DRAM Correctable", "Aggregate/DRAM Correctable"
ROWS, FAILED = "Remapped Rows/Pending", "Remapped Rows/Remapping Failure Occurred"


@pytest.mark.parametrize(
    ("was", "now", "verdict", "words"),
    [
        ({}, {C: "1"}, Verdict.WARN, "volatile DRAM Correctable rose by 1"),
        ({C: "7"}, {C: "9"}, Verdict.WARN, "rose by 2"),
        ({C: "7"}, {C: "7"}, Verdict.PASS, "none new"),
        ({}, {C: "5999"}, Verdict.WARN, "rose by 5999"),  # 60 s: just below 100 a second
        ({}, {C: "6000"}, Verdict.FAIL, "rose by 6000, 100 a second"),
        ({}, {A: "1"}, Verdict.WARN, "aggregate DRAM Correctable rose by 1"),
        ({}, {"Volatile/DRAM Uncorrectable": "1"}, Verdict.FAIL, "DRAM Uncorrectable rose by 1"),
        ({}, {"Aggregate/SRAM Uncorrectable SEC-DED": "1"}, Verdict.FAIL, "SEC-DED rose by 1"),
        ({}, {"Remapped Rows/Correctable Error": "1"}, Verdict.WARN, "Correctable Error rose"),
        ({}, {"Remapped Rows/Uncorrectable Error": "1"}, Verdict.FAIL, "Uncorrectable Error rose"),
        ({}, {ROWS: "Yes"}, Verdict.FAIL, "Remapped Rows Pending is set"),
        ({ROWS: "Yes"}, {ROWS: "Yes"}, Verdict.FAIL, "is set, as before the soak"),
        ({ROWS: "Yes"}, {}, Verdict.PASS, "none new"),
        ({}, {FAILED: "Yes"}, Verdict.FAIL, "Remapping Failure Occurred is set"),
        ({}, {"ECC Errors/Unrepairable Memory": "Yes"}, Verdict.FAIL, "Unrepairable Memory is"),
        ({}, {"ECC Errors/SRAM Threshold Exceeded": "Yes"}, Verdict.FAIL, "SRAM Threshold"),
        ({C: "5"}, {C: "0"}, Verdict.UNKNOWN, "went back from 5 to 0: the driver was loaded anew"),
        ({}, {C: "N/A"}, Verdict.UNKNOWN, "DRAM Correctable was 0 and is not told"),
        ({C: "N/A"}, {}, Verdict.UNKNOWN, "was not told and is 0"),
        ({C: "N/A"}, {C: "N/A"}, Verdict.PASS, "1 without ECC counters"),
        ({}, {ROWS: "N/A"}, Verdict.UNKNOWN, "Pending was False and is not told"),
        ({C: "[Unknown Error]"}, {C: "[Unknown Error]"}, Verdict.UNKNOWN, "[Unknown Error]"),
        ({}, {C: "-1"}, Verdict.UNKNOWN, "was 0 and is -1"),
        ({}, {C: "9" * 50}, Verdict.UNKNOWN, "was 0 and is 999"),
    ],
)
def test_memory(was: dict[str, str], now: dict[str, str], verdict: Verdict, words: str) -> None:
    memory(was, now, verdict, words)


def test_one_event_that_both_counters_have_is_told_once() -> None:
    found = memory({}, {C: "1", A: "1"}, Verdict.WARN, "volatile DRAM")
    assert "aggregate" not in found.message
    kept: Any = found.evidence
    assert len(kept["memory"]["rises"]) == 2


def test_what_fails_is_told_before_what_warns() -> None:
    found = memory({}, {C: "1", FAILED: "Yes"}, Verdict.FAIL, "Remapping Failure")
    kept: Any = found.evidence
    assert kept["memory"]["warnings"]


@pytest.mark.parametrize(
    ("names", "said", "verdict", "words"),
    [
        (OLD, {"g1_l0_Replay_Errors": "3"}, Verdict.WARN, "1 link 0: Replay Errors rose by 3"),
        (OLD, {"g0_l1_CRC_Errors": "5999"}, Verdict.WARN, "CRC Errors rose by 5999"),
        (OLD, {"g0_l1_CRC_Errors": "6000"}, Verdict.FAIL, "100 a second"),
        (OLD, {"g0_l1_Recovery_Errors": "1"}, Verdict.FAIL, "link 1: Recovery Errors rose by 1"),
        (OLD, {"g0_l0_CRC_Errors": "N/A"}, Verdict.UNKNOWN, "CRC Errors was 0 and is not told"),
        (NEW, {}, Verdict.PASS, "48 NVLink counters"),
        (NEW, {"g0_l0_Rx_Errors": "2"}, Verdict.WARN, "Rx Errors rose by 2"),
        (NEW, {"g0_l0_Symbol_Errors": "2"}, Verdict.WARN, "Symbol Errors rose by 2"),
        (NEW, {"g0_l0_Tx_discards": "1"}, Verdict.FAIL, "Tx discards rose by 1"),
        (NEW, {"g0_l0_Malformed_packet_Errors": "1"}, Verdict.FAIL, "Malformed"),
        (NEW, {"g0_l0_Link_recovery_successful_events": "1"}, Verdict.FAIL, "successful events"),
        (NEW, {"g0_l0_Link_recovery_failed_events": "1"}, Verdict.FAIL, "failed events"),
        (("Effective BER",), {"g0_l0_Effective_BER": "3e-12"}, Verdict.WARN, "from 0 to 3e-12"),
        (("Some new Counter",), {"g0_l0_Some_new_Counter": "99999"}, Verdict.WARN, "to 99999"),
        (("CRC FLIT Errors",), {"g0_l0_CRC_FLIT_Errors": "1"}, Verdict.WARN, "CRC FLIT Errors"),
    ],
)  # fmt: skip
def test_links(names: tuple[str, ...], said: dict[str, str], verdict: Verdict, words: str) -> None:
    links(nvlink(names), nvlink(names, said=said), verdict, words)


def test_links_in_words_that_nobody_knows_are_unknown() -> None:
    raw = nvlink(("FEC Errors - 0", "Raw BER Total"))
    links(raw, raw, Verdict.UNKNOWN, "names links, and no counter")


@pytest.mark.parametrize(
    "line", ["NVML: Unable to retrieve NVLink counters: Insufficient Permissions", "Unknown Error"]
)
def test_a_driver_that_complains_has_not_said_that_there_are_no_links(line: str) -> None:
    out = f"GPU 0: x (UUID: GPU-x)\n\t {line}\n"
    links(out, out, Verdict.UNKNOWN, f"nvidia-smi nvlink -e says: {line}")
    links(nvlink(), f"{nvlink()}\n{out}", Verdict.UNKNOWN, line)


def test_gpus_of_which_a_driver_tells_nothing_are_unknown() -> None:
    raw: Any = json.loads(json.dumps(dict(look().raw)))
    smi = raw["commands"]["smi_q"]
    smi["out"] = "".join(f"GPU 00000000:00:0{n}.0\n    Product Name : x\n" for n in (6, 7))
    judged(look(), parse_facts(json.dumps(raw)), Verdict.UNKNOWN, "no memory errors of GPU-")
    smi["out"] = smi["out"].replace("x\n", "x\n    ECC Errors : N/A\n    Remapped Rows : N/A\n")
    card = parse_facts(json.dumps(raw))
    judged(card, card, Verdict.PASS, "2 without ECC counters")


def test_a_warning_lets_a_start_pass_and_unknown_does_not() -> None:
    gate = GateResult("G6", Verdict.PASS, "soaked for 60 s", {})
    warned = with_errors(gate, look(), look(SOAK_S, memory={C: "1"}))
    assert warned.verdict is Verdict.WARN
    assert warned.message.startswith("soaked for 60 s; nothing that fails, but GPU-")
    climb: Any = SimpleNamespace(service=SimpleNamespace(host=SimpleNamespace(name="gpu1")))
    Climb._judge(climb, [gate, warned])
    unknown = with_errors(gate, look(), look(SOAK_S, smi_rc=None))
    with pytest.raises(GateFailed, match="gpu1: G6 UNKNOWN: soaked"):
        Climb._judge(climb, [warned, unknown])


def test_a_bit_error_rate_at_its_floor_is_none() -> None:
    floor = {f"g{g}_l{n}_Symbol_BER": "15e-255" for g in range(2) for n in range(2)}
    same = nvlink(("Symbol BER",), said=floor)
    links(same, same, Verdict.PASS, "4 NVLink counters")


def test_counters_that_were_reset_meanwhile_are_said() -> None:
    had = nvlink(said={"g0_l0_Replay_Errors": "4"})
    links(had, nvlink(), Verdict.UNKNOWN, "Replay Errors went back from 4 to 0")


def test_a_link_that_went_fails_and_one_that_came_warns() -> None:
    links(nvlink(links=2), nvlink(links=1), Verdict.FAIL, f"{UUID.format(0)} link 1 is gone")
    links(nvlink(links=1), nvlink(links=2), Verdict.WARN, "link 1 is new since the first look")


def test_links_that_are_all_inactive_now_are_gone() -> None:
    down = f"GPU 0: NVIDIA H200 (UUID: {UUID.format(0)})\n\t NVML: all links are inActive\n"
    links(nvlink(gpus=1), down, Verdict.FAIL, "link 0 is gone")


@pytest.mark.parametrize(
    ("out", "rc"),
    [
        ("", 0),  # as the recorded H200 without links answers `nvlink -s`
        ("GPU 0: x (UUID: GPU-x)\n\t NVML: no NVLink information: Not Supported\n", 3),
        ("NVML: Unable to retrieve Nvlink information as all links are inActive\n", 6),
        ("GPU 0: x (UUID: GPU-x)\n\t Link 0: <inactive>\n\t Link 1: <inactive>\n", 0),
    ],
)  # fmt: skip
def test_a_card_without_nvlink_is_said_and_no_fault(out: str, rc: int) -> None:
    judged(look(links=out, nvlink_rc=rc), look(SOAK_S, links=out, nvlink_rc=rc),
           Verdict.PASS, "no NVLink")  # fmt: skip


def test_a_gpu_that_vanished_fails_and_its_links_are_not_told_too() -> None:
    raw: Any = json.loads(json.dumps(dict(look(SOAK_S, links=nvlink(gpus=1)).raw)))
    raw["gpus"].pop()
    smi = raw["commands"]["smi_q"]
    smi["out"] = smi["out"][: smi["out"].rindex("\nGPU 0000")]
    found = judged(look(), parse_facts(json.dumps(raw)), Verdict.FAIL, f"{UUID.format(1)} is gone")
    assert found.message == f"{UUID.format(1)} is gone"


def test_a_gpu_without_uuid_or_counters_does_not_stand_for_another() -> None:
    raw: Any = json.loads(json.dumps(dict(look().raw)))
    for row in raw["gpus"]:
        row["uuid"] = None
    before = parse_facts(json.dumps(raw))
    raw["gpus"].pop()
    judged(before, parse_facts(json.dumps(raw)), Verdict.FAIL, "00000000:00:07.0 is gone")


@pytest.mark.parametrize("first", [True, False])
def test_a_tool_that_hung_at_either_look_is_unknown(first: bool) -> None:
    hung = look(0.0 if first else SOAK_S, smi_rc=None)
    other = look(SOAK_S if first else 0.0)
    pair = (hung, other) if first else (other, hung)
    judged(*pair, Verdict.UNKNOWN, "nvidia-smi -q tells of no GPU (no answer within 10 s)")
    hung = look(0.0 if first else SOAK_S, nvlink_rc=None)
    pair = (hung, other) if first else (other, hung)
    judged(*pair, Verdict.UNKNOWN, "nvlink -e does not answer (no answer within 10 s)")


def test_a_collection_of_an_older_ddops_has_not_asked() -> None:
    raw: Any = json.loads(json.dumps(dict(look().raw)))
    del raw["commands"]["nvlink_errors"]
    judged(parse_facts(json.dumps(raw)), look(1), Verdict.UNKNOWN, "it was not asked")


def test_a_clock_that_went_back_gives_no_rate() -> None:
    judged(look(SOAK_S), look(memory={C: "1"}), Verdict.UNKNOWN, "clock does not say")
    judged(look(SOAK_S), look(), Verdict.PASS)
    judged(look(SOAK_S), look(memory={FAILED: "Yes"}), Verdict.FAIL)


def test_a_burst_within_an_instant_is_no_rate_of_thousands() -> None:
    judged(look(), look(0.1, memory={C: "99"}), Verdict.WARN, "rose by 99")


def test_more_than_fits_is_counted() -> None:
    said = {f"g0_l{n}_Recovery_Errors": "1" for n in range(100)}
    found = links(nvlink(links=100), nvlink(links=100, said=said), Verdict.FAIL, "and 94 more")
    kept: Any = found.evidence
    assert len(kept["nvlink"]["rises"]) == KEPT and kept["nvlink"]["rises_left_out"] == 36


ODD = [
    "", "\x00\x01\xff\ufffd" * 500, "GPU 0", "GPU 0: x\n\t Link",
    "\x1b[31mGPU 0: y (UUID: z)\x1b[0m",
    "GPU 00000000:00:06.0\n" * 3, "GPU 0: a\n\t Link 0: Replay Errors: " + "9" * 10_000,
    "GPU 0: a\n" + "\t Link 0: Replay Errors: 0\n" * 50_000, ":" * 100_000,
    "GPU 0: " + "(" * 50_000, "Link 0: Replay Errors: 1", nvlink()[:-5],
    "GPU \u0663: a\n\t Link \u0663: Replay Errors: \u0663",
]  # fmt: skip


@pytest.mark.parametrize("text", ODD)
def test_odd_text_never_raises_and_never_passes(text: str) -> None:
    found = link_counters(text)
    assert all(isinstance(v, int | float | str | None) for v in found.values.values())
    memory_counters(text, {})
    compare(found, found, 1.0)
    assert judge_errors(look(), look(links=text)).verdict is not Verdict.PASS


@pytest.mark.parametrize(
    ("said", "value"),
    [("3", 3), ("15e-255", 15e-255), ("Yes", True), ("N/A", None), ("[N/A]", None), ("", None),
     ("\u0663", "\u0663"), ("-1", "-1"), ("1e99999", "1e99999"), ("ERR!", "ERR!")],
)  # fmt: skip
def test_a_value(said: str, value: object) -> None:
    assert value_of(said) == value


def test_places_without_counters_compare() -> None:
    assert compare(Counters((), {}), Counters((), {}), None).faults == []


def test_the_collector_asks_for_links_only_when_told_and_leaves_out_the_noise(
    tmp_path: Path,
) -> None:
    """A stand-in nvidia-smi, MADE UP, that hangs for everything but `nvlink -e`."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\n"
        'if [ "$*" = "nvlink -e" ]; then\n'
        "  printf 'GPU 0: x (UUID: GPU-x)\\n\\t Link 0: FEC Errors - 0: 9\\n"
        "\\t Link 0: Tx packets: 7\\n\\t Link 0: Symbol Errors: 1\\n'\n"
        "  exit 0\nfi\nexec sleep 30\n"
    )
    smi.chmod(0o755)
    script = ROOT / "ddops" / "hostside" / "collect.py"
    words = [f"--only={name}" for name in COMMANDS]
    done = subprocess.run(
        [sys.executable, str(script), "--engine-dir", str(tmp_path), "--time-limit", "1", *words],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=True, timeout=25,
    )  # fmt: skip
    facts = parse_facts(done.stdout)
    ran: Any = facts.raw["commands"]
    assert set(ran) == set(COMMANDS)
    assert ran["smi_q"]["rc"] is None and "no answer within 1 s" in ran["smi_q"]["why"]
    assert link_counters(ran["nvlink_errors"]["out"]).values == {
        ("GPU-x link 0", "Symbol Errors"): 1
    }
    assert "FEC" not in ran["nvlink_errors"]["out"]
    assert judge_errors(facts, facts).verdict is Verdict.UNKNOWN
