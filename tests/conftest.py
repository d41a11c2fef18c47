"""For all tiers: a shell that puts a job in the background makes it ignore Ctrl-C.

Tests that send SIGINT to a child need the child to hear it, so the ignoring is not passed on.
"""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
