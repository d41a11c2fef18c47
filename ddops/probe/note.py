"""Facts into the ledger: a row when they are not those it had last."""

from __future__ import annotations

from ddops.inventory.model import Host
from ddops.ledger import Ledger
from ddops.probe.facts import Facts


def note_facts(ledger: Ledger, host: Host, facts: Facts) -> bool:
    """Whether they were new."""
    last = ledger.facts_latest(host.name) if ledger.host(host.name) else None
    if last is not None and last.digest == facts.digest:
        return False
    pins = {"gpu_uuids": list(host.pins.gpu_uuids), "host_key": host.pins.host_key}
    ledger.add_host(host.name, pins)
    ledger.add_facts(host.name, dict(facts.raw), digest=facts.digest, simulated=facts.simulated)
    return True
