"""Scripts that run on a host: standard library only, Python 3.9 or newer.

They are sent by `ddops.transport.python` on standard input, or laid down by provision;
the controller never imports them to do work. `source` gives a script's text.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib import resources

#: What is in one script with its importer once they are joined, or stands at the top already.
_DROPPED = ("ddops.hostside", "__future__")


@cache
def joined(*names: str) -> str:
    """Several scripts as one, in this order: what one imports of another is there already.

    Only the last one's `if __name__ == "__main__"` stays: that one is run.
    """
    kept = ["from __future__ import annotations"]
    for name in names:
        text = source(name)
        gone: set[int] = set()
        for node in ast.parse(text).body:
            imported = isinstance(node, ast.ImportFrom) and str(node.module).startswith(_DROPPED)
            started = isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
            if imported or (started and name != names[-1]):
                gone |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        kept += [li for n, li in enumerate(text.splitlines(), 1) if n not in gone]
    return "\n".join([*kept, ""])


def source(name: str) -> str:
    """The text of the host-side script `name` (without `.py`)."""
    return (resources.files(__name__) / f"{name}.py").read_text(encoding="utf-8")
