"""A recommendation as a profile file, its evidence in `[evidence]` and in comments. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from ddops.errors import RefusedError
from ddops.recommend.model import Basis, Choice, Population
from ddops.recommend.view import estimate_words, number

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")
#: What a cell keeps apart from the launch options: its name in `fix`, the option when it is off.
_SWITCHES = {
    "graph": "disable-cuda-graph",
    "overlap": "disable-overlap-schedule",
    "prefix_cache": "disable-radix-cache",
}


def profile_text(
    population: Population, choice: Choice, alike: Mapping[str, str], lost: Sequence[str] = ()
) -> str:
    """The file. `lost` names environment entries that the ledger does not hold (secrets).

    Raises RefusedError where the launch options are not on record: half a profile would start
    something that nobody measured.
    """
    config = choice.chosen.config
    launch, engine = config.vary.get("launch"), config.vary.get("engine")
    if not isinstance(launch, Mapping) or not isinstance(engine, str):
        raise RefusedError(
            f"{config.name} cannot be written as a profile",
            why=f"its runs are {population.basis.value}, and the launch options were not told",
            next=f"ddops bench sweep {population.host or population.service}",
        )
    options = dict(launch) | {
        option: True for name, option in _SWITCHES.items() if alike.get(f"fix.{name}") == "False"
    }
    lines = [*_head(population, choice, lost), f"engine = {_toml(engine)}", "", "[launch]"]
    lines += [f"{_key(k)} = {_toml(v)}" for k, v in sorted(options.items())]
    if config.speculative:
        lines += ["", "[spec]", f"algorithm = {_toml(config.algorithm)}"]
        numbers = ((n, config.number(n)) for n in ("budget", "topk", "block"))
        lines += [f"{n} = {v}" for n, v in numbers if v is not None]
    env = config.vary.get("env")
    if isinstance(env, Mapping) and env:
        lines += ["", "[env]", *(f"{_key(k)} = {_toml(v)}" for k, v in sorted(env.items()))]
    return "\n".join([*lines, "", *_evidence(population, choice), ""])


def _head(population: Population, choice: Choice, lost: Sequence[str]) -> list[str]:
    best = choice.chosen
    words = estimate_words(best.estimate, population.basis)
    out = [
        f"# Recommended for {population.title} at concurrency {choice.level}.",
        f"# {best.config.name}: {words} tok/s, {best.estimate.launches} launches, "
        f"{best.estimate.runs} runs.",
        f"# {choice.certainty.value}: {choice.why}",
    ]
    for rival in choice.rivals:
        c = rival.candidate
        out.append(f"#   over {c.config.name}: {number(c.estimate.value)} tok/s ({rival.word})")
    if population.basis is not Basis.MEASURED or population.device_class != "gpu":
        out.append(f"# {_label(population)}: this says nothing about a GPU.")
    if lost:
        out.append(f"# NOT HERE, set by reference in the measured one: {', '.join(lost)}")
    return [_comment(line) for line in out] + [""]


def _evidence(population: Population, choice: Choice) -> list[str]:
    status = {Basis.MEASURED: "measured", Basis.REPORTED: "reported"}.get(
        population.basis, "untested"
    )
    note = (
        f"{_label(population)} on {population.device or population.host} at concurrency "
        f"{choice.level}: {number(choice.chosen.estimate.value)} tok/s; "
        f"{choice.certainty.value}: {choice.why}"
    )
    runs = "\n".join(f"  {_toml(i)}," for i in choice.run_ids)
    return [
        "[evidence]",
        f"status = {_toml(status)}",
        f"runs = [\n{runs}\n]",
        'source = "ddops recommend"',
        f"note = {_toml(note)}",
    ]


def _label(population: Population) -> str:
    return f"{population.basis.value}, device class {population.device_class}"


def _comment(line: str) -> str:
    return "".join(c if c.isprintable() else " " for c in line)


def _key(name: object) -> str:
    text = str(name)
    return text if _BARE.match(text) else _toml(text)


def _toml(value: object) -> str:
    """A TOML value: a JSON string is a basic string of TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return json.dumps(str(value)).replace("\x7f", "\\u007f")
