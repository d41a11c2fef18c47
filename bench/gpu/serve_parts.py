"""Parts that several visits have: greedy answers, graphs and masks, float32."""

from __future__ import annotations

import subprocess
from typing import Any

import serve_proofs as proofs


def greedy(
    visit: Any, names: list[str], prompts: list[list[int]], tokens: int, levels: tuple[int, ...]
) -> bool:
    """Greedy answers of all servers against the plain one's; False when that has none."""
    servers = {n: visit.fleet[n] for n in names}
    plain = servers["pair-ar"]
    few, many = _few_and_many(visit, prompts)

    def smoke() -> dict[str, Any]:
        wanted = proofs.reference(plain, prompts[:8], 32, 4)
        found = {n: proofs.lossless(s, wanted, prompts[:8], 32, 4) for n, s in servers.items()}
        return {**found, "text": wanted[0]["text"][:200]}

    if visit.part("smoke", 60, smoke) is None:
        dead = [n for n, s in servers.items() if s.dead()]
        if dead:
            visit.results["errors"] |= {f"died {n}": servers[n].tail() for n in dead}
            raise visit.stop(f"servers died at their first requests: {', '.join(dead)}")
    wanted = visit.part("reference", 60, lambda: kept(
        visit, proofs.reference(plain, many, tokens, 8 if not visit.cpu else 2)))  # fmt: skip
    if wanted is None:
        return False
    answers = visit.kept
    for at_once in levels:
        some = few if at_once == 1 else many
        for name, server in servers.items():
            given = (server, answers[: len(some)], some, tokens, at_once)
            visit.part(f"greedy {name} at {at_once}", 30, lambda g=given: proofs.lossless(*g))
    return True


def detect(visit: Any, names: list[str], prompts: list[list[int]]) -> None:
    """Do the graphs of each DDTREE server read its tree? A CPU has none."""
    for name in [n for n in names if "ddtree" in n and not visit.cpu]:
        server = visit.fleet[name]
        visit.part(f"detect {name}", 30, lambda s=server: proofs.detector(s, prompts))


def graphs(visit: Any, names: list[str], prompts: list[list[int]], tokens: int) -> None:
    """Of each DDTREE server: answers without graphs, then its tree beside the tree's own spine."""
    trees = {n: visit.fleet[n] for n in names if "ddtree" in n}
    few, many = _few_and_many(visit, prompts)
    for name, server in trees.items():
        visit.part(
            f"eager {name}", 30,
            lambda s=server: proofs.eager_equals_graph(s, few[:12], tokens // 2),
        )  # fmt: skip
    for name, server in trees.items():
        visit.part(f"spine {name}", 25, lambda s=server: proofs.spine(s, many, tokens, 8))


def _few_and_many(visit: Any, prompts: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
    return (prompts[:4], prompts[:4]) if visit.cpu else (prompts[:24], prompts)


def floats(visit: Any, ready: list[str], prompts: list[list[int]], tokens: int) -> None:
    """Answers in float32 against those of the server without speculation: exact."""
    if "f32-ar" not in ready:
        return
    fleet = visit.fleet
    visit.part("reference f32", 40, lambda: kept(
        visit, proofs.reference(fleet["f32-ar"], prompts, tokens, 8)))  # fmt: skip
    for name in ready:
        visit.part(
            f"{name} greedy", 25,
            lambda n=name: proofs.lossless(fleet[n], visit.kept, prompts, tokens, 8),
        )  # fmt: skip


def kept(visit: Any, answers: list[Any]) -> dict[str, Any]:
    visit.kept = answers
    return {"answers": len(answers), "tokens": len(answers[0]["output_ids"])}


def gpu(visit: Any) -> None:
    words = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    visit.put("gpu", done.stdout.strip() or done.stderr.strip())
