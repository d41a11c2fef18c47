"""The command line. Only this package imports click; each command loads when it is called."""

from __future__ import annotations

import gc
import sys

#: Loading modules makes a hundred thousand objects that live on: looking through them again and
#: again for garbage takes a tenth of a short command's time.
_GC_THRESHOLD = 50_000


def main() -> None:
    """Entry point: one place turns errors into words and exit codes."""
    from ddops.cli.streams import open_all

    open_all()
    from ddops.cli.root import run

    gc.set_threshold(_GC_THRESHOLD)
    code = run(sys.argv[1:])
    gc.freeze()  # the interpreter's last collection frees what the system frees anyway, at once
    sys.exit(code)
