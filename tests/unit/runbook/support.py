"""A runbook in memory: a real ledger, a host that is a FakeTransport, a project in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddops.clock import SystemClock
from ddops.command import Redactor, Secret
from ddops.config import find_project, lookup
from ddops.deploy import Settings, Stop
from ddops.errors import UsageError
from ddops.events import ListReporter
from ddops.inventory import Host, load
from ddops.ledger import JournalEntry, Ledger, NewTask, Task
from ddops.runbook.bind import Bound, bind, parse_values
from ddops.runbook.context import Context
from ddops.runbook.parse import parse_runbook
from ddops.runbook.run import Run
from ddops.snapshot import Tools
from ddops.transport import ConnectPolicy, FakeTransport, SshTarget

HOSTS = """
[hosts.box]
ssh = "box"
class = "cpu"
engine_env = "sim"
groups = ["pair"]
[hosts.bay]
ssh = "bay"
class = "cpu"
engine_env = "sim"
groups = ["pair"]
"""
HEAD = 'title = "t"\nabout = "a"\n'


def no_snapshots(_host: Host) -> Tools:
    raise UsageError("no snapshots here")


@dataclass
class Bench:
    """Everything a run is given, with the parts a test looks at."""

    root: Path
    hosts: dict[str, FakeTransport] = field(default_factory=dict)
    report: ListReporter = field(default_factory=ListReporter)
    redactor: Redactor = field(default_factory=Redactor)
    stop: Stop = field(default_factory=Stop)
    answer: bool | None = None
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.write("ddops.toml", "")
        self.write("inventory/hosts.toml", HOSTS)
        self.hosts = {n: FakeTransport(n) for n in ("box", "bay")}

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def ledger(self) -> Ledger:
        return Ledger.open(self.root / ".ddops" / "ledger.db", redactor=self.redactor)

    def context(self) -> Context:
        project = find_project(self.root)

        def confirm(words: str) -> bool:
            self.asked.append(words)
            return bool(self.answer)

        return Context(
            root=self.root,
            state=self.root / ".ddops",
            inventory=load(project),
            settings=Settings(10.0, 0.1, 3, 5.0),
            policy=ConnectPolicy(),
            transport=lambda h: self.hosts[h.name],
            ssh_target=lambda h: SshTarget(h.name, h.ssh, None, h.pins.host_key),
            lookup=lambda name: lookup(project, name),
            ledger=self.ledger,
            open_ledger=self.ledger,
            resolve=lambda ref: self.redactor.add(Secret("hunter2-" + ref.partition(":")[2], ref)),
            snapshots=no_snapshots,
            redactor=self.redactor,
            report=self.report,
            clock=SystemClock(),
            stop=self.stop,
            confirm=None if self.answer is None else confirm,
        )

    def bound(self, text: str, *values: str, hosts: Sequence[str] = ()) -> Bound:
        book = parse_runbook(HEAD + text, "book")
        return bind(book, parse_values(book, hosts, values), self.context().inventory)

    def begin(self, bound: Bound, run_id: str = "r1", by: str = "ann@here") -> Run:
        tasks = [NewTask(step=s.key, content=s.content, priority=s.priority) for s in bound.steps]
        with self.ledger() as book:
            book.add_runbook_run(
                run_id, runbook=bound.runbook.name, source=bound.runbook.source,
                params=dict(bound.params), hosts=bound.hosts, by=by, tasks=tasks,
            )  # fmt: skip
        return self.again(bound, run_id, by)

    def again(self, bound: Bound, run_id: str = "r1", by: str = "ann@here") -> Run:
        return Run(run_id, bound, self.context(), by)

    def journal(self, run_id: str = "r1") -> list[JournalEntry]:
        with self.ledger() as book:
            return book.runbook_events(run_id)

    def states(self, run_id: str = "r1") -> list[str]:
        return [f"{e.step} {e.state}".strip() for e in self.journal(run_id)]

    def tasks(self, run_id: str = "r1") -> list[Task]:
        with self.ledger() as book:
            return book.tasks(run_id=run_id)


def shell(name: str, *more: str, host: str = "box", effects: str = "none", word: str = "") -> str:
    """A step that runs one word on a host."""
    lines = [
        "[[steps]]", f'id = "{name}"', f'content = "do {name}"',
        f'do = {{ step = "shell", host = "{host}", argv = ["{word or name}"],'
        f' effects = ["{effects}"] }}',
        *more,
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
