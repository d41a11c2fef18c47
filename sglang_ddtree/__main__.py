"""`python -m sglang_ddtree`: can DDTREE run in this environment? JSON; exit 0 or 1."""

from __future__ import annotations

import json
import sys

from sglang_ddtree.compat import SGLANG_VERSION
from sglang_ddtree.plugin import preflight


def main() -> int:
    found = preflight()
    json.dump({"algorithm": "DDTREE", "sglang": SGLANG_VERSION, "problems": found}, sys.stdout)
    sys.stdout.write("\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
