"""Faults, the lab's network and its apt sources, as data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddops.errors import RefusedError, UsageError
from ddops.lab import LabSpec, netplan
from ddops.lab.cgroups import group_name
from ddops.lab.faults import KINDS, Fault, parse_fault
from ddops.lab.rootfs import apt_sources


@pytest.mark.parametrize(
    ("words", "fault", "shown"),
    [
        (("reboot", None), Fault("reboot"), "reboot"),
        (("netloss", "20%"), Fault("netloss", 20), "netloss 20%"),
        (("netloss", "0.25"), Fault("netloss", 0.25), "netloss 0.25%"),
        (("netdelay", "50ms"), Fault("netdelay", 50), "netdelay 50ms"),
        (("netdelay", "7.5"), Fault("netdelay", 7.5), "netdelay 7.5ms"),
        (("netrate", "256kbit"), Fault("netrate", 256e3), "netrate 256kbit"),
        (("netrate", "1.5mbit"), Fault("netrate", 1.5e6), "netrate 1500kbit"),
    ],
)
def test_faults_are_read(words: tuple[str, str | None], fault: Fault, shown: str) -> None:
    assert parse_fault(*words) == fault
    assert str(fault) == shown


@pytest.mark.parametrize(
    ("kind", "value"),
    [("netloss", None), ("netloss", "0"), ("netloss", "100.01"), ("netloss", "-5"),
     ("netloss", "20 %"), ("netloss", "nan"), ("netloss", "٣"), ("netdelay", "1s"),
     ("netdelay", "99999"), ("netrate", "1000"), ("netrate", "1kbit"), ("netrate", "99gbit"),
     ("netrate", "1mbit; reboot"), ("reboot", "now"), ("freeze", ""), ("", None), ("flood", None)],
)  # fmt: skip
def test_what_is_no_fault_is_told_with_one_that_is(kind: str, value: str | None) -> None:
    with pytest.raises(UsageError) as told:
        parse_fault(kind, value)
    assert told.value.next


@given(kind=st.sampled_from(list(KINDS)), value=st.one_of(st.none(), st.text(max_size=12)))
def test_a_fault_is_read_or_refused_and_nothing_else(kind: str, value: str | None) -> None:
    try:
        fault = parse_fault(kind, value)
    except UsageError:
        return
    assert (fault.amount > 0) is (KINDS[kind] is not None)


def test_loss_rules_replace_all_and_name_each_side_once() -> None:
    text = netplan.loss_rules({"lab2": 0.25, "lab1": 30})
    assert text.index("delete table") < text.index("table bridge ddops {\n")
    drops = [line.split() for line in text.splitlines() if "drop" in line]
    # Into the lab's own address, out of it, and through to another host: each way once.
    assert len(drops) == 2 * 4
    assert sum('"vb-lab2"' in w and "25" in w for w in drops) == 4
    assert sum('"vb-lab1"' in w and "3000" in w for w in drops) == 4
    assert "drop" not in netplan.loss_rules({})


def test_a_rate_is_set_on_both_ends_and_a_bucket_is_never_too_small() -> None:
    both = netplan.rate("lab1", 77, 1e6)
    assert [w[w.index("dev") + 1] for w in both] == ["vb-lab1", "host0"]
    assert both[1][:2] == ("nsenter", "--net=/proc/77/ns/net")
    for words in both:
        assert words[-6:] == ("rate", "1000000bit", "burst", "16384", "latency", "400ms")
    assert "1250000" in netplan.rate("lab1", 77, 1e9)[0]


def test_names_of_links_fit_the_kernel() -> None:
    for name in LabSpec(64, engine="sim", systemd=True).names():
        links = [netplan.veth(name), *netplan.taps(name), *netplan.through_taps(name)[-1:]]
        assert all(len(link) <= 15 for link in links)
    assert len({netplan.address(i) for i in range(1, 65)}) == 64


def test_groups_of_two_labs_differ_and_of_one_are_the_same() -> None:
    from pathlib import Path

    assert group_name(Path("/a/lab")) == group_name(Path("/a/lab")) != group_name(Path("/b/lab"))


LISTING = """\
Debian\thttp://deb.example/debian/\tbookworm\tmain\tbookworm
Debian\thttp://deb.example/debian/\tbookworm\tcontrib\tbookworm
Debian\thttp://deb.example/debian/\tbookworm-updates\tmain\tbookworm-updates
Debian\thttp://deb.example/security/\tbookworm-security\tmain\tbookworm-security
Somebody\thttp://tools.example/apt\tbookworm\tmain\tbookworm
"""


def test_only_the_distribution_makes_a_host() -> None:
    suite, lines = apt_sources(LISTING)
    assert suite == "bookworm"
    assert lines == [
        "deb http://deb.example/debian/ bookworm contrib main",
        "deb http://deb.example/debian/ bookworm-updates main",
        "deb http://deb.example/security/ bookworm-security main",
    ]


@pytest.mark.parametrize(
    "listing", ["", "\n", "Somebody\thttp://x\ta\tb\ta\n", "Debian\tx\n", "\0"]
)
def test_no_distribution_is_refused_with_what_to_do(listing: str) -> None:
    with pytest.raises(RefusedError) as told:
        apt_sources(listing)
    assert "apt-get update" in told.value.next
