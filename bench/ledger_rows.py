"""How fast does the ledger take rows, check them, and answer from a million of them?

    .venv/bin/python bench/ledger_rows.py [--rows 1000000] [--runs 10000] [--repeats 5]

Rows are made up (tests/ledgers.py). Inserting is timed as the bench does it: `add_run` with all
samples in one transaction, hash chain, triggers and indexes included, synchronous = FULL, on an
ordinary disk, the making of the made-up samples not counted. Questions are asked as a command asks
them: a connection of their own each, all rows fetched. CPU time stands beside: on a busy machine
the wall says little.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.measure import report
from ddops.command import Redactor
from ddops.ledger import Cell, Device, Identity, Ledger, NewRun, Scope, Status
from ddops.model import GateResult, Verdict
from tests.ledgers import BAD_TREE, START, make_ledger, samples_of

QUESTIONS = {
    "valid runs, figures": "SELECT id, cell, output_tps, ttft_p50_ms FROM valid_run",
    "valid runs, counted": "SELECT count(*) FROM valid_run",
    "valid runs of a cell, whole": "SELECT * FROM valid_run WHERE cell = (SELECT key FROM cell)",
    "valid runs, whole": "SELECT * FROM valid_run",
    "valid runs, first 100, whole": "SELECT * FROM valid_run LIMIT 100",
    "valid runs, newest 100, whole": "SELECT * FROM valid_run ORDER BY started DESC LIMIT 100",
    "cell_summary": "SELECT * FROM cell_summary",
    "conclusion": "SELECT * FROM conclusion",
    "all runs, whole (no view)": "SELECT * FROM run",
    "samples of a run": "SELECT * FROM sample WHERE run = (SELECT id FROM run)",
}


def insert(path: Path, rows: int, of: int, repeats: int) -> tuple[list[float], list[float]]:
    """Sample rows a second: of wall time, and of CPU time of this process."""

    cell = Cell(suite="rows", vary={}, fix={"n": 1})
    run = NewRun(
        cell=cell.key,
        status=Status.UNBOUND,
        reason="simulated",
        identity=Identity.NONE,
        device_class=Device.SIM,
        started=START,
        ended=START,
        requests=of,
    )
    batch = list(samples_of(random.Random(1), of, 8, 100.0, 4.0))  # noqa: S311 - made up
    wall, cpu = [], []
    with Ledger.open(path, redactor=Redactor()) as ledger:
        ledger.add_cell(cell)
        for _ in range(repeats):
            began, used = time.perf_counter(), time.process_time()
            for _ in range(rows // of):
                ledger.add_run(run, batch)
            wall.append(rows / (time.perf_counter() - began))
            cpu.append(rows / (time.process_time() - used))
    return wall, cpu


def timed(repeats: int, work: Callable[[], object]) -> tuple[list[float], list[float]]:
    """Milliseconds of wall time and of CPU time."""
    wall, cpu = [], []
    for _ in range(repeats):
        began, used = time.perf_counter(), time.process_time()
        work()
        wall.append((time.perf_counter() - began) * 1000)
        cpu.append((time.process_time() - used) * 1000)
    return wall, cpu


def ask(path: Path, repeats: int) -> dict[str, list[float]]:
    out: dict[str, list[float]] = {}
    with Ledger.open(path, redactor=Redactor(), readonly=True) as ledger:
        for name, sql in QUESTIONS.items():
            work = lambda sql=sql: ledger.query(sql, max_rows=10**6, timeout_s=300)  # noqa: E731
            out[name], out[name + " (CPU)"] = timed(repeats, work)
    return out


def conclude(ledger: Ledger, runs: list[str]) -> None:
    """A hundred conclusions, which name every run once."""
    for n in range(100):
        ledger.add_finding("report", "k26", f"finding {n}", runs[n::100], by="bench")


def spoil(ledger: Ledger) -> None:
    """One start whose gate failed later, and a tree that was withdrawn."""
    (start,) = ledger.query("SELECT nonce, deployment FROM launch ORDER BY seq DESC LIMIT 1")
    failed = GateResult("exactness", Verdict.FAIL, "made up")
    ledger.add_gate(failed, deployment=str(start["deployment"]), launch=str(start["nonce"]))
    ledger.retract(Scope.TREE, BAD_TREE, reason="bench", by="bench")


def main() -> None:
    parser = argparse.ArgumentParser(description="Rows in, checks, and answers of the ledger.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="make the big ledger here, or use it if there")
    parser.add_argument("--json", help="keep the samples of the questions here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rates: dict[str, list[float]] = {}
        for of in (100, 1000):
            got = insert(Path(folder) / f"rows{of}.db", 20_000, of, args.repeats)
            rates[f"{of} a run"], rates[f"{of} a run (CPU)"] = got
        report("sample rows inserted, hash chain included", rates, "rows/s", None)
        big = args.keep or Path(folder) / "big.db"
        if not big.exists():
            make_ledger(big, runs=args.runs, samples=args.rows)
        with Ledger.open(big, redactor=Redactor()) as ledger:
            if not ledger.conclusions():
                every = [str(r["id"]) for r in ledger.query("SELECT id FROM run", max_rows=10**6)]
                conclude(ledger, every)
        before = ask(big, args.repeats)
        size = f"at {args.rows} samples, {args.runs} runs, 100 conclusions"
        report(f"questions {size}", before, "ms", args.json)
        faulty = Path(folder) / "faulty.db"
        shutil.copyfile(big, faulty)
        with Ledger.open(faulty, redactor=Redactor()) as ledger:
            spoil(ledger)
        report(f"the same with a failed gate and a tree withdrawn, {size}",
               ask(faulty, args.repeats), "ms", None)  # fmt: skip
        small = Path(folder) / "small.db"
        ids = make_ledger(small, runs=1000, samples=100_000)
        with Ledger.open(small, redactor=Redactor()) as ledger:
            rows = ledger.head().seq
            conclude(ledger, ids)
            wall, cpu = timed(args.repeats, ledger.verify)
            checks = {"verify": [rows / w * 1000 for w in wall]}
            checks["verify (CPU)"] = [rows / c * 1000 for c in cpu]
            report("rows verified", checks, "rows/s", None)
            began = time.perf_counter()
            done = ledger.retract(Scope.TREE, BAD_TREE, reason="bench", by="bench")
            print(
                f"retracting a tree: {len(done.runs)} runs, {len(done.findings)} conclusions "
                f"listed in {(time.perf_counter() - began) * 1000:.0f} ms"
            )
        report("questions after it, 100k samples, 1000 runs", ask(small, args.repeats), "ms", None)


if __name__ == "__main__":
    main()
