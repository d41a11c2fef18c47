"""Series files: read with all faults at once, digested by names and bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddops.errors import ConfigError, UsageError
from ddops.tree.series import parse_patch, read_series, series_digest

GOOD = b"""From 0123456789012345678901234567890123456789 Mon Sep 17 00:00:00 2001
From: Ann <ann@example.org>
Subject: [PATCH 1/2] Mask: siblings do not see each other
 in a tree

What: the mask of siblings
Why: their tokens leaked into each other
Upstream: not sent
Test: test_mask.py

---
diff --git a/sglang/srt/mask.py b/sglang/srt/mask.py
--- a/sglang/srt/mask.py
+++ b/sglang/srt/mask.py
@@ -1 +1 @@
-a
+b
"""


def lookup_in(root: Path):  # type: ignore[no-untyped-def]
    def find(name: str) -> Path:
        path = root / name
        if not path.exists():
            raise UsageError(f"none: {name}")
        return path

    return find


def test_a_patch_says_what_it_is() -> None:
    patch = parse_patch("0001-mask.patch", GOOD)
    assert patch.subject == "Mask: siblings do not see each other in a tree"
    assert patch.headers["Why"] == "their tokens leaked into each other"
    assert patch.files == ("sglang/srt/mask.py",)
    assert patch.missing == ()
    assert parse_patch("x.patch", GOOD.replace(b"Why: ", b"Wy: ")).missing == ("Why",)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no file of `git format-patch`"),
        (b"diff --git a/x b/x\n", "no file of `git format-patch`"),
        (b"From x\nSubject: y\n", "changes nothing"),
        (GOOD.replace(b"b/sglang/srt/mask.py", b"b/../../etc/passwd"), "leads outside"),
        (GOOD + b"\0" * (9 << 20), "more than"),
        (b"\xff\xfe" + GOOD, "no file of `git format-patch`"),
    ],
    ids=["empty", "plain diff", "no diff", "outside", "huge", "other encoding"],
)
def test_what_is_no_patch_is_said(data: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_patch("x.patch", data)


def test_a_series_is_read_in_order_and_its_digest_knows_order_and_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "patches/sglang-0.5.23"
    folder.mkdir(parents=True)
    for name in ("b.patch", "a.patch"):
        (folder / name).write_bytes(GOOD)
    (folder / "series").write_text("# first\nb.patch  # why\n\na.patch\n")
    series = read_series("sglang-0.5.23", lookup_in(tmp_path))
    assert [p.name for p in series.patches] == ["b.patch", "a.patch"]
    assert len(series.digest) == 64
    assert series_digest(series.patches[::-1]) != series.digest
    (folder / "a.patch").write_bytes(GOOD + b"\n")
    assert read_series("sglang-0.5.23", lookup_in(tmp_path)).digest != series.digest
    assert read_series("sglang-9", lookup_in(tmp_path)).digest == ""


def test_all_faults_of_a_series_are_told_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "patches/sglang-0.5.23"
    folder.mkdir(parents=True)
    (folder / "a.patch").write_bytes(GOOD)
    (folder / "bad.patch").write_bytes(b"x")
    (folder / "series").write_text("a.patch\na.patch\nabsent.patch\n../x.patch\nbad.patch\n")
    with pytest.raises(ConfigError) as caught:
        read_series("sglang-0.5.23", lookup_in(tmp_path))
    assert [(p.line, p.key) for p in caught.value.problems] == [
        (2, "a.patch"), (3, "absent.patch"), (4, "../x.patch"), (0, "")
    ]  # fmt: skip
