"""A managed tree: pinned, patched all or nothing, finished after a kill, exported, rebased.

To see them fail: let `tried` in hostside/tree.py stop at nothing, or drop its journal.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import zipfile
from pathlib import Path

from tests.unit.snapshot.conftest import git
from tests.unit.tree.conftest import LINES, Managed, edited


def names(rows: object) -> list[tuple[str, str]]:
    assert isinstance(rows, list)
    return [(r["name"], r["how"]) for r in rows]


def test_init_pins_a_commit_and_again_changes_nothing(managed: Managed) -> None:
    first = managed.init()
    assert (first["state"], first["made"]) == ("ok", True)
    assert first["commit"] == managed.pin
    assert managed.read("srt/a.py") == "".join(LINES)
    (managed.package() / "srt/a.py").write_text("edited\n")
    again = managed.init()
    assert (again["state"], again["made"]) == ("ok", False)
    assert managed.read("srt/a.py") == "edited\n"
    assert managed.init(want="0" * 40)["state"] == "there"


def test_init_refuses_what_is_no_tree(managed: Managed) -> None:
    assert managed.init(want="0" * 40)["state"] in ("no-commit", "git")
    assert managed.init(prefix="elsewhere/")["state"] == "no-package"
    assert not managed.tree.exists()


def test_a_series_goes_in_and_out_and_each_again_does_nothing(managed: Managed) -> None:
    one = managed.patch("0001-one", {"srt/a.py": edited(3, "first")})
    two = managed.patch("0002-two", {"srt/a.py": edited(30, "second", list(
        edited(3, "first").splitlines(keepends=True)))})  # fmt: skip
    managed.init()
    upstream = managed.git("rev-parse", "HEAD^{tree}")
    tried = managed.ask("apply", patches=[one, two], check=True)
    assert names(tried["done"]) == [("0001-one.patch", "clean"), ("0002-two.patch", "clean")]
    assert managed.read("srt/a.py") == "".join(LINES), "a check writes nothing"
    done = managed.ask("apply", patches=[one, two])
    assert done["state"] == "ok"
    assert "first\n" in managed.read("srt/a.py")
    assert "second\n" in managed.read("srt/a.py")
    assert managed.git("status", "--porcelain") == ""
    assert managed.git("log", "-2", "--format=%an %s") == "t 0002-two\nt 0001-one"
    assert managed.ask("apply", patches=[one, two])["done"] == []
    seen = managed.ask("status", patches=[one, two])
    assert seen["applied"] == ["0001-one.patch", "0002-two.patch"]
    assert seen["pure"] is True
    back = managed.ask("reverse", patches=[one, two])
    assert names(back["done"]) == [("0002-two.patch", "clean"), ("0001-one.patch", "clean")]
    assert back["tree"] == upstream
    assert managed.read("srt/a.py") == "".join(LINES)
    assert managed.ask("reverse", patches=[one, two])["done"] == []


def test_files_made_removed_and_made_executable(managed: Managed) -> None:
    work = managed.root / "work"
    (managed.package(work) / "srt/b.py").unlink()
    (managed.package(work) / "run.sh").write_text("#!/bin/sh\n")
    (managed.package(work) / "run.sh").chmod(0o755)
    patch = managed.patch("0001-kinds", {"srt/new/deep.py": "new\n"})
    managed.init()
    assert managed.ask("apply", patches=[patch])["state"] == "ok"
    assert not (managed.package() / "srt/b.py").exists()
    assert managed.read("srt/new/deep.py") == "new\n"
    assert os.access(managed.package() / "run.sh", os.X_OK)
    assert managed.git("status", "--porcelain") == ""
    assert managed.ask("reverse", patches=[patch])["state"] == "ok"
    assert managed.read("srt/b.py") == "".join(LINES)
    assert not (managed.package() / "run.sh").exists()


def test_a_conflict_names_each_hunk_and_leaves_everything(managed: Managed) -> None:
    good = managed.patch("0001-good", {"srt/b.py": edited(5, "fine")})
    bad = managed.patch("0002-bad", {"srt/a.py": edited(3, "x", list(
        edited(35, "y").splitlines(keepends=True)))})  # fmt: skip
    (managed.package(managed.upstream) / "srt/a.py").write_text(edited(34, "moved on"))
    git("commit", "-qam", "upstream moved", cwd=managed.upstream)
    managed.init()
    before = managed.git("rev-parse", "HEAD")
    answer = managed.ask("apply", patches=[good, bad])
    assert answer["state"] == "conflict"
    assert answer["fitting"] == ["0001-good.patch"]
    patches = answer["patches"]
    assert isinstance(patches, list)
    [row] = patches
    [hunk] = row["hunks"]
    assert hunk["file"] == f"{managed.prefix}sglang/srt/a.py"
    assert hunk["hunk"] == 2
    assert hunk["range"].startswith("-33,")
    assert managed.git("rev-parse", "HEAD") == before
    assert managed.read("srt/b.py") == "".join(LINES), "not even the one that fits"


def test_lines_that_moved_are_merged_three_ways(managed: Managed) -> None:
    patch = managed.patch("0001-mid", {"srt/a.py": edited(20, "patched")})
    # Upstream has changed a line of the patch's context: plain apply refuses that.
    (managed.package(managed.upstream) / "srt/a.py").write_text(edited(18, "upstream's own"))
    git("commit", "-qam", "near it", cwd=managed.upstream)
    managed.init()
    git("fetch", "-q", str(managed.root / "work"), cwd=managed.tree)  # its blobs are known
    answer = managed.ask("apply", patches=[patch])
    assert names(answer["done"]) == [("0001-mid.patch", "merged")]
    assert "patched\n" in managed.read("srt/a.py")
    assert "upstream's own\n" in managed.read("srt/a.py")


def test_an_edit_by_hand_is_never_overwritten(managed: Managed) -> None:
    patch = managed.patch("0001-one", {"srt/a.py": edited(3, "patched")})
    managed.init()
    (managed.package() / "srt/b.py").write_text("elsewhere: no matter\n")
    (managed.package() / "srt/a.py").write_text(edited(30, "by hand"))
    answer = managed.ask("apply", patches=[patch])
    assert answer["state"] == "edited"
    assert answer["paths"] == [f"{managed.prefix}sglang/srt/a.py"]
    assert managed.read("srt/a.py") == edited(30, "by hand")
    (managed.package() / "srt/a.py").write_text("".join(LINES))
    assert managed.ask("apply", patches=[patch])["state"] == "ok"
    assert managed.read("srt/b.py") == "elsewhere: no matter\n"


def test_a_change_cut_short_is_finished_by_the_next_run(managed: Managed) -> None:
    """Every place a kill can leave: none, one or all files written, index or branch moved."""
    edits = {"srt/a.py": edited(3, "A"), "srt/b.py": edited(3, "B"), "c.py": "C\n"}
    patch = managed.patch("0001-three", edits)
    managed.init()
    source = managed.git("rev-parse", "HEAD")
    managed.ask("apply", patches=[patch])
    target = managed.git("rev-parse", "HEAD")
    journal = managed.tree / ".git/ddops-apply.json"
    for written in range(4):
        for moved in (False, True):
            git("reset", "-q", "--hard", source, cwd=managed.tree)
            for path in list(edits)[:written]:
                (managed.package() / path).write_text(edits[path])
            if moved:
                git("update-ref", "HEAD", target, cwd=managed.tree)
            (managed.tree / ".git/index.lock").touch()
            journal.write_text(json.dumps({"from": source, "to": target}))
            assert managed.ask("status", patches=[patch])["unfinished"] is True
            answer = managed.ask("apply", patches=[patch])
            assert answer["state"] == "ok", (written, moved, answer)
            assert managed.git("rev-parse", "HEAD") == target
            assert managed.git("status", "--porcelain") == ""
            assert not journal.exists()


def test_what_upstream_has_taken_is_superseded(managed: Managed) -> None:
    patch = managed.patch("0001-taken", {"srt/a.py": edited(3, "taken")})
    (managed.package(managed.upstream) / "srt/a.py").write_text(edited(3, "taken"))
    git("commit", "-qam", "took it", cwd=managed.upstream)
    managed.init()
    assert managed.ask("status", patches=[patch])["superseded"] == ["0001-taken.patch"]
    assert managed.ask("apply", patches=[patch])["done"] == []


def test_export_gives_commits_and_hand_edits_back_as_patches(managed: Managed) -> None:
    known = managed.patch("0001-known", {"srt/a.py": edited(3, "known")})
    managed.init()
    managed.ask("apply", patches=[known])
    (managed.package() / "srt/b.py").write_text(edited(9, "committed"))
    git("commit", "-qam", "Mine", cwd=managed.tree)
    (managed.package() / "untracked.py").write_text("new\n")
    before = (managed.git("rev-parse", "HEAD"), managed.git("status", "--porcelain"))
    answer = managed.ask("export", patches=[known])
    assert (managed.git("rev-parse", "HEAD"), managed.git("status", "--porcelain")) == before
    made = answer["patches"]
    assert isinstance(made, list)
    assert [m["name"] for m in made] == ["Mine", "Edits-made-by-hand"]
    git("reset", "-q", "--hard", managed.pin, cwd=managed.tree)
    (managed.package() / "untracked.py").unlink(missing_ok=True)
    series = [known, *({"name": f"{m['name']}.patch", "data": m["data"]} for m in made)]
    assert b"+++ b/sglang/" in base64.b64decode(made[0]["data"])
    assert managed.ask("apply", patches=series)["state"] == "ok"
    assert managed.read("untracked.py") == "new\n"
    assert managed.read("srt/b.py") == edited(9, "committed")


def test_rebase_says_how_each_patch_fits_another_upstream(managed: Managed) -> None:
    one = managed.patch("0001-fits", {"srt/a.py": edited(3, "fits")})
    two = managed.patch("0002-taken", {"srt/b.py": edited(3, "taken")})
    three = managed.patch("0003-lost", {"__init__.py": "x = 1\n"})
    managed.init()
    before = managed.git("for-each-ref"), managed.git("status", "--porcelain")
    package = managed.package(managed.upstream)
    (package / "srt/b.py").write_text(edited(3, "taken"))
    (package / "__init__.py").write_text("y = 2\n")
    git("commit", "-qam", "the next version", cwd=managed.upstream)
    answer = managed.ask("rebase", kind="git", source=str(managed.upstream), want=managed.pin,
                         engine="sglang-0.5.24", prefix=managed.prefix, path="",
                         patches=[one, two, three])  # fmt: skip
    assert names(answer["rows"]) == [("0001-fits.patch", "clean"),
                                     ("0002-taken.patch", "superseded"),
                                     ("0003-lost.patch", "conflict")]  # fmt: skip
    made = answer["patches"]
    assert isinstance(made, list)
    assert [m["name"] for m in made] == ["0001-fits.patch"]
    assert (managed.git("for-each-ref"), managed.git("status", "--porcelain")) == before


def wheel(path: Path, files: dict[str, bytes], *, lie: bool = False) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        rows = []
        for name, data in files.items():
            archive.writestr(name, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data + b"!" * lie).digest())
            rows.append([name, "sha256=" + digest.rstrip(b"=").decode(), str(len(data))])
        lines = "".join(",".join(r) + "\r\n" for r in rows)
        assert list(csv.reader(lines.splitlines()))
        archive.writestr("sglang-0.5.23.dist-info/RECORD", lines)
    return path


def test_a_wheel_becomes_an_upstream_when_it_is_what_it_says(tmp_path: Path) -> None:
    managed = Managed(tmp_path)
    managed.root.joinpath("state").mkdir()
    files = {"sglang/__init__.py": b"", "sglang/srt/a.py": b"a\r\n", "sglang/.hidden": b"h",
             "sglang/big.so": os.urandom(3000)}  # fmt: skip
    spec: dict[str, object] = {"kind": "wheel", "source": "w.whl", "want": "1", "prefix": "",
                               "engine": "sglang-0.5.23"}  # fmt: skip
    lying = wheel(tmp_path / "lying.whl", files, lie=True)
    assert managed.ask("init", **spec, path=str(lying))["state"] == "no-wheel"
    outside = wheel(tmp_path / "out.whl", {"../x": b"1", **files})
    assert managed.ask("init", **spec, path=str(outside))["state"] == "no-wheel"
    assert not (tmp_path / "x").exists()
    good = wheel(tmp_path / "w.whl", files)
    first = managed.ask("init", **spec, path=str(good))
    assert first["state"] == "ok"
    for name, data in files.items():
        assert (managed.tree / name).read_bytes() == data
    other = Managed(tmp_path / "again")
    other.root.mkdir()
    assert other.ask("init", **spec, path=str(good))["commit"] == first["commit"], "reproducible"
