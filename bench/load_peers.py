#!/usr/bin/env python3
"""The measuring client beside other load generators: the same mock, the same load, each in turn.

    bench/load_peers.py --pin --streams 256,512 --repeats 5 --sglang PYTHON --aiperf PROGRAM \\
        --guidellm PROGRAM --json FILE
    bench/load_peers.py --table FILE...

Tools that are not named are left out. Runs are interleaved (A B C, A B C, ..). What a tool reports
as its median and p99 TTFT is compared with the same percentile of what the mock wrote down in that
very run, from the kernel's stamp of the request to the hand-over of the first chunk: the mock's own
lateness and queue cancel. Two percentiles may agree by luck; `distance` cannot: it is the mean of
how far the tool's TTFTs, sorted, lie from the true ones, sorted. The mock runs on the last core;
`--pin` keeps the tools on the first. Every repeat is printed; failures to start are results too.
How each tool is called, and from where its number is read: `load_tools.py`, and in words
load_peers.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from load_accuracy import NOISE, Server
from load_tools import Report, Setting, tools
from measure import machine

from ddops.bench.stats import percentile
from ddops.hostside.load.around import stall_fraction

Row = dict[str, Any]


def measured(
    server: Server, tool: Callable[[int], Report], streams: int, row: Row
) -> Row:  # fmt: skip
    """One run of one tool, beside what the mock saw."""
    row["noise"] = stall_fraction(0.3)["fraction"]
    server.reset()
    began = time.monotonic()
    try:
        row |= tool(streams)
    except (RuntimeError, OSError, KeyError, ValueError, StopIteration,
            subprocess.TimeoutExpired) as error:  # fmt: skip
        server.reset()
        return row | {"failed": f"{type(error).__name__}: {error}"[:400]}
    row["wall_s"] = time.monotonic() - began
    truth = server.reset()
    # A tool's own warm-up comes first; what is measured are the last 2 x streams answers.
    rows = sorted(truth["answers"], key=lambda r: r["came"])[-2 * streams :]
    true = [(r["at"][0] - r["came"]) / 1e6 for r in rows]
    late = [(r["at"][0] - r["start"]) / 1e6 for r in rows]
    for q in (50, 99):
        row[f"true_p{q}"] = percentile(true, q / 100)
        row[f"ttft_p{q}_error"] = row[f"ttft_p{q}"] - row[f"true_p{q}"]
    mine = row.pop("ttfts")
    row["count"] = len(mine)
    if len(mine) == len(true):
        pairs = zip(sorted(mine), sorted(true), strict=True)
        row["distance"] = statistics.fmean(abs(a - b) for a, b in pairs)
    span = (max(r["at"][-1] for r in rows) - min(r["came"] for r in rows)) / 1e9
    row["served_tps"] = sum(len(r["at"]) for r in rows) / span
    row["mock_late_p99"] = percentile(late, 0.99)
    row["answers"], row["delivered"] = len(truth["answers"]), truth["most"]
    row["disturbed"] = row["noise"] > NOISE or row["mock_late_p99"] > 5
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", default="256,512")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no run after so long")
    parser.add_argument("--only", help="names of tools, divided by commas")
    parser.add_argument("--sglang", metavar="PYTHON", help="an interpreter that has sglang")
    parser.add_argument("--sglang-env", metavar="K=V", action="append", default=[])
    parser.add_argument("--aiperf", metavar="PROGRAM")
    parser.add_argument("--guidellm", metavar="PROGRAM")
    parser.add_argument("--tokenizer", metavar="FOLDER", default="lab/models/tiny-qwen3")
    parser.add_argument("--pin", action="store_true")
    parser.add_argument("--port", type=int, default=18733)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument(
        "--table", nargs="+", metavar="FILE", help="show what was kept, run nothing"
    )
    args = parser.parse_args()
    if args.table:
        kept = [json.loads(Path(name).read_text()) for name in args.table]
        show([row for one in kept for row in one["rows"]], kept[0]["machine"])
        return
    where, rows = machine(), []
    setting = Setting(
        port=args.port, tokens=args.tokens, pin=args.pin, tokenizer=args.tokenizer,
        sglang=args.sglang, sglang_env=dict(word.split("=", 1) for word in args.sglang_env),
        aiperf=args.aiperf, guidellm=args.guidellm,
    )  # fmt: skip
    found = tools(setting)
    chosen = {n: t for n, t in found.items() if not args.only or n in args.only.split(",")}
    levels = [int(n) for n in args.streams.split(",")]
    server, end = Server(args.port, tokens=args.tokens), time.monotonic() + 60 * args.minutes
    try:
        for repeat in range(args.repeats):
            for streams in levels:
                for name, tool in chosen.items():
                    if time.monotonic() > end:
                        continue
                    row = {"tool": name, "streams": streams, "repeat": repeat, "pinned": args.pin}
                    rows.append(measured(server, tool, streams, row))
                    print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
                    if args.json:
                        kept = {"machine": where, "rows": rows}
                        Path(args.json).write_text(json.dumps(kept, indent=1))
    finally:
        server.close()
        setting.close()
    show(rows, where)


def show(rows: list[Row], where: dict[str, object]) -> None:
    """The table: medians over the repeats; of the p99's error, its size without the sign."""
    print(f"# {', '.join(f'{k} {v}' for k, v in where.items())}, pinned {rows[0]['pinned']}")
    heads = ("tool", "streams", "repeats, undisturbed", "p50 error ms", "p99 error ms",
             "lowest to highest", "distance ms", "tokens/s of the server's", "CPU s",
             "of")  # fmt: skip
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    pairs = dict.fromkeys((r["tool"], r["streams"]) for r in rows)
    for tool, streams in sorted(pairs, key=lambda p: p[1]):
        mine = [r for r in rows if (r["tool"], r["streams"]) == (tool, streams)]
        good = [r for r in mine if "failed" not in r]
        if not good:
            print(f"| {tool} | {streams} | 0 of {len(mine)} | failed: {mine[0]['failed'][:90]} |")
            continue
        p99 = [r["ttft_p99_error"] for r in good]
        far = [r["distance"] for r in good if "distance" in r]

        def median(key: str, of: list[Row] = good) -> float:
            return statistics.median(r[key] for r in of)

        print(f"| {tool} | {streams} | {len(good)} of {len(mine)},"
              f" {sum(not r['disturbed'] for r in good)} | {median('ttft_p50_error'):.3f}"
              f" | {statistics.median(map(abs, p99)):.3f} | {min(p99):.3f} to {max(p99):.3f}"
              f" | {statistics.median(far) if far else float('nan'):.3f}"
              f" | {median('tps') / median('served_tps'):.1%} of {median('served_tps'):.0f}"
              f" | {median('cpu_s'):.1f} | {good[0]['cpu_of']} |")  # fmt: skip


if __name__ == "__main__":
    main()
