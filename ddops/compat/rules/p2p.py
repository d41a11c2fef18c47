"""P2P-*: what the driver claims of peer copies, and what was proved."""

from __future__ import annotations

from pathlib import PurePosixPath

from ddops.compat import tables
from ddops.compat.model import Look, Outcome, fail, ok, skip, unknown, warn
from ddops.probe import text as t

#: GB/s below which a working peer copy is suspect, by the worst path between the GPUs. Floors of
#: ours, far under what healthy hosts report (about 50 on one switch, 700 over NVLink 5).
FLOORS = {"nvlink": 150.0, "pcie": 10.0}
_WORDS = {"NS": "not supported", "CNS": "chipset", "GNS": "GPU", "TNS": "topology",
          "DR": "disabled by a registry key", "U": "unknown"}  # fmt: skip


def p2p_01(look: Look) -> Outcome:
    """OK is what the driver believes. It is no proof."""
    matrix = t.parse_p2p(look.chain.out("p2p") or "")
    if matrix is None:
        return unknown("nvidia-smi topo -p2p was not readable")
    bad = {w for w in matrix.values() if w not in ("OK", "X")}
    if bad:
        return warn("no peer access: " + ", ".join(f"{w} ({_WORDS[w]})" for w in sorted(bad)))
    return ok("the driver allows it for all pairs; only --prove shows that it works")


def p2p_02(look: Look) -> Outcome:
    if len(look.facts.gpus or ()) == 1:
        return skip("one GPU")
    proof = (look.chain.proved or {}).get("p2p")
    if proof is None:
        return unknown("nobody has tried it", "ddops check HOST --prove")
    if proof.get("skipped"):
        return unknown(str(proof["skipped"]))
    if proof.get("timed_out") is True:
        return fail("a peer copy hangs")
    if proof.get("equal") is False:
        return fail("a peer copy finishes with wrong data")
    if proof.get("ok") is not True:
        return fail(f"a peer copy fails: {str(proof.get('error') or 'no reason given')[:160]}")
    speed, floor = proof.get("gb_s"), FLOORS.get(look.subject.host_class, 10.0)
    if isinstance(speed, int | float) and speed < floor:
        return warn(
            f"right data, but {speed:.1f} GB/s; {floor:g} is the floor on {look.subject.host_class}"
        )
    return ok(
        f"right data both ways{f', {speed:.1f} GB/s' if isinstance(speed, int | float) else ''}"
    )


def p2p_03(look: Look) -> Outcome:
    """Two ranks and all of them: NCCL chooses another path for two."""
    count = len(look.facts.gpus or ())
    if count == 1:
        return skip("one GPU")
    proof = (look.chain.proved or {}).get("nccl")
    if proof is None:
        return unknown("nobody has tried it", "ddops check HOST --prove")
    ranks = proof.get("ranks")
    ranks = ranks if isinstance(ranks, dict) else {}
    bad = [f"{n} ranks: {v}" for n, v in sorted(ranks.items()) if v != "ok"]
    if bad:
        return fail("all-reduce " + "; ".join(bad)[:200])
    missing = [n for n in ("2", str(count)) if n not in ranks]
    return (
        unknown(f"not tried with {', '.join(missing)} ranks")
        if missing
        else ok("at 2 and all ranks")
    )


def p2p_04(look: Look) -> Outcome:
    """Level words are case-sensitive, and an empty graph file is not an unset one."""
    chain, table = look.chain, tables.table("nccl").data
    if chain.environ is None:
        return unknown("the environment was not read")
    home = chain.probes.get("home_nccl")
    values = t.parse_assignments(
        [chain.file("etc/nccl.conf"), home if isinstance(home, str) else None]
    )
    values |= {k: v for k, v in chain.environ.items() if k.startswith("NCCL_")}
    declared = dict(look.launch.env) if look.launch else {}
    values |= {k: v for k, v in declared.items() if k.startswith("NCCL_")}
    bad = []
    for name in table["files"]:
        if name in values and not PurePosixPath(values[name]).is_absolute():
            bad.append(f"{name} is {'empty' if not values[name] else 'no absolute path'}: unset it")
    for name in ("NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL"):
        value = values.get(name)
        if value is not None and value not in (*table["p2p_levels"], *table["legacy_levels"]):
            near = (
                f"; did you mean {value.upper()}?" if value.upper() in table["p2p_levels"] else ""
            )
            bad.append(f"{name}={value} is no level{near}")
    left = [n for n in table["leftovers"] if n in values and n not in declared]
    if left:
        bad.append(f"set on the host, not by the launch: {', '.join(left)}")
    return warn("; ".join(bad)) if bad else ok(f"{len(values)} NCCL settings, none odd")
