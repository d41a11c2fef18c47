"""What is judged, what comes of it, and how a check's function says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ddops.compat import coverage, tables
from ddops.compat.coverage import Cc
from ddops.model import Verdict
from ddops.probe import Chain, Facts
from ddops.probe.version import branch


@dataclass(frozen=True, slots=True)
class Launch:
    """One service's launch. `argv` are the engine's options; `engine` is `sglang-0.5.23`.

    `plugins` are algorithms that a declared fork or plugin adds.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    engine: str = ""
    model: str = ""
    plugins: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        return self.engine.removeprefix("sglang-")


#: Stands for an engine environment on a host that has a router and no service.
ROUTER_ALONE = "router"


@dataclass(frozen=True, slots=True)
class Subject:
    """What is judged: facts, what the inventory says the host is for, and perhaps a launch."""

    facts: Facts
    host_class: str
    engine_env: str
    pinned_gpus: tuple[str, ...] = ()
    launch: Launch | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A check's outcome: what was seen, and what to do about it."""

    check: str
    title: str
    verdict: Verdict
    seen: str
    mend: str = ""
    severity: str = "E"
    group: str = ""
    required: bool = False
    waived: str = ""

    @property
    def refuses(self) -> bool:
        """Whether nothing may be started on the host because of it."""
        if self.waived:
            return False
        if self.verdict is Verdict.FAIL:
            return self.severity in ("B", "E")
        return self.verdict is Verdict.UNKNOWN and self.required


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check's function answers. An empty `mend` means the one of its data row."""

    verdict: Verdict
    seen: str
    mend: str = ""


def ok(seen: str) -> Outcome:
    return Outcome(Verdict.PASS, seen)


def info(seen: str) -> Outcome:
    return Outcome(Verdict.INFO, seen)


def warn(seen: str, mend: str = "") -> Outcome:
    return Outcome(Verdict.WARN, seen, mend)


def fail(seen: str, mend: str = "") -> Outcome:
    return Outcome(Verdict.FAIL, seen, mend)


def unknown(seen: str, mend: str = "") -> Outcome:
    return Outcome(Verdict.UNKNOWN, seen, mend)


def skip(seen: str) -> Outcome:
    return Outcome(Verdict.SKIP, seen)


class Look:
    """A subject with what several checks ask of it, worked out once."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.facts = subject.facts
        self.chain = Chain(subject.facts)
        self.launch = subject.launch

    @cached_property
    def caps(self) -> list[Cc] | None:
        """Compute capability of every GPU; None when one does not say."""
        found = [coverage.parse_cc(g.compute_cap) for g in self.facts.gpus or ()]
        known = [c for c in found if c is not None]
        return known if known and len(known) == len(found) else None

    @cached_property
    def kinds(self) -> list[Mapping[str, object]] | None:
        """Rows of the GPU table, one a kind; None when a GPU is not in it or not known."""
        if self.caps is None:
            return None
        rows = [tables.row("gpus", f"{a}.{b}") for a, b in sorted(set(self.caps))]
        return [r for r in rows if r is not None] if None not in rows else None

    @property
    def unknown_kind(self) -> str:
        """Why `kinds` is None."""
        if self.caps is None:
            return "the compute capability of the GPUs is not known"
        new = [f"{a}.{b}" for a, b in sorted(set(self.caps)) if not tables.row("gpus", f"{a}.{b}")]
        return tables.table("gpus").ends(f"compute capability {', '.join(new)}")

    @cached_property
    def branch(self) -> int | None:
        return branch(self.chain.driver)

    @cached_property
    def driver_isa(self) -> Cc | None:
        return tables.ptx_of_driver(self.branch)

    @cached_property
    def fabric(self) -> str | None:
        """none, nvlink4, nvlink5; None when it cannot be told.

        The GPU's kind is not enough: H100 and H200 exist as PCIe cards, on which nothing of a
        fabric is to be found.
        """
        if self.kinds is None:
            return None
        kinds = {str(k["fabric"]) for k in self.kinds}
        if kinds == {"none"}:
            return "none"
        names = " ".join(g.name or "" for g in self.facts.gpus or ())
        if "PCIe" in names or " NVL" in names:
            return "none"
        return max(kinds - {"none"})

    @property
    def has_engine(self) -> bool:
        return self.subject.engine_env == "sglang"

    def no_engine(self) -> Outcome | None:
        """Why a check of the engine's environment cannot be asked, or None."""
        if not self.has_engine:
            return skip(f"the engine environment is {self.subject.engine_env}")
        if self.chain.env is None:
            words = self.facts.unread.get("env", "")
            if not words or words.startswith("no engine environment"):
                return skip("no engine environment yet: ddops provision builds it")
            return unknown(f"the engine's interpreter did not answer: {words}")
        return None
