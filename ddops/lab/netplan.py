"""The lab's network as commands: one bridge, one link a host, and what is done to a link. Pure.

Everything lies in a network namespace of its own that has no way out, so the addresses are free
to choose. `vb-NAME` is the bridge's end of a host's link; systemd-nspawn makes it at each boot.
"""

from __future__ import annotations

from collections.abc import Mapping

Argv = tuple[str, ...]

BRIDGE = "br0"
_NET = "10.77.0"
#: Loss is counted in hundredths of a percent.
_PARTS = 10_000


def address(index: int) -> str:
    """The address of host `index`, counted from 1."""
    return f"{_NET}.{10 + index}"


def veth(host: str) -> str:
    return f"vb-{host}"


def network() -> list[Argv]:
    """The bridge, before any host is there."""
    return [
        ("ip", "link", "set", "lo", "up"),
        ("ip", "link", "add", BRIDGE, "address", "02:00:00:00:00:01", "type", "bridge",
         "forward_delay", "0"),
        ("ip", "addr", "add", f"{_NET}.1/24", "dev", BRIDGE),
        ("ip", "link", "set", BRIDGE, "up"),
    ]  # fmt: skip


def link(host: str, up: bool) -> list[Argv]:
    return [("ip", "link", "set", veth(host), "up" if up else "down")]


def loss_rules(percent: Mapping[str, float]) -> str:
    """The whole nftables text for the hosts that lose packets; it replaces what was there."""
    lines = ["table bridge ddops {}", "delete table bridge ddops", "table bridge ddops {"]
    for hook, sides in (
        ("input", ("iifname",)), ("output", ("oifname",)), ("forward", ("iifname", "oifname")),
    ):  # fmt: skip
        lines.append(f" chain {hook} {{ type filter hook {hook} priority 0; policy accept;")
        for host, lost in sorted(percent.items()):
            part = round(lost * _PARTS / 100)
            lines += [
                f'  {side} "{veth(host)}" numgen random mod {_PARTS} < {part} drop'
                for side in sides
            ]
        lines.append(" }")
    lines.append("}")
    return "\n".join(lines) + "\n"


def rate(host: str, pid: int, bits: float | None) -> list[Argv]:
    """Limit both ends of the link; `pid` is a process inside the host. None lifts the limit."""
    ends: list[tuple[Argv, str]] = [
        ((), veth(host)),
        (("nsenter", f"--net=/proc/{pid}/ns/net"), "host0"),
    ]
    if bits is None:
        return [(*enter, "tc", "qdisc", "del", "dev", dev, "root") for enter, dev in ends]
    # A bucket of a hundredth of a second, and not less than ten packets.
    burst = max(16_384, int(bits / 800))
    words = ("tbf", "rate", f"{int(bits)}bit", "burst", str(burst), "latency", "400ms")
    return [(*enter, "tc", "qdisc", "replace", "dev", dev, "root", *words) for enter, dev in ends]


def taps(host: str) -> tuple[str, str]:
    """The two ends of a delayed link: at the lab's bridge, and at the host's own."""
    return f"ta-{host}", f"tb-{host}"


def delayed(host: str) -> list[Argv]:
    """A way from the bridge to the host through two taps, which a relay joins."""
    near, far = taps(host)
    own = f"bd-{host}"
    return [
        ("ip", "link", "add", own, "type", "bridge", "forward_delay", "0"),
        # No ARP: it would answer for the lab's bridge, whose address is this machine's too.
        ("ip", "link", "set", own, "arp", "off", "up"),
        ("ip", "link", "set", near, "master", BRIDGE, "up"),
        ("ip", "link", "set", far, "master", own, "up"),
    ]


def through_taps(host: str) -> Argv:
    """Put the host's link behind its taps: after `delayed`, and after each boot."""
    return ("ip", "link", "set", veth(host), "master", f"bd-{host}")


def straight(host: str) -> list[Argv]:
    """Undo `delayed` and `through_taps`."""
    return [
        ("ip", "link", "set", veth(host), "master", BRIDGE),
        ("ip", "link", "del", f"bd-{host}"),
    ]
