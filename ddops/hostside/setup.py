#!/usr/bin/env python3
"""Does, undoes or lists a host's setup. Prints JSON.

    setup.py < SPEC

SPEC holds `verb` (do, undo, manifest), `state` (the folder of ddops' own state), `op`, and
`resources`: tables with `kind` and `id`; for undo `ids`. Looking goes through state.py.
"""

import json
import sys

from ddops.hostside.setup_run import do, manifest, undo

SCHEMA = "ddops.setup/1"


def main():
    spec = json.load(sys.stdin)
    answer = {"do": do, "undo": undo, "manifest": manifest}[spec["verb"]](spec)
    json.dump({"schema": SCHEMA, **answer}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
