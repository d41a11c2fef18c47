"""What every chained table begins and ends with, as SQL."""

from __future__ import annotations

LINK = """
  ledger TEXT NOT NULL, seq INTEGER NOT NULL CHECK (seq > 0),
  prev TEXT NOT NULL CHECK (length(prev) = 64), hash TEXT NOT NULL CHECK (length(hash) = 64),"""
END = "PRIMARY KEY (ledger, seq)) STRICT, WITHOUT ROWID"
