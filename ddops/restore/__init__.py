"""Bringing a snapshot back: onto an empty host to the same release, gated, or single files."""

from ddops.restore.host import Plan, Restored, Tools, restore_host
from ddops.restore.tree import restore_paths

__all__ = ["Plan", "Restored", "Tools", "restore_host", "restore_paths"]
