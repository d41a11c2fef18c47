#!/usr/bin/env python3
"""Rewrites sglang_ddtree/fingerprints.toml from the SGLang of this interpreter.

Run it with the engine's Python, with --add where the installed SGLang is a patched one: its hashes
then stand beside those of the release.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sglang_ddtree.compat import fingerprint, known  # noqa: E402

TABLE = ROOT / "sglang_ddtree/fingerprints.toml"


def main() -> int:
    """Print what changed; write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--add", action="store_true", help="keep the hashes that are there")
    add = parser.parse_args().add
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("#")]
    for module, names in known().items():
        lines += ["", f'["{module}"]']
        for name, good in names.items():
            found = fingerprint(module, name)
            if found is None:
                sys.exit(f"sglang.{module}.{name} is missing: the table needs another target")
            hashes = list(dict.fromkeys([*good, found])) if add else [found]
            if hashes != list(good):
                print(f"{module}.{name}: {list(good)} -> {hashes}")
            lines.append(f'"{name}" = {json.dumps(hashes)}')
    TABLE.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
