"""What the host-side script takes of a tree: the very bytes, all of them, and nothing changed.

To see them fail: drop `-text` from ATTRIBUTES in hostside/snap_git.py, or run `git add` on the
tree's own index.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import threading
from pathlib import Path

from tests.unit.snapshot.conftest import (
    Tree,
    fingerprint,
    finish,
    git,
    lay,
    pack_of,
    paths,
)

ODD = (b"new\nline.py", b"tab\there", b"quote'\"\\back", b"-rf", b"caf\xe9.py", "säge.py".encode(),
       b" blank ", b"*.py[1]", b"!bang", b"#hash", b"con:aux", b"a\\b")  # fmt: skip


def test_a_tree_without_a_repository_is_taken_whole(tree: Tree) -> None:
    answer = tree.snap()
    assert answer["state"] == "ok"
    assert sorted(tree.ls(answer["commit"])) == [b"sglang/__init__.py", b"sglang/srt/server.py"]
    assert tree.git("log", "--format=%P", str(answer["commit"])).strip() == b""


def test_every_byte_is_as_it_was_whatever_attributes_say(tree: Tree) -> None:
    tree.write(".gitattributes", b"* text=auto eol=crlf\n*.id ident\n*.big filter=lfs\n"
               b"*.u16 working-tree-encoding=UTF-16\n")  # fmt: skip
    cases = {
        "crlf.py": b"a\r\nb\r\n", "mixed.txt": b"a\r\nb\nc\r", "x.id": b"$Id: 1234$\n",
        "model.big": b"\0raw\r\n", "n.u16": "häh".encode("utf-16"), "empty": b"",
        "no-newline": b"x",
    }  # fmt: skip
    for name, data in cases.items():
        tree.write(name, data)
    answer = tree.snap()
    assert answer["state"] == "ok", answer
    for name, data in cases.items():
        assert tree.content(answer["tree"], name) == data, name


def test_names_of_any_bytes(tree: Tree) -> None:
    for name in ODD:
        tree.write(b"odd/" + name, name)
    answer = tree.snap()
    found = tree.ls(answer["commit"])
    assert {b"odd/" + n for n in ODD} <= set(found)
    again = tree.snap()
    assert again["tree"] == answer["tree"]
    assert again["rounds"] == 0


def test_modes_and_links(tree: Tree) -> None:
    tree.write("run.sh", b"#!/bin/sh\n", 0o755)
    tree.write("private", b"x", 0o600)
    (tree.root / "link").symlink_to("sglang/srt/server.py")
    (tree.root / "broken").symlink_to("/nowhere/at/all")
    (tree.root / "folder-link").symlink_to("sglang")
    found = tree.ls(tree.snap()["commit"])
    modes = {p: m for p, (m, _) in found.items()}
    assert modes[b"run.sh"] == "100755"
    assert modes[b"private"] == "100644"
    assert modes[b"link"] == modes[b"broken"] == modes[b"folder-link"] == "120000"


def test_what_is_ignored_stays_out_and_what_is_tracked_anyway_comes_in(tree: Tree) -> None:
    git("init", "-q", cwd=tree.root)
    tree.write(".gitignore", b"build/\n*.log\n")
    tree.write(".git/info/exclude", b"mine/\n")
    tree.write("build/forced.so", b"kernel")
    tree.write("build/left.so", b"x")
    tree.write("a.log")
    tree.write("mine/notes")
    tree.write("sglang/__pycache__/x.pyc")
    git("add", "-A", cwd=tree.root)
    git("add", "-f", "build/forced.so", cwd=tree.root)
    git("commit", "-qm", "one", cwd=tree.root)
    found = set(tree.ls(tree.snap()["commit"]))
    assert b"build/forced.so" in found
    assert not found & {b"build/left.so", b"a.log", b"mine/notes", b"sglang/__pycache__/x.pyc"}
    assert not [p for p in found if p.startswith(b".git/")]
    assert set(tree.ls(tree.snap()["commit"])) == found


def test_the_trees_own_repository_is_untouched_to_the_last_byte(tree: Tree, tmp_path: Path) -> None:
    git("init", "-q", cwd=tree.root)
    git("add", "-A", cwd=tree.root)
    git("commit", "-qm", "one", cwd=tree.root)
    tree.write("stashed.py")
    git("add", "stashed.py", cwd=tree.root)
    git("stash", "-q", cwd=tree.root)
    fired = tmp_path / "fired"
    for hook in ("pre-commit", "post-commit", "post-checkout", "reference-transaction",
                 "post-index-change"):  # fmt: skip
        tree.write(f".git/hooks/{hook}", f"#!/bin/sh\necho {hook} >> {fired}\n".encode(), 0o755)
    tree.write("staged.py", b"staged\n")
    git("add", "staged.py", cwd=tree.root)
    fired.unlink(missing_ok=True)
    tree.write("staged.py", b"and edited since\n")
    tree.write("untracked.py")
    (tree.root / "sglang/srt/server.py").unlink()
    before = fingerprint(tree.root)
    answer = tree.snap()
    assert fingerprint(tree.root) == before
    assert not fired.exists()
    found = tree.ls(answer["commit"])
    assert b"sglang/srt/server.py" not in found
    assert tree.content(answer["tree"], "staged.py") == b"and edited since\n"
    assert b"untracked.py" in found
    assert b"stashed.py" not in found


def test_nested_repositories_are_taken_file_by_file(tree: Tree) -> None:
    git("init", "-q", cwd=tree.root)
    git("add", "-A", cwd=tree.root)
    git("commit", "-qm", "one", cwd=tree.root)
    for name in ("plain", "without-commit", "deep/er/one"):
        folder = tree.root / name
        folder.mkdir(parents=True)
        git("init", "-q", cwd=folder)
        tree.write(f"{name}/inner.py", name.encode())
        tree.write(f"{name}/.gitignore", b"*.tmp\n")
        tree.write(f"{name}/x.tmp")
    git("add", "-A", cwd=tree.root / "plain")
    git("commit", "-qm", "sub", cwd=tree.root / "plain")
    head = git("rev-parse", "HEAD", cwd=tree.root / "plain").decode().strip()
    tree.write("plain/inner.py", b"edited in the submodule")
    answer = tree.snap()
    assert answer["state"] == "ok", answer
    found = tree.ls(answer["commit"])
    assert {b"plain/inner.py", b"without-commit/inner.py", b"deep/er/one/inner.py"} <= set(found)
    assert not [p for p, (mode, _) in found.items() if mode == "160000" or p.endswith(b".tmp")]
    assert tree.content(answer["tree"], "plain/inner.py") == b"edited in the submodule"
    nested = answer["nested"]
    assert isinstance(nested, list)
    assert {"path": "plain/", "head": head} in nested
    assert tree.snap()["tree"] == answer["tree"]


def test_edits_renames_and_kinds_that_change(tree: Tree) -> None:
    tree.write("a", b"file")
    tree.write("b/c", b"in a folder")
    first = tree.snap()
    (tree.root / "a").unlink()
    tree.write("a/now/deep", b"1")
    (tree.root / "b/c").unlink()
    (tree.root / "b").rmdir()
    (tree.root / "b").symlink_to("a")
    (tree.root / "sglang/srt/server.py").rename(tree.root / "sglang/srt/moved.py")
    second = tree.snap(have=[first["commit"]])
    found = tree.ls(second["commit"])
    assert sorted(found) == [b"a/now/deep", b"b", b"sglang/__init__.py", b"sglang/srt/moved.py"]
    assert found[b"b"][0] == "120000"


def test_the_same_size_and_second_does_not_hide_an_edit(tree: Tree) -> None:
    first = tree.snap()
    path = tree.root / "sglang/__init__.py"
    at = path.stat().st_mtime_ns
    path.write_bytes(b"__version__ = '2'\n")
    os.utime(path, ns=(at, at))
    assert tree.snap()["tree"] != first["tree"]


def test_an_unchanged_tree_is_the_same_commit_and_sends_nothing(tree: Tree) -> None:
    first = tree.snap()
    again = tree.snap(have=[first["commit"]], at=1_800_000_000)
    assert again["commit"] == first["commit"]
    assert again["rounds"] == 0
    assert again["pack"] is None


def test_a_pack_holds_what_the_other_side_lacks(tree: Tree, tmp_path: Path) -> None:
    for i in range(50):
        tree.write(f"sglang/many/{i}.py", f"{i}\n".encode() * 200)
    first = tree.snap()
    other = tmp_path / "other.git"
    git("init", "-q", "--bare", str(other))
    git("--git-dir", str(other), "index-pack", "--stdin", "--strict", stdin=pack_of(first))
    tree.write("sglang/many/7.py", b"edited\n")
    second = tree.snap(have=["0" * 40, first["commit"]])
    told = second["pack"]
    assert isinstance(told, dict)
    assert told["base"] == first["commit"]
    assert told["objects"] == 5  # commit, three trees, one file
    git("--git-dir", str(other), "index-pack", "--stdin", "--strict", stdin=pack_of(second))
    git("--git-dir", str(other), "fsck", "--full", "--strict", str(second["commit"]))
    git("--git-dir", str(other), "rev-list", "--objects", str(second["commit"]))


def test_large_files_are_named_before_git_reads_them(tree: Tree) -> None:
    tree.write("weights.bin", b"\1" * 200_000)
    answer = tree.snap()
    assert answer["state"] == "large"
    assert answer["files"] == [{"path": "weights.bin", "bytes": 200_000}]
    assert not tree.git("count-objects", "-v").startswith(b"count: 1")
    allowed = tree.snap(allow=["weights.bin"])
    assert allowed["state"] == "ok"
    large = allowed["large"]
    assert isinstance(large, list)
    assert paths(large) == ["weights.bin"]
    assert large[0]["bytes"] == 200_000
    assert b"weights.bin" not in tree.ls(allowed["commit"])
    again = tree.snap(allow=["*.bin"])
    assert (again["commit"], again["large"]) == (allowed["commit"], large)
    tree.write("weights.bin", b"\2" * 200_000)
    changed = tree.snap(allow=["weights.bin"])["large"]
    assert isinstance(changed, list)
    assert changed[0]["sha256"] != large[0]["sha256"]
    (tree.root / "weights.bin").unlink()
    assert tree.snap()["large"] == []


def test_a_large_file_that_shrank_is_a_file_again(tree: Tree) -> None:
    tree.write("data.bin", b"\1" * 200_000)
    tree.snap(allow=["data.bin"])
    tree.write("data.bin", b"small")
    answer = tree.snap()
    assert answer["large"] == []
    assert tree.content(answer["tree"], "data.bin") == b"small"


def test_sockets_and_pipes_are_left_out(tree: Tree) -> None:
    os.mkfifo(tree.root / "pipe")
    assert b"pipe" not in tree.ls(tree.snap()["commit"])


def test_no_folder_and_no_git_are_said(tree: Tree) -> None:
    assert tree.snap(tree=str(tree.root / "absent"))["state"] == "missing"
    assert tree.snap(tree=str(tree.root / "sglang/__init__.py"))["state"] == "missing"


def test_an_empty_tree_is_a_tree(tree: Tree, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    answer = tree.snap(tree=str(empty))
    assert answer["state"] == "ok"
    assert tree.ls(answer["commit"]) == {}


def test_the_folder_of_ours_may_lie_in_the_tree(tree: Tree) -> None:
    inside = Tree(tree.root, tree.root / ".ddops" / "trees" / "t.git")
    answer = inside.snap()
    assert not [p for p in inside.ls(answer["commit"]) if p.startswith(b".ddops")]


def test_what_is_laid_down_is_what_was_taken(tree: Tree, tmp_path: Path) -> None:
    for name in ODD:
        tree.write(b"odd/" + name, name)
    tree.write("crlf.py", b"a\r\nb\r\n")
    tree.write(".gitattributes", b"* text=auto eol=lf\n")
    tree.write("run.sh", b"#!/bin/sh\n", 0o755)
    (tree.root / "link").symlink_to("run.sh")
    answer = tree.snap()
    pack = tmp_path / "p.pack"
    pack.write_bytes(pack_of(answer))
    target = tmp_path / "back" / "work"
    target.parent.mkdir()
    spec: dict[str, object] = {
        "verb": "lay", "git_dir": str(tmp_path / "back.git"), "tree": str(target),
        "commit": answer["commit"], "hash": answer["tree"], "pack": str(pack), "replace": False,
        "large": [], "large_paths": [],
    }  # fmt: skip
    assert lay(spec)["laid"] is True
    same = subprocess.run(["diff", "-r", "--no-dereference", tree.root, target], check=False)
    assert same.returncode == 0
    assert stat.S_IMODE((target / "run.sh").stat().st_mode) == 0o755
    assert lay(spec)["laid"] is False, "again: nothing to do"
    (target / "run.sh").write_bytes(b"other")
    assert lay(spec)["state"] == "there"
    assert lay({**spec, "replace": True})["laid"] is True


def test_a_flipped_byte_in_any_object_of_ours_never_leaves_the_host(
    tree: Tree, tmp_path: Path
) -> None:
    """Each object of the folder's pack in turn: refused, or not needed for what is sent."""
    tree.snap()
    tree.git("prune-packed")  # so that each object is in the pack alone
    pack = next((tree.git_dir / "objects/pack").glob("*.pack"))
    pack.chmod(0o600)
    whole = pack.read_bytes()
    listed = tree.git("verify-pack", "-v", str(pack.with_suffix(".idx"))).decode().splitlines()
    rows = [line.split() for line in listed if len(line.split()) == 5]
    assert len(rows) == 6  # commit, three trees, two files
    for i in range(30):
        tree.write(f"more/{i}", bytes([i]) * 300)
    refused = 0
    for name, kind, _, size, offset in rows:
        data = bytearray(whole)
        data[int(offset) + int(size) // 2] ^= 0xFF
        hurt = tmp_path / f"{name}.hurt.git"
        shutil.copytree(tree.git_dir, hurt)
        (hurt / "objects/pack" / pack.name).write_bytes(data)
        answer = tree.snap(have=[], git_dir=str(hurt))
        if answer["state"] != "ok":
            assert answer["state"] == "git"
            assert answer["why"], name
            refused += 1
            continue
        assert kind in ("commit", "tree"), "an old one that the new snapshot has no use for"
        other = tmp_path / f"{name}.git"
        git("init", "-q", "--bare", str(other))
        git("--git-dir", str(other), "index-pack", "--stdin", "--strict", stdin=pack_of(answer))
        git("--git-dir", str(other), "rev-list", "--objects", str(answer["commit"]))
        git("--git-dir", str(other), "fsck", "--full", "--strict", str(answer["commit"]))
    assert refused >= 2, "the files at least"
    tree.git_dir.rename(tree.git_dir.with_suffix(".old"))
    assert tree.snap()["state"] == "ok", "moved away, it is made anew from the tree"


def test_a_tree_that_is_being_edited_is_taken_as_it_was_once_or_not_at_all(tree: Tree) -> None:
    """Two files that a writer always changes in turn: a snapshot never mixes their times."""
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            for name in ("first", "second"):
                temp = tree.root / f".{name}.tmp"
                temp.write_text(f"{number}")
                temp.replace(tree.root / name)
            stop.wait(0.02 if number % 4 else 0.4)

    for name in ("first", "second"):
        tree.write(name, b"0")
    tree.write(".gitignore", b".*.tmp\n")
    writer = threading.Thread(target=write)
    writer.start()
    try:
        answers = [tree.snap(rounds=4) for _ in range(8)]
    finally:
        stop.set()
        writer.join()
    assert {a["state"] for a in answers} <= {"ok", "moving"}
    for answer in answers:
        if answer["state"] == "moving":
            assert paths(answer["paths"])
            continue
        first, second = (int(tree.content(answer["tree"], n)) for n in ("first", "second"))
        assert second <= first <= second + 1
    assert tree.snap()["state"] == "ok"


def test_a_second_snapshot_waits_for_the_first_or_says_who_is_busy(tree: Tree) -> None:
    for i in range(200):
        tree.write(f"many/{i}", bytes([i % 250]) * 2000)
    runs = [tree.start() for _ in range(3)]
    answers = [finish(r) for r in runs]
    assert [a["state"] for a in answers] == ["ok"] * 3
    assert len({a["commit"] for a in answers}) == 1
    tree.git("fsck", "--full", "--strict")
    with (tree.git_dir / "ddops.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert tree.snap(lock_wait_s=0.2)["state"] == "busy"
