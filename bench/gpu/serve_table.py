"""Throughput in turns: every server at every concurrency once a round, the order rotated."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from serve_fleet import Answer, Server
from serve_proofs import Prompts, commit_length, greedy

CONCURRENCY = (1, 4, 16, 32)
#: Requests in one measurement: as many waves as keep it near a second.
WAVES = {1: 4, 4: 3, 16: 3, 32: 3}


def measure(server: Server, prompts: Prompts, tokens: int, at_once: int) -> dict[str, Any]:
    """Closed loop: `at_once` requests in flight until all are answered; the cache starts empty."""
    count = at_once * WAVES.get(at_once, 3)
    asked = [prompts[i % len(prompts)] for i in range(count)]
    server.call("POST", "/flush_cache")
    began = time.monotonic()
    answers: list[Answer] = server.ask(asked, greedy(tokens), at_once)
    wall = time.monotonic() - began
    said = sum(len(a["output_ids"]) for a in answers)
    return {
        "server": server.spec.name, "at_once": at_once, "requests": count, "wall_s": round(wall, 4),
        "tokens_per_s": round(said / wall, 2), "tokens_per_pass": commit_length(answers),
    }  # fmt: skip


def rounds(
    servers: Sequence[Server], prompts: Prompts, tokens: int, count: int,
    levels: Sequence[int] = CONCURRENCY,
) -> Iterator[list[dict[str, Any]]]:  # fmt: skip
    """One list of measurements a round; round r starts with server r and goes round from there."""
    for number in range(count):
        rows = []
        for level in levels:
            turn = [servers[(i + number) % len(servers)] for i in range(len(servers))]
            rows += [{**measure(s, prompts, tokens, level), "round": number} for s in turn]
        yield rows


def summary(rows: Sequence[dict[str, Any]], base: str) -> list[dict[str, Any]]:
    """Median and range by server and concurrency; `wins` counts rounds faster than `base`'s."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["server"], row["at_once"]].append(row)
    out = []
    for (name, level), own in groups.items():
        rates = [r["tokens_per_s"] for r in own]
        theirs = {r["round"]: r["tokens_per_s"] for r in groups[base, level]}
        paired = [(r["tokens_per_s"], theirs[r["round"]]) for r in own if r["round"] in theirs]
        commits = [r["tokens_per_pass"] for r in own if r["tokens_per_pass"]]
        out.append({
            "server": name, "at_once": level, "n": len(rates),
            "tokens_per_s": statistics.median(rates), "min": min(rates), "max": max(rates),
            "of_base": round(statistics.median(a / b for a, b in paired), 3) if paired else None,
            "wins": sum(a > b for a, b in paired),
            "tokens_per_pass": round(statistics.mean(commits), 3) if commits else None,
        })  # fmt: skip
    return out


def parts(
    server: Server, prompts: Prompts, tokens: int, levels: Sequence[int] = CONCURRENCY,
    switch: str = "times",
) -> list[dict[str, Any]]:  # fmt: skip
    """Device time of each part of a decode step, or of the step alone; at full batches only."""
    server.report()
    server.switch(switch, True)
    found = []
    try:
        for level in levels:
            server.ask([prompts[i % len(prompts)] for i in range(level)], greedy(tokens), level)
            _, rows = server.report()
            found += [{**r, "server": server.spec.name} for r in rows if r["bs"] == level]
    finally:
        server.switch(switch, False)
    return found
