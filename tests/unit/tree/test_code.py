"""Code of an environment with a series on it: whole or not there, three-way, and put back."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.unit.tree.conftest import LINES, Managed, edited


def make(managed: Managed, patches: list[dict[str, str]], digest: str = "d") -> dict[str, object]:
    site = managed.root / "env/lib/python3.11/site-packages"
    if not site.exists():
        shutil.copytree(managed.package(managed.upstream), site / "sglang")
    return managed.ask("code", env=str(managed.root / "env"), digest=digest, engine="sglang-0.5.23",
                       series="s", patches=patches)  # fmt: skip


def package(managed: Managed) -> Path:
    return managed.tree / "sglang"


def test_it_appears_whole_and_only_once(managed: Managed) -> None:
    one = managed.patch("one", {"srt/a.py": edited(3, "patched")})
    done = make(managed, [one])
    assert (done["state"], done["made"]) == ("ok", True)
    assert (package(managed) / "srt/a.py").read_text() == edited(3, "patched")
    untouched = managed.root / "env/lib/python3.11/site-packages/sglang/srt/a.py"
    assert untouched.read_text() == "".join(LINES)
    again = make(managed, [one])
    assert (again["made"], again["kept"]) == (False, None)
    assert not Path(f"{managed.tree}.new").exists()


def test_lines_that_moved_are_merged_three_ways(managed: Managed) -> None:
    """The patch was made on the upstream, and a patch before it has moved its lines."""
    second = managed.patch("second", {"srt/a.py": edited(30, "second")})
    first = managed.patch("first", {"srt/a.py": "new line\n" * 9 + edited(30, "second")})
    done = make(managed, [second, first])
    assert done["state"] == "ok", done


def test_a_conflict_leaves_nothing_and_names_the_hunk(managed: Managed) -> None:
    managed.patch("one", {"srt/a.py": edited(3, "patched")})
    behind = managed.patch("two", {"srt/a.py": edited(3, "patched again")})
    refused = make(managed, [behind])
    assert refused["state"] == "conflict"
    assert not managed.tree.exists()


def test_a_folder_of_another_digest_is_never_touched(managed: Managed) -> None:
    one = managed.patch("one", {"srt/a.py": edited(3, "patched")})
    make(managed, [one])
    refused = make(managed, [one], digest="another")
    assert refused["state"] == "there"
    assert (package(managed) / "srt/a.py").read_text() == edited(3, "patched")


def test_edits_by_hand_are_kept_under_a_ref_and_put_back(managed: Managed) -> None:
    one = managed.patch("one", {"srt/a.py": edited(3, "patched")})
    make(managed, [one])
    target = package(managed) / "srt/a.py"
    target.write_text("by hand\n")
    (package(managed) / "srt/new.py").write_text("extra\n")
    (package(managed) / "srt/b.py").unlink()
    done = make(managed, [one])
    assert done["state"] == "ok", done
    kept = str(done["kept"])
    assert kept.startswith("refs/ddops/edited/")
    assert target.read_text() == edited(3, "patched")
    assert (package(managed) / "srt/b.py").exists()
    assert not (package(managed) / "srt/new.py").exists()
    assert managed.git("show", f"{kept}:sglang/srt/a.py") == "by hand"
