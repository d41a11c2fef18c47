"""Facts of a host: one script, one round trip, typed at the edge."""

from ddops.probe.chain import Chain, CudaInit, Ran, Toolkit
from ddops.probe.facts import Disk, Facts, Gpu, collect, parse_facts

__all__ = [
    "Chain", "CudaInit", "Disk", "Facts", "Gpu", "Ran", "Toolkit", "collect", "parse_facts",
]  # fmt: skip
