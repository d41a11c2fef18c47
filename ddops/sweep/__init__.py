"""Experiments over configurations: each cell deployed for real, measured, and stored by its key."""

from ddops.sweep.order import Start, remaining, starts
from ddops.sweep.run import Eta, Sweep, Tools

__all__ = ["Eta", "Start", "Sweep", "Tools", "remaining", "starts"]
