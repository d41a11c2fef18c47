"""Running commands on hosts: over SSH, on this machine, or in memory.

Importing this package loads neither fabric nor paramiko: take the SSH transport from
`ddops.transport.ssh` where it is needed.
"""

from __future__ import annotations

from ddops.transport.base import DEFAULT_DEADLINE_S, DEFAULT_LIMIT, Transport
from ddops.transport.fake import FakeTransport
from ddops.transport.fanout import fan_out
from ddops.transport.local import LocalTransport
from ddops.transport.policy import ConnectPolicy
from ddops.transport.target import SshTarget

__all__ = [
    "DEFAULT_DEADLINE_S",
    "DEFAULT_LIMIT",
    "ConnectPolicy",
    "FakeTransport",
    "LocalTransport",
    "SshTarget",
    "Transport",
    "fan_out",
]
