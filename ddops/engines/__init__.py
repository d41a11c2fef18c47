"""What is particular to one engine: options, identity, log lines. SGLang is the first."""

from ddops.engines.sglang import launch_spec
from ddops.engines.spec import LaunchSpec, release_content, release_digest

__all__ = ["LaunchSpec", "launch_spec", "release_content", "release_digest"]
