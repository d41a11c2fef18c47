"""The case of docs/case-k26.md as a ledger, made from tests/fixtures/case-k26.toml.

    .venv/bin/python -m tests.case_k26 PATH

Every number in it was told by others. A run of it has the tool `reported`, one launch and one
passed gate that stand in for what nobody told, so that the ledger takes it; times are made up.
`reported` is shown wherever one of its numbers is.
"""

from __future__ import annotations

import argparse
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ddops.command import Redactor
from ddops.ledger import Cell, Device, Identity, Ledger, NewRun, Scope, Status
from ddops.model import GateResult, Verdict, digest

SOURCE = Path(__file__).parent / "fixtures" / "case-k26.toml"
#: Made up: no date was told.
START = datetime(2026, 1, 1, tzinfo=UTC)


def make_case(path: Path, source: Path = SOURCE) -> dict[str, list[str]]:
    """Fill a ledger at `path`; answers the ids of the runs by the table they were told in."""
    told = tomllib.loads(source.read_text(encoding="utf-8"))
    trees = {t["name"]: digest({"reported": t}) for t in told["tree"]}
    by_table: dict[str, list[str]] = {}
    with Ledger.open(path, redactor=Redactor()) as book:
        book.add_host(told["host"], {})
        for t in told["tree"]:
            book.add_tree(trees[t["name"]], upstream=f"reported: {t['what']}", at=START)
        for n, row in enumerate(told["run"]):
            run = _run(book, told, row, trees[row["tree"]], n)
            by_table.setdefault(row["table"], []).append(run)
        at = START + timedelta(days=1)
        for f in told["finding"]:
            book.add_finding(
                "note", f["subject"], f["text"], by_table[f["table"]], by="reported", at=at
            )
        for r in told["retraction"]:
            value = trees[r["tree"]]
            book.retract(Scope.TREE, value, reason=r["reason"], by="reported", at=at)
    return by_table


def _run(book: Ledger, told: dict[str, Any], row: dict[str, Any], tree: str, n: int) -> str:
    at = START + timedelta(minutes=n)
    release = digest({"reported": row["vary"], "tree": tree})
    op, nonce = f"reported-{n}", f"{release[:12]}-{n:04d}"
    book.add_release(
        release, service=told["service"], spec={"reported": row["vary"]}, model=told["model"],
        upstream="reported", at=START,
    )  # fmt: skip
    book.add_deployment(
        op, service=told["service"], release=release, host=told["host"], by="reported", at=at
    )
    book.add_launch(nonce, deployment=op, host=told["host"], release=release, started=at)
    gate = book.add_gate(
        GateResult("reported", Verdict.PASS, "told by others: no gate of ours ran"),
        deployment=op, launch=nonce, at=at,
    )  # fmt: skip
    level = row["concurrency"]
    fix = {
        "model": told["model"],
        "host": told["host"],
        "host_class": told["host_class"],
        "gpus": told["gpus"],
        "concurrency": level,
        "told in": row["table"],
    }
    cell = Cell(
        suite="reported", vary=row["vary"], fix=fix, service=told["service"],
        label=f"{row['name']} C={level}", concurrency=level,
    )  # fmt: skip
    length = row.get("commit_length")
    run = NewRun(
        cell=book.add_cell(cell, at=at), launch=nonce, gates=(gate,), tree=tree,
        status=Status.VALID, identity=Identity.BRACKETED, device_class=Device.GPU,
        device=told["device"], started=at, ended=at, concurrency=level,
        requests=1,  # one number was told; how many requests are behind it was not
        output_tps=row.get("output_tps"), tool="reported", by="reported",
        environment={"reported": True},
        metrics={"commit_length_told": length} if length else {},
    )  # fmt: skip
    return book.add_run(run)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the ledger of the reported case.")
    parser.add_argument("path", type=Path)
    args = parser.parse_args()
    runs = make_case(args.path)
    print(f"{args.path}: {sum(map(len, runs.values()))} reported runs")


if __name__ == "__main__":
    main()
