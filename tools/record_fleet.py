#!/usr/bin/env python3
"""Record a fleet without a terminal, more slowly than the board asks: how the demo was made.

    .venv/bin/python tools/record_fleet.py TARGET... --seconds 150 --every 30 --out FILE.jsonl.gz

The same poller, script and redaction as `ddops board --record`. Hosts of a lab share one machine,
so that 64 of them cannot answer every 5 s; the recording says how often they were asked.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import time
from pathlib import Path

from ddops.board.fleet import Fleet, Heard, Kind
from ddops.board.poller import Poller
from ddops.board.recording import Recorder
from ddops.board.watch import HostWatch
from ddops.cli.app import App
from ddops.cli.watching import read_books, watched


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="+")
    parser.add_argument("--project", default=".")
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--every", type=float, default=30)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    app = App(args.project, verbose=0, quiet=False)
    watches = [Spread(w, args.every) for w in watched(app, args.target, (), ())]
    hosts = [dataclasses.replace(w.inner.spec, every_s=args.every) for w in watches]
    recorder, known = Recorder(args.out, hosts, time.time()), Fleet.of(hosts)

    def tell(heard: Heard) -> None:
        recorder(heard)
        if heard.kind is not Kind.BOOKS:
            known.apply(heard)

    poller = Poller(
        watches, read_books(app, known), tell, app.redactor,
        every_s=args.every, books_every_s=args.every,
    )  # fmt: skip
    poller.start()
    time.sleep(args.seconds)
    poller.stop()
    recorder.close()
    print(
        f"{args.out}: {known.heard} answers of {len(hosts)} hosts, {args.out.stat().st_size} bytes"
    )


class Spread:
    """A watch whose first look comes at some moment of the first interval."""

    def __init__(self, inner: HostWatch, every_s: float) -> None:
        self.inner = inner
        self.name = inner.name
        self._wait = random.Random(inner.name).uniform(0, every_s)  # noqa: S311  spreads, no more

    def look(self) -> dict[str, object]:
        time.sleep(self._wait)
        self._wait = 0.0
        return self.inner.look()

    def drift(self) -> dict[str, object]:
        return self.inner.drift()

    def close(self) -> None:
        self.inner.close()


if __name__ == "__main__":
    main()
