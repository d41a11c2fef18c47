"""Facts of a host: one script, one round trip, typed at the edge."""

from ddops.probe.facts import Disk, Facts, Gpu, collect, parse_facts

__all__ = ["Disk", "Facts", "Gpu", "collect", "parse_facts"]
