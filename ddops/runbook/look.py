"""Looking at what conditions ask about. Reads only: hosts, the ledger, files. Writes nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from ddops import lock
from ddops.compat.host import judge_host, launch_for
from ddops.config.files import read_regular
from ddops.deploy import look, port_of, prepare
from ddops.deploy.host import ServiceOnHost, serves
from ddops.errors import DdopsError, UsageError
from ddops.inventory import services_on
from ddops.inventory.router import router_alone, routers_on
from ddops.layout import HostLayout
from ddops.ledger import Scalar
from ddops.ledger.clean import stamp
from ddops.model import short
from ddops.probe import Facts, collect
from ddops.provision.apply import plan_host
from ddops.runbook.conditions import CheckIs, Condition, Fact, FileIs, LedgerHas, StateIs
from ddops.runbook.context import Context
from ddops.runbook.judge import (
    Judged,
    Truth,
    file_words,
    judge_check,
    judge_fact,
    judge_file,
    judge_ledger,
    judge_state,
    ledger_words,
)
from ddops.transport.files import read_file
from ddops.transport.trust import known_here

#: What a condition on a file reads at most.
MAX_FILE = 16 << 20
#: One count for each kind. The texts are constants; values are bound.
_COUNTS: Mapping[str, str] = {
    "deployment": """SELECT count(DISTINCT d.op_id) AS n FROM deployment d
JOIN host h ON h.ledger = d.ledger AND h.id = d.host
JOIN transition t ON t.ledger = d.ledger AND t.op_id = d.op_id
WHERE t.state = 'committed' AND t.verdict = 'ok' AND (:host IS NULL OR h.name = :host)
AND (:service IS NULL OR d.service = :service) AND (:since IS NULL OR t.at >= :since)""",
    "snapshot": """SELECT count(*) AS n FROM snapshot s
JOIN host h ON h.ledger = s.ledger AND h.id = s.host
WHERE (:host IS NULL OR h.name = :host) AND (:since IS NULL OR s.at >= :since)""",
    "drill": """SELECT count(*) AS n FROM snapshot_drill d
JOIN snapshot s ON s.ledger = d.ledger AND s.id = d.snapshot
JOIN host h ON h.ledger = s.ledger AND h.id = s.host
WHERE d.verdict = 'PASS' AND (:host IS NULL OR h.name = :host)
AND (:since IS NULL OR d.at >= :since)""",
    "runs": """SELECT count(*) AS n FROM valid_run r
JOIN cell c ON c.ledger = r.ledger AND c.key = r.cell
LEFT JOIN host h ON h.ledger = r.ledger AND h.id = r.host
WHERE c.suite = :suite AND (:host IS NULL OR h.name = :host)
AND (:service IS NULL OR c.service = :service) AND (:since IS NULL OR r.ended >= :since)""",
    "retraction": """SELECT count(*) AS n FROM retraction t
WHERE (t.value = :value OR substr(t.value, 1, length(:value)) = :value)
AND (:since IS NULL OR t.at >= :since)""",
}


class Looker:
    """Answers conditions. What was seen of a host is kept for the life of one looker."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._facts: dict[str, Facts] = {}

    def judge_all(self, conditions: Sequence[Condition]) -> list[Judged]:
        """Each condition; one that cannot be looked at is UNKNOWN, with the reason."""
        return [self.judge(c) for c in conditions]

    def judge(self, c: Condition) -> Judged:
        try:
            match c:
                case Fact():
                    return judge_fact(c, self.facts(c.host).raw)
                case CheckIs():
                    return self._check(c)
                case StateIs():
                    return judge_state(c, *self._state(c))
                case LedgerHas():
                    return judge_ledger(c, self._count(c))
                case FileIs():
                    return judge_file(c, self._file(c))
        except DdopsError as error:
            return Judged(_words(c), Truth.UNKNOWN, "; ".join(error.lines()[:2]))

    def facts(self, name: str) -> Facts:
        if name not in self._facts:
            ctx, host = self._context, self._context.host(name)
            root = str(host.vars.get("root", "/"))
            found = collect(ctx.transport(host), host.python, host.engine_dir, root)
            self._facts[name] = found
        return self._facts[name]

    def _check(self, c: CheckIs) -> Judged:
        ctx = self._context
        host = ctx.host(c.host)
        launch = launch_for(ctx.inventory, c.service, host) if c.service else None
        day = ctx.clock.now().date()
        alone = router_alone(ctx.inventory, host)
        found = judge_host(
            self.facts(c.host), host, launch, ctx.inventory.waivers, day, router=alone
        )
        return judge_check(c, found)

    def _state(self, c: StateIs) -> tuple[bool, str]:
        ctx = self._context
        host = ctx.host(c.host)
        if c.state == "trusted":
            known = known_here(ctx.ssh_target(host))
            return known, "its key is known here" if known else "no key of it is known here"
        if c.state == "unlocked":
            held = lock.read(ctx.transport(host), HostLayout(host.engine_dir))
            gone = held is not None and held.owner is not None and held.owner.gone
            words = held.describe() if held else "free"
            return held is None or gone, words + (", whose process is gone" if gone else "")
        return self._provisioned(c) if c.state == "provisioned" else self._serving(c)

    def _provisioned(self, c: StateIs) -> tuple[bool, str]:
        ctx = self._context
        host = ctx.host(c.host)
        with tempfile.TemporaryDirectory(prefix="ddops-") as folder:
            services = services_on(ctx.inventory, host)
            routes = bool(routers_on(ctx.inventory, host))
            made = plan_host(
                ctx.transport(host), host, services, ctx.lookup, Path(folder), routes=routes
            )
        unknown = [p for _, _, p in made.plan.rows if p.change.value == "unknown"]
        if unknown:
            raise DdopsError(
                f"{host.name}: not all is known of it", why="; ".join(unknown[0].lines)
            )
        return made.plan.pending == 0, f"{made.plan.pending} of {len(made.plan.rows)} steps pending"

    def _serving(self, c: StateIs) -> tuple[bool, str]:
        ctx = self._context
        host = ctx.host(c.host)
        service = ctx.service(host)
        profile = ctx.inventory.profile_of(service, c.profile)
        release = prepare(host, service, profile, ctx.lookup)
        port = port_of(host, service)
        target = ServiceOnHost(ctx.transport(host), host, service, port, ctx.lookup, ctx.redactor)
        seen = look(target)
        if seen is None:
            return False, "not provisioned"
        now = short(seen.launch.release) if seen.launch else "nothing"
        words = f"engine {seen.engine.value}, release {now}, wanted {short(release.digest)}"
        if not serves(seen, release.digest):
            return False, words
        committed = target.links().committed == release.digest
        return committed, words + ("" if committed else ", which did not pass its gates")

    def _count(self, c: LedgerHas) -> int:
        now = self._context.clock.now()
        since = stamp(now - timedelta(hours=c.within_h)) if c.within_h else None
        marks: dict[str, Scalar] = {
            "host": c.host, "service": c.service, "suite": c.suite, "value": c.value,
            "since": since,
        }  # fmt: skip
        sql = _COUNTS[c.ledger]
        with self._context.ledger() as book:
            rows = book.query(sql, {k: v for k, v in marks.items() if f":{k}" in sql})
        return int(str(rows[0]["n"]))

    def _file(self, c: FileIs) -> bytes | None:
        if c.host is not None:
            transport = self._context.transport(self._context.host(c.host))
            return read_file(transport, c.file, MAX_FILE)
        try:
            path = self._context.lookup(c.file)
        except UsageError as error:
            if "neither the project nor the package" in error.what:
                return None
            raise
        if path.is_dir():
            return b""
        try:
            data, _ = read_regular(path, MAX_FILE)
        except OSError as error:
            raise UsageError(f"{path} cannot be read", why=str(error)) from error
        if len(data) > MAX_FILE:
            raise UsageError(f"{path} is larger than {MAX_FILE >> 20} MiB")
        return data


def _words(c: Condition) -> str:
    match c:
        case Fact():
            return f"{c.host}: fact {c.fact}"
        case CheckIs():
            return f"{c.host}: check {c.check}"
        case StateIs():
            return f"{c.host}: {'is' if c.holds else 'is not'} {c.state}"
        case LedgerHas():
            return ledger_words(c)
        case FileIs():
            return file_words(c)
