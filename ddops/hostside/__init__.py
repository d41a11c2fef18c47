"""Scripts that run on a host: standard library only, Python 3.9 or newer.

They are sent by `ddops.transport.python` on standard input, or laid down by provision;
the controller never imports them to do work. `source` gives a script's text.
"""

from __future__ import annotations

from importlib import resources


def joined(*names: str) -> str:
    """Several scripts as one, in this order: what one imports of another is there already."""
    kept = [
        line
        for name in names
        for line in source(name).splitlines()
        if not line.startswith(("from ddops.hostside.", "from __future__ "))
    ]
    return "\n".join(["from __future__ import annotations", *kept, ""])


def source(name: str) -> str:
    """The text of the host-side script `name` (without `.py`)."""
    return (resources.files(__name__) / f"{name}.py").read_text(encoding="utf-8")
