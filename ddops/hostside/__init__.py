"""Scripts that run on a host: standard library only, Python 3.9 or newer.

They are sent by `ddops.transport.python` on standard input, or laid down by provision;
the controller never imports them to do work. `source` gives a script's text.
"""

from __future__ import annotations

from importlib import resources


def source(name: str) -> str:
    """The text of the host-side script `name` (without `.py`)."""
    return (resources.files(__name__) / f"{name}.py").read_text(encoding="utf-8")
