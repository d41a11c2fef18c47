"""The command line. Only this package imports click; each command loads when it is called."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point: one place turns errors into words and exit codes."""
    from ddops.cli.root import run

    sys.exit(run(sys.argv[1:]))
