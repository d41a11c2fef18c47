"""Values as a report shows them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ddops.model import short
from ddops.recommend.answer import Advice
from ddops.recommend.model import Basis, Config, Population


def day(value: object) -> str:
    """A time to the minute."""
    return str(value or "-")[:16].replace("T", " ")


def digest_words(value: object) -> str:
    text = str(value or "")
    return short(text) if text else "-"


def revision(value: object) -> str:
    """`name@revision`, digests short."""
    return re.sub(r"[0-9a-f]{16,}", lambda m: short(m[0]), str(value or "")) or "-"


def opt(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def label(population: Population) -> str:
    """What every picture says above itself; empty for numbers measured on GPUs."""
    if population.basis is Basis.MEASURED:
        kind = population.device_class
        return "" if kind == "gpu" else f"measured on {kind}: says nothing about a GPU"
    if population.basis is Basis.REPORTED:
        return "reported by others, not measured here"
    return "simulated: no number here was measured on a GPU"


def strategy(config: Config) -> str:
    """TP8, PP8, EP4 ... of the launch, with the algorithm where it drafts."""
    told = config.vary.get("strategy")
    launch = config.vary.get("launch")
    options: Mapping[str, object] = launch if isinstance(launch, Mapping) else {}
    parts = [
        f"{word}{options[key]}"
        for word, key in (("EP", "ep-size"), ("PP", "pp-size"), ("TP", "tp-size"))
        if str(options.get(key, "1")) != "1"
    ]
    where = str(told) if told else parts[0] if parts else "TP1" if options else ""
    how = config.algorithm if config.speculative else ""
    return " ".join(w for w in (how, where) if w) or "autoregressive, strategy not told"


def group_words(advice: Advice, group: str) -> str:
    """What tells a group from the others of its population; empty where it is the only one."""
    alike = advice.population.alike
    if len(alike) < 2:
        return ""
    mine = alike[group]
    keys = sorted({k for a in alike.values() for k in a})
    unlike = [k for k in keys if len({a.get(k, "nothing") for a in alike.values()}) > 1]
    return "; ".join(f"{k.removeprefix('fix.')}: {mine.get(k, 'nothing')}" for k in unlike[:4])
