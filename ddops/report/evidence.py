"""The sections that say why anybody should believe it: correctness, what fell, provenance. Pure."""

from __future__ import annotations

from ddops.model import short
from ddops.report.collect import Findings, Row, Value
from ddops.report.document import Block, Code, Section, Table, Text
from ddops.report.words import day, digest_words, revision

#: Rows that name runs one by one; beyond, a count.
MOST = 60


def correctness(found: Findings) -> Section:
    """Gates of the starts that were measured."""
    blocks: list[Block] = []
    if not found.gates:
        return Section("Correctness", [Text("No gate of a measured start is on record.", "warn")])
    names = sorted({str(g["name"]) for g in found.gates})
    counts = {(g["name"], g["verdict"]): int(g["n"] or 0) for g in found.gates}
    verdicts = ("PASS", "FAIL", "UNKNOWN", "WARN", "SKIP", "INFO")
    used = [v for v in verdicts if any((n, v) in counts for n in names)]
    rows = tuple((n, *(str(counts.get((n, v), 0)) for v in used)) for n in names)
    blocks.append(
        Text("Verdicts of the gates that were climbed on the server starts measured here.")
    )
    blocks.append(Table(("Gate", *used), rows, frozenset(range(1, len(used) + 1))))
    if found.failed_gates:
        lines = tuple(
            (day(g["at"]), str(g["name"]), str(g["verdict"]), str(g["launch"]), str(g["message"]))
            for g in found.failed_gates
        )
        blocks.append(Text("The last ones that did not pass:", "warn"))
        blocks.append(Table(("At", "Gate", "Verdict", "Start", "What it says"), lines))
    return Section("Correctness", blocks)


def invalidated(found: Findings) -> list[Section]:
    """Runs that do not count, and the conclusions that fell with them."""
    return [_conclusions(found), _runs(found)]


def _conclusions(found: Findings) -> Section:
    if not found.conclusions:
        return Section("Conclusions on record", [Text("None was recorded.")])
    rows: list[tuple[str, ...]] = []
    struck: set[tuple[int, int]] = set()
    for n, c in enumerate(sorted(found.conclusions, key=lambda c: (int(c["stands"] or 0),
                                                                   str(c["at"])))):  # fmt: skip
        stands = bool(c["stands"])
        if not stands:
            struck.add((n, 2))
        why = "" if stands else str(c["reason"] or "its runs' gates no longer carry them")
        rows.append(
            (day(c["at"]), str(c["kind"]), str(c["text"]), "stands" if stands else "fell",
             f"{c['lost']} of {c['runs']} runs lost" if not stands else f"{c['runs']} runs", why)
        )  # fmt: skip
    head = ("At", "Kind", "Conclusion", "Now", "Rests on", "Why it fell")
    text = Text("A conclusion falls when one of the runs it was drawn from no longer counts.")
    return Section("Conclusions on record",
                   [text, Table(head, tuple(rows), struck=frozenset(struck))])  # fmt: skip


def _runs(found: Findings) -> Section:
    blocks: list[Block] = []
    if found.retractions:
        rows = tuple(
            (day(r["at"]), f"{r['scope']} {_value(r['value'])}", str(r["runs"]), str(r["by"]),
             str(r["reason"]))
            for r in found.retractions
        )  # fmt: skip
        blocks.append(Table(("At", "Withdrawn", "Runs then", "By", "Reason"), rows,
                            frozenset({2})))  # fmt: skip
    if not found.excluded:
        blocks.append(Text("Every run of this service counts."))
        return Section("Runs that do not count", blocks)
    by_reason: dict[tuple[str, str], list[Row]] = {}
    for row in found.excluded:
        if row["withdrawn"]:
            key = ("withdrawn", str(row["withdrawn"]))
        elif row["status"] == "valid":
            key = ("ungated", "its gates no longer carry it")
        else:
            key = (str(row["status"]), str(row["reason"]))
        by_reason.setdefault(key, []).append(row)
    lines = []
    for (status, reason), of in sorted(by_reason.items(), key=lambda kv: -len(kv[1])):
        shown = ", ".join(f"{short(str(r['id']))} ({r['label']})" for r in of[:3])
        more = f" and {len(of) - 3} more" if len(of) > 3 else ""
        lines.append((status, str(len(of)), reason, shown + more))
    left = len(lines) - MOST
    blocks.append(Table(("Status", "Runs", "Why", "Which"), tuple(lines[:MOST]), frozenset({1})))
    if left > 0:
        blocks.append(Text(f"{left} more reasons: ddops ledger show runs"))
    return Section("Runs that do not count", blocks)


def _value(value: Value) -> str:
    text = str(value or "")
    return short(text) if len(text) in (40, 64) else text


def provenance(found: Findings) -> Section:
    """Machines, releases and the ledger's head."""
    blocks: list[Block] = []
    machines = tuple(
        (
            str(m["host"] or "-"), f"{m['device'] or '-'} [{m['device_class']}]",
            str(m["tool"]), str(m["ddops"] or "-"),
            " ".join(str(m[k]) for k in ("cpu", "kernel", "python") if m[k]) or "-",
            f"{digest_words(m['facts'])} {day(m['facts_at'])}" if m["facts"] else "-",
            str(m["runs"]),
        )
        for m in found.machines
    )  # fmt: skip
    head = ("Host", "Device", "Measured by", "Version", "Machine", "Facts", "Runs")
    blocks.append(Table(head, machines, frozenset({6})))
    releases = tuple(
        (
            digest_words(r["digest"]), str(r["upstream"] or "-"), revision(r["model"]),
            revision(r["draft"]), digest_words(r["series"]), digest_words(r["plugin"]),
            digest_words(r["lock"]), digest_words(r["tree"]), f"{r['launches']} / {r['runs']}",
        )
        for r in found.releases
    )  # fmt: skip
    titles = ("Release", "Engine", "Model", "Draft", "Series", "Plugin", "Lock", "Tree",
            "Starts / runs")  # fmt: skip
    blocks.append(Table(titles, releases, frozenset({8})))
    blocks.append(Text(f"The ledger's newest row when this was made: {found.head}."))
    return Section("Environment and provenance", blocks)


def reproduce(found: Findings) -> Section:
    """From each number back to its runs, and how to measure it again."""
    blocks: list[Block] = [
        Text("Each row names the runs that its number is the mean of. A run shows its cell, gates, "
             "samples and server start; a cell shows all that was kept alike.")
    ]  # fmt: skip
    for advice in found.answer.advice:
        cells = {(r.group, r.level, r.config.key): r.cell for r in advice.population.runs}
        rows = []
        for c in sorted(advice.candidates, key=lambda c: (c.level, -c.estimate.value)):
            more = f" and {len(c.run_ids) - 4} more" if len(c.run_ids) > 4 else ""
            runs = " ".join(map(short, c.run_ids[:4])) + more
            cell = short(cells[(c.group, c.level, c.config.key)])
            rows.append((f"{c.config.name} at {c.level}", cell, runs))
        blocks.append(Text(f"{advice.population.title}:"))
        blocks.append(Table(("Number", "Cell", "Runs"), tuple(rows[:400])))
    service = found.service or "SERVICE"
    hosts = sorted({a.population.host for a in found.answer.advice if a.population.host})
    target = hosts[0] if hosts else "TARGET"
    blocks.append(
        Code(
            (
                "ddops ledger show CELL          # or RUN: everything behind a number",
                f"ddops bench sweep {target} --dry-run   # suites/{service}/sweep.toml, by cell",
                f"ddops bench sweep {target}",
                "ddops ledger verify             # the chain of rows is whole",
            )
        )
    )
    samples = "SELECT * FROM sample WHERE run = 'RUN' ORDER BY n"
    blocks.append(Text(f'Raw samples of a run: ddops ledger query "{samples}"'))
    return Section("How to reproduce each number", blocks)
