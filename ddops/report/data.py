"""The findings as data: `ddops report --json`."""

from __future__ import annotations

from ddops.recommend.view import answer_data
from ddops.report.collect import Findings


def findings_data(found: Findings) -> dict[str, object]:
    """Everything but the pictures."""
    return {
        "service": found.service,
        "at": found.at.isoformat(),
        "ledger_head": found.head,
        "recommendation": answer_data(found.answer),
        "distributions": [
            {"population": i, "config": s.name, "concurrency": s.level, "requests": s.n,
             "ttft_ms": list(s.ttft), "interval_ms": list(s.interval)}
            for i, spreads in found.spreads.items()
            for s in spreads
        ],
        "excluded": [dict(r) for r in found.excluded],
        "retractions": [dict(r) for r in found.retractions],
        "conclusions": [{**c, "stands": bool(c["stands"])} for c in found.conclusions],
        "gates": [dict(g) for g in found.gates],
        "failed_gates": [dict(g) for g in found.failed_gates],
        "releases": [dict(r) for r in found.releases],
        "machines": [dict(m) for m in found.machines],
    }  # fmt: skip
