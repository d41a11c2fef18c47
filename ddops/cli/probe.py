"""`ddops probe`: collect a host's facts, print or keep them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ddops.cli.options import targets

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.cli.app import App
    from ddops.inventory import Host
    from ddops.probe import Facts


#: Six proofs, each with its own limit in the child.
PROVE_DEADLINE_S = 900.0


def facts_of(app: App, host: Host) -> Facts:
    """One host's facts, in one round trip."""
    from ddops.probe import collect

    root = str(host.vars.get("root", "/"))
    return app.reach(host, lambda t: collect(t, host.python, host.engine_dir, root))


def proved_facts(app: App, host: Host, facts: Facts) -> Facts:
    """The facts with proofs by execution; run only when none is kept for this very chain.

    The results lie on the host (`.ddops/prove.json`) under the digest of these facts.
    """
    import json

    from ddops.command import python
    from ddops.errors import CommandFailed, RefusedError
    from ddops.hostside import source
    from ddops.layout import HostLayout
    from ddops.probe import Chain, parse_facts

    if facts.simulated:
        raise RefusedError(
            f"{host.name}: a recorded host proves nothing",
            next=f"ddops check {host.name}",
        )
    if Chain(facts).proved is not None:
        return facts
    app.say("compiling, launching and copying; this takes a minute or two", host.name)
    place = f"{HostLayout(host.engine_dir).state}/prove.json"
    words = ("--json", "--engine-dir", host.engine_dir, "--digest", facts.chain_digest)
    script = python(source("prove"), *words, "--keep", place, interpreter=host.python)
    done = app.reach(host, lambda t: t.run(script, deadline_s=PROVE_DEADLINE_S))
    try:
        kept = json.loads(done.out)
    except ValueError as error:
        raise CommandFailed(
            f"{host.name}: the proofs did not answer", rc=done.rc, stderr=done.err
        ) from error
    probes = facts.raw.get("probes")
    raw = {**facts.raw, "probes": {**(probes if isinstance(probes, dict) else {}), "proved": kept}}
    return parse_facts(json.dumps(raw))


@click.command()
@targets(required=True)
@click.option(
    "--save",
    metavar="FILE",
    type=click.Path(dir_okay=False, writable=True),
    help="Keep one host's facts in FILE, for ddops check --facts.",
)
@click.pass_obj
def probe(
    app: App,
    target: tuple[str, ...],
    limit: tuple[str, ...],
    exclude: tuple[str, ...],
    save: str | None,
) -> None:
    """Collect facts, print them as JSON, and note them in the ledger.

    Reads only, and needs no root. The ledger gets a row when the facts are not those it had last.

    \b
    ddops probe b300 > b300.json
    ddops probe b300 --save b300.json
    """
    from ddops.cli.app import end_together
    from ddops.cli.output import emit_json
    from ddops.errors import UsageError
    from ddops.probe import Facts

    hosts = app.select(target, limit, exclude).hosts
    if save and len(hosts) != 1:
        raise UsageError(
            f"--save keeps the facts of one host, these are {len(hosts)}", next="ddops probe HOST"
        )
    outcomes = app.fan_out(hosts, lambda h: facts_of(app, h))
    seen = [(h, f) for h, f in outcomes if isinstance(f, Facts)]
    _note(app, seen)
    found = {h.name: dict(f.raw) for h, f in seen}
    if save:
        for one in found.values():
            _keep(app, save, one)
    else:
        emit_json("probe", found)
    end_together([(h.name, f) for h, f in outcomes], app.report)


def _note(app: App, seen: Sequence[tuple[Host, Facts]]) -> None:
    from ddops.probe.note import note_facts

    with app.ledger() as ledger:
        for host, facts in seen:
            note_facts(ledger, host, facts)


def _keep(app: App, path: str, raw: dict[str, object]) -> None:
    """Secrets that the program knows are masked; a capture is shown around."""
    import json

    from ddops.config.files import write_whole

    write_whole(path, json.dumps(app.redactor.tree(raw), indent=1) + "\n")
    app.say(f"facts kept in {path}")
