"""From the ledger's valid runs to populations. One query: documents that no figure needs stay."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddops.bench.compare import OWN
from ddops.ledger import Ledger, StoredCell
from ddops.ledger.bench_records import BUILD
from ddops.model import digest
from ddops.recommend.model import Basis, Candidate, Config, Measured, Population

#: More valid runs than this are not summed up at once.
MOST = 200_000
TIMEOUT_S = 120.0
#: Suites too brief, or about something else, to choose by.
LEFT_OUT = ("smoke", "coding")
#: Of `fix`: the load, which a crossover runs along.
_LOAD = ("concurrency", "requests")

_RUNS = """SELECT r.id, r.launch, r."release", r.tree, r.cell, r.device_class, r.device, r.tool,
  r.started, r.c_eff, r.requests, r.failed, r.output_tps, r.ttft_p50_ms, r.ttft_p99_ms,
  r.tpot_p50_ms, r.tpot_p99_ms, r.commit_tokens, r.commit_steps, r.protocol,
  json_extract(r."window", '$.rule') AS rule,
  json_extract(r.metrics, '$.commit.histogram') AS histogram,
  json_extract(r.metrics, '$.commit_length_told') AS told
FROM valid_run r JOIN cell c ON c.ledger = r.ledger AND c.key = r.cell
WHERE (:service IS NULL OR c.service = :service) AND c.concurrency IS NOT NULL
ORDER BY r.started, r.ledger, r.seq"""


def populations(
    ledger: Ledger, service: str | None = None, host_class: str | None = None
) -> list[Population]:
    """All valid runs of closed loops, sorted out; the surest basis and GPUs first."""
    cells = {c.key: c for c in ledger.cells(service=service) if c.suite not in LEFT_OUT}
    rows = ledger.query(_RUNS, {"service": service}, max_rows=MOST, timeout_s=TIMEOUT_S)
    known = _Known(cells)
    sorted_out: dict[tuple[str, ...], list[tuple[Measured, StoredCell]]] = defaultdict(list)
    for row in rows:
        cell = cells.get(str(row["cell"]))
        if cell is None or cell.concurrency is None:
            continue
        if host_class is not None and cell.fix.get("host_class") != host_class:
            continue
        basis = basis_of(str(row["tool"]), str(row["device_class"]), cell.fix)
        key = (
            cell.service, str(cell.fix.get("host") or ""), str(cell.fix.get("host_class") or ""),
            str(row["device_class"]), str(row["device"]), basis.value,
        )  # fmt: skip
        sorted_out[key].append((known.run(row, cell, cell.concurrency), cell))
    found = [_population(key, pairs, known.alike) for key, pairs in sorted_out.items()]
    order = {b: i for i, b in enumerate(Basis)}
    return sorted(
        found, key=lambda p: (p.service, order[p.basis], p.device_class != "gpu", p.host, p.device)
    )


def basis_of(tool: str, device_class: str, fix: Mapping[str, object]) -> Basis:
    """How a run's numbers are known."""
    if tool == "reported":
        return Basis.REPORTED
    if device_class == "sim" or tool == "simulated" or fix.get("simulated"):
        return Basis.SIMULATED
    return Basis.MEASURED


class _Known:
    """Configurations and groups by their content, each made once."""

    def __init__(self, cells: Mapping[str, StoredCell]) -> None:
        self._configs = {key: config_of(c) for key, c in cells.items()}
        self._fixes = {key: fix_of(c) for key, c in cells.items()}
        self._groups: dict[tuple[str, str, str], str] = {}
        self.alike: dict[str, Mapping[str, str]] = {}

    def run(self, row: Mapping[str, Any], cell: StoredCell, level: int) -> Measured:
        told = json.loads(row["told"]) if row["told"] else None
        histogram = json.loads(row["histogram"]) if row["histogram"] else {}
        return Measured(
            id=row["id"],
            launch=row["launch"],
            release=row["release"] or "",
            tree=row["tree"] or "",
            cell=cell.key,
            group=self._group(cell, row["protocol"], row["rule"] or ""),
            config=self._configs[cell.key],
            level=level,
            started=row["started"],
            output_tps=row["output_tps"],
            c_eff=row["c_eff"],
            ttft_p50_ms=row["ttft_p50_ms"],
            ttft_p99_ms=row["ttft_p99_ms"],
            tpot_p50_ms=row["tpot_p50_ms"],
            tpot_p99_ms=row["tpot_p99_ms"],
            commit_tokens=row["commit_tokens"],
            commit_steps=row["commit_steps"],
            commit_told=(float(told[0]), float(told[1])) if told else None,
            histogram={int(k): int(v) for k, v in histogram.items()},
            requests=row["requests"],
            failed=row["failed"],
        )

    def _group(self, cell: StoredCell, protocol: str, rule: str) -> str:
        """What must be alike, as one key. The rule's own remarks on a run are not part of it."""
        rule = rule.partition(",")[0]
        asked = (cell.key, protocol, rule)
        if asked not in self._groups:
            how = {k: v for k, v in json.loads(protocol).items() if k not in OWN}
            alike = {
                **self._fixes[cell.key],
                **dict(flat("protocol", how)),
                "window.rule": rule,
                "suite": cell.suite,
            }
            key = digest(alike)
            self._groups[asked] = key
            self.alike[key] = alike
        return self._groups[asked]


def config_of(cell: StoredCell) -> Config:
    """The configuration of a cell, builds included: a new build is a new candidate."""
    name = cell.label or str(cell.vary.get("algorithm") or "configuration")
    ending = f" C={cell.concurrency}"
    return Config(key=digest(dict(cell.vary)), name=name.removesuffix(ending), vary=dict(cell.vary))


def fix_of(cell: StoredCell) -> dict[str, str]:
    """`fix` without the load, flat."""
    return dict(flat("fix", {k: v for k, v in cell.fix.items() if k not in _LOAD}))


def flat(name: str, value: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Entries of nested mappings as `a.b.c`."""
    for key, item in value.items():
        path = f"{name}.{key}" if name else key
        if isinstance(item, Mapping):
            yield from flat(path, item)
        else:
            yield path, str(item)


def gpus_of(vary: Mapping[str, object], fix: Mapping[str, object]) -> int:
    """GPUs in use: told, or tensor times pipeline parallelism (experts share those GPUs)."""
    launch = vary.get("launch")
    told = fix.get("gpus")
    if isinstance(told, int):
        return told
    options = launch if isinstance(launch, Mapping) else {}
    sizes = [options.get(k, 1) for k in ("tp-size", "pp-size")]
    return max(1, int(sizes[0]) if str(sizes[0]).isdigit() else 1) * max(
        1, int(sizes[1]) if str(sizes[1]).isdigit() else 1
    )


def _population(
    key: tuple[str, ...],
    pairs: Sequence[tuple[Measured, StoredCell]],
    alike: Mapping[str, Mapping[str, str]],
) -> Population:
    service, host, host_class, device_class, device, basis = key
    runs = [run for run, _ in pairs]
    gpus = {run.config.key: gpus_of(cell.vary, cell.fix) for run, cell in pairs}
    return Population(
        service=service,
        host=host,
        host_class=host_class or "unknown",
        device_class=device_class,
        device=device,
        basis=Basis(basis),
        gpus=gpus,
        runs=_named_apart(runs),
        alike={g: alike[g] for g in {r.group for r in runs}},
    )


def _named_apart(runs: Sequence[Measured]) -> list[Measured]:
    """Two builds of one configuration get their release's first digits into their names."""
    from dataclasses import replace

    keys: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        keys[run.config.name].add(run.config.key)
    out = []
    for run in runs:
        config = run.config
        if len(keys[config.name]) > 1:
            build = str(next((config.vary[b] for b in BUILD if config.vary.get(b)), config.key))
            config = replace(config, name=f"{config.name} @{build[:8]}")
        out.append(run if config is run.config else replace(run, config=config))
    return out


def unrecorded_env(ledger: Ledger, candidate: Candidate) -> list[str]:
    """Environment names of its releases that its cell does not hold: secrets, by reference.

    A cell keeps no entry with a colon; the release keeps their names.
    """
    marks = {f"r{i}": run for i, run in enumerate(candidate.run_ids)}
    names = ", ".join(f":{k}" for k in marks)
    rows = ledger.query(
        f"""SELECT DISTINCT json_extract(l.spec, '$.secret_env') AS secrets FROM run r
JOIN "release" l ON l.ledger = r.ledger AND l.digest = r."release" WHERE r.id IN ({names})""",  # noqa: S608
        marks,
    )
    found: set[str] = set()
    for row in rows:
        secrets = json.loads(str(row["secrets"])) if row["secrets"] else {}
        found |= set(secrets)
    return sorted(found)
