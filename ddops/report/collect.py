"""Everything a report tells, out of the ledger. No answer grows with the samples.

Of samples, only those of the two concurrencies that are drawn are read, and of each two numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

import numpy as np

from ddops.ledger import Ledger
from ddops.recommend import Answer, recommend
from ddops.recommend.answer import Advice

#: No column that is asked for holds bytes.
Value = str | int | float | None
Row = Mapping[str, Value]
MOST, TIMEOUT_S = 200_000, 120.0
#: Runs whose samples are asked for at once: one row each comes back.
_AT_ONCE = 200
#: Points of a drawn distribution.
_POINTS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Two distributions of one configuration at one concurrency, as quantiles in ms."""

    config: str
    name: str
    level: int
    n: int
    ttft: tuple[float, ...]
    interval: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What was found. `spreads` are by the place of their population in the answer."""

    service: str
    at: datetime
    head: str
    answer: Answer
    spreads: Mapping[int, Sequence[Spread]]
    excluded: Sequence[Row]
    retractions: Sequence[Row]
    conclusions: Sequence[Row]
    gates: Sequence[Row]
    failed_gates: Sequence[Row]
    releases: Sequence[Row]
    machines: Sequence[Row]

    @property
    def run_ids(self) -> tuple[str, ...]:
        """Every valid run that a number here is from."""
        return tuple(r.id for a in self.answer.advice for r in a.population.runs)


_OF = "(:service IS NULL OR c.service = :service)"
_EXCLUDED = f"""SELECT r.id, r.status, r.reason, r.started, r.device_class, r.tool, c.label,
  group_concat(DISTINCT t.reason) AS withdrawn
FROM run r JOIN cell c ON c.ledger = r.ledger AND c.key = r.cell
LEFT JOIN withdrawn_run w ON w.ledger = r.ledger AND w.run = r.id
LEFT JOIN retraction t ON t.ledger = w.retracted_in AND t.id = w.retraction
WHERE {_OF} AND (r.ledger, r.id) NOT IN (SELECT ledger, id FROM valid_run)
GROUP BY r.ledger, r.id ORDER BY r.started, r.id"""  # noqa: S608 - put together of constants
_CONCLUSIONS = f"""SELECT f.id, f.kind, f.subject, f.text, f."by", f.at, f.runs, f.lost, f.stands,
  (SELECT group_concat(DISTINCT t.reason) FROM finding_run x
   JOIN withdrawn_run w ON w.ledger = x."of" AND w.run = x.run
   JOIN retraction t ON t.ledger = w.retracted_in AND t.id = w.retraction
   WHERE x.ledger = f.ledger AND x.finding = f.id) AS reason
FROM conclusion f WHERE :service IS NULL OR EXISTS (
  SELECT 1 FROM finding_run x JOIN run r ON r.ledger = x."of" AND r.id = x.run
  JOIN cell c ON c.ledger = r.ledger AND c.key = r.cell
  WHERE x.ledger = f.ledger AND x.finding = f.id AND {_OF})
ORDER BY f.at, f.id"""  # noqa: S608
_LAUNCHES = f"""SELECT DISTINCT r.ledger, r.launch FROM run r
JOIN cell c ON c.ledger = r.ledger AND c.key = r.cell WHERE r.launch IS NOT NULL AND {_OF}"""  # noqa: S608
_GATES = f"""SELECT g.name, g.verdict, count(*) AS n, count(DISTINCT g.launch) AS launches,
  max(g.at) AS last FROM gate g
WHERE (g.ledger, g.launch) IN ({_LAUNCHES}) GROUP BY 1, 2 ORDER BY 1, 2"""  # noqa: S608
_FAILED = f"""SELECT g.name, g.verdict, g.launch, g.message, g.at FROM gate g
WHERE g.verdict IN ('FAIL', 'UNKNOWN') AND (g.ledger, g.launch) IN ({_LAUNCHES})
ORDER BY g.at DESC LIMIT 20"""  # noqa: S608
_RELEASES = f"""SELECT l.digest, l.upstream, l.model, l.draft, l.series, l.plugin, l.lock,
  coalesce(r.tree, '') AS tree, count(DISTINCT r.launch) AS launches, count(*) AS runs,
  min(r.started) AS first, max(r.started) AS last
FROM valid_run r JOIN cell c ON c.ledger = r.ledger AND c.key = r.cell
JOIN "release" l ON l.ledger = r.ledger AND l.digest = r."release"
WHERE {_OF} GROUP BY l.ledger, l.digest, r.tree ORDER BY first, l.digest"""  # noqa: S608
_MACHINES = f"""SELECT h.name AS host, r.device_class, r.device, r.tool,
  json_extract(r.protocol, '$.ddops') AS ddops,
  json_extract(r.environment, '$.machine.python') AS python,
  json_extract(r.environment, '$.machine.kernel') AS kernel,
  json_extract(r.environment, '$.machine.cpu') AS cpu,
  count(*) AS runs, max(r.started) AS last,
  (SELECT f.digest FROM facts f WHERE f.ledger = h.ledger AND f.host = h.id
   ORDER BY f.seq DESC LIMIT 1) AS facts,
  (SELECT f.at FROM facts f WHERE f.ledger = h.ledger AND f.host = h.id
   ORDER BY f.seq DESC LIMIT 1) AS facts_at
FROM valid_run r JOIN cell c ON c.ledger = r.ledger AND c.key = r.cell
LEFT JOIN host h ON h.ledger = r.ledger AND h.id = r.host
WHERE {_OF} GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3"""  # noqa: S608
_SAMPLES = """SELECT run, group_concat(first_token_ns - sent_ns) AS ttft,
  group_concat(CASE WHEN tokens > first_tokens
    THEN (last_token_ns - first_token_ns) / (tokens - first_tokens) END) AS tpot
FROM sample WHERE phase = 'window' AND outcome = 'ok' AND first_token_ns IS NOT NULL
  AND sent_ns IS NOT NULL AND run IN ({}) GROUP BY run"""


def collect(ledger: Ledger, service: str | None = None, now: datetime | None = None) -> Findings:
    """Read it all. `service` leaves out what is about others."""
    marks = {"service": service}

    def ask(sql: str) -> list[Row]:
        return _rows(ledger.query(sql, marks, max_rows=MOST, timeout_s=TIMEOUT_S))

    answer = recommend(ledger, service)
    head = ledger.head()
    return Findings(
        service=service or "",
        at=now or datetime.now(UTC),
        head=f"{head.ledger} {head.seq} {head.hash}",
        answer=answer,
        spreads={i: _spreads(ledger, a) for i, a in enumerate(answer.advice)},
        excluded=ask(_EXCLUDED),
        retractions=_rows(ledger.retractions()),
        conclusions=ask(_CONCLUSIONS),
        gates=ask(_GATES),
        failed_gates=ask(_FAILED),
        releases=ask(_RELEASES),
        machines=ask(_MACHINES),
    )


def _rows(found: Sequence[Mapping[str, object]]) -> list[Row]:
    return cast("list[Row]", found)


def drawn_levels(advice: Advice) -> list[int]:
    """The lowest and the highest concurrency: between them lies what changes."""
    levels = sorted(advice.choices)
    return sorted({levels[0], levels[-1]}) if levels else []


def _spreads(ledger: Ledger, advice: Advice) -> list[Spread]:
    """Distributions of what was compared alike at the drawn concurrencies."""
    out = []
    for level in drawn_levels(advice):
        group = advice.choices[level].group
        for c in (c for c in advice.candidates if (c.group, c.level) == (group, level)):
            ttft, interval = _samples(ledger, c.run_ids)
            if len(ttft):
                out.append(
                    Spread(
                        config=c.config.key, name=c.config.name, level=level, n=len(ttft),
                        ttft=_quantiles(ttft), interval=_quantiles(interval),
                    )
                )  # fmt: skip
    return out


def _samples(ledger: Ledger, runs: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """ns of each request; one row of text a run comes out of SQLite."""
    parts: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for start in range(0, len(runs), _AT_ONCE):
        some = runs[start : start + _AT_ONCE]
        marks = ", ".join("?" * len(some))
        for row in ledger.query(_SAMPLES.format(marks), list(some), timeout_s=TIMEOUT_S):
            for place, column in zip(parts, ("ttft", "tpot"), strict=True):
                text = row[column]
                if text:
                    place.append(np.array(str(text).split(","), dtype=np.float64))
    joined = [np.concatenate(p) if p else np.array([]) for p in parts]
    return joined[0], joined[1]


def _quantiles(values: np.ndarray) -> tuple[float, ...]:
    """Evenly spaced quantiles in ms, from the least to the greatest value."""
    if not len(values):
        return ()
    shares = np.linspace(0, 1, min(_POINTS, max(2, len(values))))
    return tuple(float(v) / 1e6 for v in np.quantile(values, shares))
