"""Parsers on odd input: cut, shuffled, translated, foreign. No crash, and no answer made up.

To see it fail: take the `rc == 0` out of `Chain.out`, or index a split line in ddops/probe/text.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddops.compat import Subject, judge_all
from ddops.model import Verdict
from ddops.probe import text as t
from ddops.probe.version import branch, minor, older, parse, satisfies
from tests.unit.compat import hosts

SAMPLES = {
    kind: {k: v["out"] for k, v in hosts.host(kind)["commands"].items()}
    for kind in ("pcie", "b300")
}
PARSERS = (
    t.parse_banner,
    t.parse_proc_version,
    t.parse_q,
    t.parse_list,
    t.parse_topo,
    t.parse_p2p,
    t.parse_nvlink,
    t.parse_nvcc,
    t.parse_lspci,
    t.parse_xids,
    t.parse_unit,
    t.first_version,
)


def test_both_banners() -> None:
    old = t.parse_banner("| NVIDIA-SMI 595.00.01  Driver Version: 595.00.01  CUDA Version: 13.2 |")
    new = t.parse_banner("| NVIDIA-SMI 610.00.01  KMD Version: 610.00.01  CUDA UMD Version: 13.3 |")
    assert old == t.Banner("595.00.01", "595.00.01", "13.2")
    assert new == t.Banner("610.00.01", "610.00.01", "13.3")
    found = t.parse_banner("NVIDIA-SMI 580.1  Driver Version: 580.1  CUDA Version: Not Found")
    assert found is not None
    assert found.cuda is None


def test_proc_version() -> None:
    assert t.parse_proc_version(hosts._proc("580.1.2", True)) == ("580.1.2", True)
    assert t.parse_proc_version(hosts._proc("580.95.05", False)) == ("580.95.05", False)
    assert t.parse_proc_version("GCC version: 13.2.0") is None


def test_details_keep_their_headings() -> None:
    found = t.parse_q(SAMPLES["b300"]["smi_q"])
    assert found is not None
    assert len(found) == 8
    assert found[0].fabric_state == "Completed"
    assert found[0].recovery == "None"
    assert found[0].bar1_mib == 524288
    sick = t.parse_q(hosts.smi_q(hosts.KINDS["b300"], degraded="True", recovery="Reset"))
    assert sick is not None
    assert sick[0].fabric_health == ("Degraded Bandwidth: True",)


def test_topology_words_nobody_knows_give_nothing() -> None:
    assert t.parse_topo(hosts.matrix(4, "NV18")) is not None
    assert t.parse_topo(hosts.matrix(4, "FTL")) is None
    assert t.parse_p2p(SAMPLES["pcie"]["p2p"].replace("OK", "JA")) is None


def test_lspci_without_root() -> None:
    rows = t.parse_lspci("00:01.1 PCI bridge [0604]: X [1022:1]\n\tCapabilities: <access denied>\n")
    assert rows is not None
    assert rows["0000:00:01.1"].denied
    assert rows["0000:00:01.1"].acs is None


def test_xids_in_all_their_spellings() -> None:
    log = (
        "NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', name=<unknown>, gone\n"
        "x kernel: NVRM: Xid (PCI:0001:c1:00.0): 31, pid=1, name=python3, MMU\n"
        "NVRM: Xid (0000:01:00): 13\n"
    )
    assert [x.code for x in t.parse_xids(log)] == [79, 31, 13]


def mangled(draw: st.DrawFn) -> str:
    text: str = draw(st.sampled_from([v for s in SAMPLES.values() for v in s.values() if v]))
    lines = text.splitlines()
    how = draw(st.sampled_from(["cut", "shuffle", "translate", "drop", "junk"]))
    if how == "cut":
        size: int = draw(st.integers(0, len(text)))
        return text[:size]
    if how == "shuffle":
        order: list[str] = draw(st.permutations(lines[:40]))
        return "\n".join(order)
    if how == "translate":
        return text.translate(str.maketrans("eaNo:", "éäÑø："))
    if how == "drop":
        return "\n".join(li for i, li in enumerate(lines) if (i * 7919) % 3)
    tail: str = draw(st.text(max_size=40))
    return text + tail


MANGLED = st.composite(mangled)()


@given(MANGLED)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_parsers_never_raise(text: str) -> None:
    for parser in PARSERS:
        parser(text)


@given(st.text(max_size=200))
@settings(max_examples=60, deadline=None)
def test_any_text_at_all(text: str) -> None:
    for parser in PARSERS:
        parser(text)
    parse(text), minor(text), branch(text), older(text, "1.0"), satisfies(text, text)


JUNK = st.one_of(
    st.none(),
    st.integers(),
    st.text(max_size=20),
    st.booleans(),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)
PATHS = (
    "commands",
    "files",
    "probes",
    "probes|env",
    "probes|env|objects",
    "probes|env|torch",
    "probes|env|packages",
    "probes|toolkits",
    "probes|pci",
    "probes|libs",
    "probes|cuda",
    "probes|proved",
    "probes|proved|results",
    "probes|caches",
    "probes|limits",
    "probes|devices",
    "commands|smi_q",
    "commands|lspci",
    "probes|environ",
    "probes|infiniband",
    "probes|uptime_s",
    "probes|env|ptxas",
    "probes|env|kernel_import",
    "probes|env|requires",
    "unread",
)


@given(st.sampled_from(PATHS), JUNK, st.sampled_from(["pcie", "b300"]))
@settings(max_examples=120, deadline=None)
def test_a_collection_with_junk_in_it_is_judged_or_refused(path: str, junk: Any, kind: str) -> None:
    from ddops.errors import DdopsError

    raw = hosts.changed(hosts.host(kind), {path: junk})
    try:
        facts = hosts.facts(raw)
    except DdopsError:
        return
    judge_all(Subject(facts, hosts.KINDS[kind]["host_class"], "sglang"))


@pytest.mark.parametrize("kind", ["pcie", "b300", "h200"])
def test_nothing_collected_is_nothing_passed(kind: str) -> None:
    """A collection of the first schema, or of a host where nothing answered."""
    raw = hosts.host(kind)
    for key in ("commands", "files", "probes"):
        raw[key] = {}
    raw["driver"] = None
    raw["gpus"] = None
    findings = judge_all(Subject(hosts.facts(raw), hosts.KINDS[kind]["host_class"], "sglang"))
    passed = [f.check for f in findings if f.verdict is Verdict.PASS]
    assert passed == ["HOST-PY", "HOST-DISK", "HOST-01"]


@given(st.sampled_from(sorted(SAMPLES["b300"])), st.integers(0, 4000))
@settings(max_examples=80, deadline=None)
def test_cut_output_never_turns_a_fault_into_a_pass(command: str, size: int) -> None:
    """Whatever is cut, no fault of the host turns into a pass."""
    raw = hosts.changed(
        hosts.host("b300"),
        {
            "commands|fm_version|out": "Fabric Manager version is : 575.10.01",
            "commands|dmesg|out": "NVRM: Xid (PCI:0000:1b:00): 145, x",
            "commands|dmesg|rc": 0,
            "files|proc/driver/nvidia/version": hosts._proc(hosts.DRIVER, False),
        },
    )
    raw["commands"][command]["out"] = raw["commands"][command]["out"][:size]
    found = {f.check: f for f in judge_all(Subject(hosts.facts(raw), "nvlink", "sglang"))}
    assert found["DRV-02"].verdict is Verdict.FAIL
    if command != "fm_version":
        assert found["FAB-02"].verdict in (Verdict.FAIL, Verdict.UNKNOWN)
    else:
        assert found["FAB-02"].verdict is not Verdict.PASS
    if command != "dmesg":
        assert found["GPU-04"].verdict is Verdict.FAIL


def test_the_first_schema_is_still_read() -> None:
    raw = hosts.host("pcie")
    raw["schema"] = "ddops.facts/1"
    for key in ("commands", "files", "probes"):
        del raw[key]
    assert hosts.facts(raw).gpus is not None
    assert json.dumps(raw)
