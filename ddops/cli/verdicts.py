"""How a command ends that looks at hosts and judges them: what it found is its exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # loaded when the command runs: help and completion stay quick
    from ddops.errors import DdopsError
    from ddops.events import Reporter


def end_verdicts(
    outcomes: Sequence[tuple[str, object]], report: Reporter, found: type[DdopsError], words: str
) -> None:
    """Raise what several hosts' verdicts come to.

    A host that is well has not done what another one failed at: where all hosts were judged, one
    that is not well is the answer, and the code of `found` says it. A host that could not be asked
    makes it a mixture, as everywhere.
    """
    from ddops.cli.app import end_together, some, tell_errors

    odd = [(name, o) for name, o in outcomes if isinstance(o, found)]
    failed = [name for name, o in outcomes if isinstance(o, Exception)]
    if not odd or len(odd) != len(failed) or len(outcomes) == 1:
        end_together(outcomes, report)
        return
    tell_errors(odd, report)
    raise found(f"{len(odd)} of {len(outcomes)} hosts {words}: {some([n for n, _ in odd])}")
