"""One deployed service: gates of correctness, then levels and repeats, each stored as it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ddops.bench import record
from ddops.bench.answer import Load, Look
from ddops.bench.figures import Figures, figures
from ddops.bench.gating import Gated, Gatekeeper
from ddops.bench.plan import LoadPlan, Point, Request, common_body, text_body
from ddops.bench.prompts import Prompts, constant_schedule, draw, poisson_schedule
from ddops.bench.target import Proof, Target, by, device_of, prove
from ddops.bench.validity import Asked, Finding, judge_run, warnings_of, worst
from ddops.bench.window import Window, closed_window, open_window
from ddops.events import Reporter
from ddops.inventory.suites import Suite
from ddops.ledger import Ledger
from ddops.ledger.bench_records import Cell, Identity, NewRun, Status

#: Part of an open loop's time that is its warm-up.
WARM_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Measured:
    """One stored run, for whoever shows it."""

    run: str
    cell: Cell
    label: str
    concurrency: int | None
    repeat: int
    status: Status
    reason: str
    numbers: Figures | None
    warnings: tuple[str, ...] = ()


@dataclass(slots=True)
class Bench:
    """Measures one target by one suite. `stopped` is looked at between runs."""

    target: Target
    suite: Suite
    prompts: Prompts
    ledger: Ledger
    report: Reporter
    stopped: Callable[[], bool]

    def measure(
        self, points: Sequence[Point], repeats: Sequence[int], wanted: Callable[[Cell], bool]
    ) -> Iterator[Measured]:
        """Gates, every load and repeat whose cell is `wanted`, and the gates once more.

        A start whose gates fail is measured no further: one run says so, and why.
        """
        proof = prove(self.target, self.ledger)
        widths = sorted({1, max((p.level or 1 for p in points), default=1)})
        keeper = Gatekeeper(self.target, self.ledger, self.report)
        gated = keeper.gate(proof, widths)
        for repeat in repeats:
            for point in points:
                if self.stopped():
                    return
                cell = self.cell(proof.release, point)
                if not wanted(cell):
                    continue
                if gated.against:
                    yield self._refused(cell, proof, gated, point, repeat)
                    continue
                yield self._one(cell, proof, gated, point, repeat)
        if not gated.against and not self.stopped():
            # An engine that went wrong on the way takes its numbers with it: the ledger counts
            # no run of a start on which a gate of the same name failed, before or after.
            keeper.gate(prove(self.target, self.ledger), widths)

    def cell(self, release: str, point: Point) -> Cell:
        t = self.target
        return record.cell_of(
            t.service, t.host, t.profile, release, self.suite, self.prompts, point
        )

    # ---- runs

    def plan(self, proof: Proof, point: Point, repeat: int) -> LoadPlan:
        suite = self.suite
        at = self.schedule(point, repeat)
        count = len(at) if at is not None else suite.requests(point.level or 1)
        drawn = draw(self.prompts, count, suite.seed, point.words, repeat)
        return LoadPlan(
            where=self.target.where(proof.weight_version),
            route=suite.route,
            common=common_body(suite, self.target.model),
            requests=[Request(id=i, body=text_body(suite.route, text)) for i, text in drawn],
            concurrency=point.level,
            at_ns=at,
            connections=suite.connections,
            timeout_s=suite.timeout_s,
            deadline_s=suite.deadline_s,
            sample_s=suite.sample_s,
        )

    def schedule(self, point: Point, repeat: int) -> list[int] | None:
        """When each request of an open loop is due; None for a closed one."""
        if point.rate is None:
            return None
        count = self.suite.arrivals_of(point.rate)
        if self.suite.arrivals == "constant":
            return constant_schedule(point.rate, count)
        return poisson_schedule(point.rate, count, self.suite.seed * 1000 + repeat)

    def asked(self, proof: Proof, point: Point) -> Asked:
        suite = self.suite
        info = proof.seen.server_info.values if proof.seen.server_info else {}
        return Asked(
            route=suite.route,
            concurrency=point.level,
            rate=point.rate,
            weight_version=proof.weight_version,
            output_tokens=suite.output_tokens,
            ignore_eos=suite.ignore_eos,
            speculative=bool(info.get("speculative_algorithm")),
            max_send_delay_ms=suite.limits.send_delay_ms,
            max_noise=suite.limits.noise,
            max_short=suite.limits.short,
            max_bound_ms=suite.limits.bound_ms,
        )

    def _one(self, cell: Cell, proof: Proof, gated: Gated, point: Point, repeat: int) -> Measured:
        load = self.target.run(self.plan(proof, point, repeat))
        window, numbers = analyse(load, point, self.suite)
        asked = self.asked(proof, point)
        found = judge_run(load, window, numbers, asked)
        return self._store(cell, proof, gated, load, window, numbers, found, asked, repeat)

    def _store(
        self, cell: Cell, proof: Proof, gated: Gated, load: Load, window: Window,
        numbers: Figures | None, found: Sequence[Finding], asked: Asked, repeat: int,
    ) -> Measured:  # fmt: skip
        status, reason = worst(found)
        warnings = warnings_of(numbers, asked)
        began, ended = record.span(load)
        proven = asked.route == "generate"
        bound = proof.launch is not None
        new = NewRun(
            cell=cell.key, status=status, reason=reason, repeat=repeat,
            identity=Identity.PROVEN if proven else Identity.BRACKETED,
            device_class=device_of(load.before.info, self.target.host),
            device=device_name(load), started=began, ended=ended,
            launch=proof.nonce if bound else None, gates=gated.ids,
            host=self.target.host.name if bound else None,
            concurrency=asked.concurrency, requests=len(load.samples),
            failed=record.failed(load.samples), by=by(),
            protocol=record.protocol_of(load, self.suite, self.prompts),
            window=record.window_of(window), environment=record.environment_of(load, window),
            metrics=record.metrics_of(numbers, warnings),
        )  # fmt: skip
        if numbers is not None:
            new = _with_figures(new, load, window, numbers)
        rows = record.sample_rows(load, window, proven=proof.weight_version if proven else None)
        self.ledger.add_cell(cell)
        run = self.ledger.add_run(new, rows, record.condition_rows(load), record.raw_data(load))
        return Measured(
            run, cell, cell.label, asked.concurrency, repeat, status, reason, numbers,
            tuple(warnings),
        )  # fmt: skip

    def _refused(
        self, cell: Cell, proof: Proof, gated: Gated, point: Point, repeat: int
    ) -> Measured:
        """A row without a number: what was not measured, and why."""
        asked = self.asked(proof, point)
        empty = Window(0, 0, "not measured", False, worst(gated.against)[1])
        info = proof.seen.server_info.values if proof.seen.server_info else {}
        seen = Load(before=Look(info=info))
        return self._store(
            cell, proof, Gated(gated.ids if proof.launch else (), ()), seen, empty, None,
            gated.against, asked, repeat,
        )  # fmt: skip


def settled(ledger: Ledger, done: Sequence[Measured]) -> list[Measured]:
    """What was measured, as it counts now: gates behind a run may have taken it back."""
    words = "a gate failed on this start afterwards, or it was withdrawn"
    return [
        m if m.reason or ledger.run(m.run).valid
        else replace(m, status=Status.INVALID, reason=words)
        for m in done
    ]  # fmt: skip


def analyse(load: Load, point: Point, suite: Suite) -> tuple[Window, Figures | None]:
    """Window and figures; no figures where there is no window."""
    if point.level is not None:
        window = closed_window(load.samples, point.level, suite.warm_waves)
    else:
        window = open_window(load.samples, WARM_SHARE * suite.rate_s)
    closed = point.level is not None
    numbers = figures(load.samples, window, closed=closed) if window.ns > 0 else None
    return window, numbers


def _with_figures(new: NewRun, load: Load, window: Window, numbers: Figures) -> NewRun:
    commit = numbers.commit
    return replace(
        new,
        c_eff=numbers.at_once,
        output_tokens=numbers.output_tokens,
        window_ms=window.ns / 1e6,
        output_tps=numbers.output_tps,
        request_tps=numbers.request_tps,
        ttft_p50_ms=numbers.spread["ttft_p50_ms"],
        ttft_p99_ms=numbers.spread["ttft_p99_ms"],
        tpot_p50_ms=numbers.spread["tpot_p50_ms"],
        tpot_p99_ms=numbers.spread["tpot_p99_ms"],
        commit_tokens=commit.tokens if commit else None,
        commit_steps=commit.steps if commit else None,
    )


def device_name(load: Load) -> str:
    machine = load.machine
    gpus = machine.get("gpus") or ()
    return f"{len(gpus)}x {gpus[0][0]}" if gpus else str(machine.get("cpu", ""))
