"""A bundle with canaries in everything it takes: none comes out."""

from __future__ import annotations

import io
import json
import stat
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ddops.command import Redactor, Secret
from ddops.errors import UsageError
from ddops.ledger import Ledger
from ddops.report.bundle import Bundle, add_here, add_ledger, write
from ddops.report.bundle_host import whole_lines
from tests.ledgers import make_ledger

NOW = datetime(2026, 1, 2, tzinfo=UTC)
#: No well-known shape; a quote and a slash, so that JSON and addresses spell it otherwise.
CANARY = 'xK9-canary/"Otter7'
STRAY = "hf_AbCdEfGhIjKlMnOpQrStUvWx"


def opened(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {
            m.name: (archive.extractfile(m) or io.BytesIO()).read().decode()
            for m in archive.getmembers()
        }


def test_no_canary_comes_out(tmp_path: Path) -> None:
    bundle = Bundle(Redactor())
    bundle.text("log.txt", f"early {CANARY}, {STRAY}, api_key={CANARY}\n")
    bundle.json("state.json", {"env": {"HF_TOKEN": "quiet-value"}, "text": STRAY})
    bundle.rows("rows.jsonl", [{"evidence": json.dumps({"api_key": "quiet-value"}), "raw": b"x"}])
    bundle.without("log", f"failed with {STRAY}")
    bundle.redactor.add(Secret(CANARY))  # learned from a host after the log was taken
    bundle.remask()
    path = tmp_path / "b.tar.gz"
    assert write(bundle, path, NOW) == path.stat().st_size
    files = opened(path)
    for name, text in files.items():
        assert "canary" not in text and STRAY not in text and "quiet-value" not in text, name
    manifest = json.loads(files["b/manifest.json"])
    assert set(manifest["files"]) == {"log.txt", "state.json", "rows.jsonl"}
    assert manifest["left_out"] == [{"what": "log", "why": "failed with ***"}]
    assert "early ***" in files["b/log.txt"]


def test_it_is_private_and_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    write(Bundle(Redactor()), path, NOW)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    with pytest.raises(UsageError, match="is there already"):
        write(Bundle(Redactor()), path, NOW)
    assert path.read_bytes() == before


def test_half_a_line_is_dropped() -> None:
    """A log's end may begin in the middle of a secret, which nothing would recognise."""
    assert whole_lines(b"tter7 tail\nnext\n", 16) == "next\n"
    assert whole_lines(b"whole\nnext\n", 16) == "whole\nnext\n"
    assert whole_lines(b"x" * 16, 16) == ""
    assert whole_lines(b"\xff\n", 16) == "\\xff\n"


def test_the_ledgers_part_is_of_the_services_asked_for(tmp_path: Path) -> None:
    make_ledger(tmp_path / "ledger.db", runs=8, samples=8)
    for services, rows in ((["sim"], 8), (["other"], 0), (["'; DROP TABLE run"], 0)):
        bundle = Bundle(Redactor())
        with Ledger.open(tmp_path / "ledger.db", redactor=Redactor(), readonly=True) as book:
            add_ledger(bundle, book, services, ["simhost"])
        add_here(bundle, NOW, {"a": 1})
        assert bundle.files["ledger/run.jsonl"].count(b"\n") == rows
        assert bundle.left_out == [
            {"what": "hosts/simhost/facts.jsonl", "why": "no facts of this host are on record"}
        ]
        assert json.loads(bundle.files["here/versions.json"])["packages"]["click"]
