"""What the tree's own repository gives to a snapshot, and comes back as.

To see them fail: leave the guard out of `patches` or `repository` in hostside/snap_history.py, or
`rebuild` out of `lay` in hostside/snap_lay.py.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddops.snapshot.record import PACK, REPOSITORY, history_files
from tests.unit.snapshot.conftest import LAY, Tree, fingerprint, git, lay, pack_of
from tests.unit.snapshot.test_scan import SECRETS


def commit(tree: Tree, words: str) -> str:
    git("add", "-A", cwd=tree.root)
    git("commit", "-qm", words, cwd=tree.root)
    return git("rev-parse", "HEAD", cwd=tree.root).decode().strip()


def managed(tree: Tree, *, parents: int = 0) -> dict[str, Any]:
    """A tree as `ddops tree init` leaves it, with a commit on it, an edit and a new file."""
    git("init", "-q", "-b", "ddops", cwd=tree.root)
    for number in range(parents):
        tree.write("sglang/old.py", b"%d\n" % number)
        commit(tree, f"before {number}")
    tree.write("sglang/old.py", b"last\n")
    tree.write("sglang/gone.py", b"gone = 1\n")
    pin = {"commit": commit(tree, "upstream"), "engine": "sglang-9", "prefix": "",
           "source": "x.whl", "want": "w"}  # fmt: skip
    pin["tree"] = git("rev-parse", "HEAD^{tree}", cwd=tree.root).decode().strip()
    (tree.root / ".git/ddops.json").write_text(json.dumps(pin))
    tree.write("sglang/srt/server.py", b"print('patched')\n")
    (tree.root / "sglang/gone.py").unlink()
    commit(tree, "Mask: siblings do not see each other")
    tree.write("sglang/old.py", b"edited by hand\n")
    tree.write("untracked.py", b"new\n")
    return pin


def seen(root: Path) -> list[str]:
    """What git says of a tree, from its pin on."""
    pin = json.loads((root / ".git/ddops.json").read_text())
    asked = (
        ("rev-parse", "HEAD"), ("symbolic-ref", "HEAD"), ("log", "--format=%H %s %an %ad",
         pin["commit"] + "..HEAD"), ("status", "--porcelain"), ("diff", "HEAD"),
        ("diff", pin["commit"], "HEAD"), ("ls-tree", "-r", pin["commit"]),
    )  # fmt: skip
    return [git(*words, cwd=root).decode() for words in asked] + [json.dumps(pin, sort_keys=True)]


@pytest.mark.parametrize("parents", [0, 3], ids=["a wheel", "a pinned commit of many"])
def test_a_managed_tree_comes_back_as_the_repository_it_was(
    tree: Tree, tmp_path: Path, parents: int
) -> None:
    managed(tree, parents=parents)
    before = fingerprint(tree.root)
    answer = tree.snap()
    assert fingerprint(tree.root) == before, "only read"
    files = history_files(answer)
    assert [n for n in files if n.startswith("commits/")] == [
        "commits/0001-Mask-siblings-do-not-see-each-other.patch"
    ]
    (tmp_path / "in.pack").write_bytes(pack_of(answer))
    (tmp_path / "repo.pack").write_bytes(files[PACK])
    spec: dict[str, object] = {
        "verb": "lay", "tree": str(tmp_path / "there/tree"), "replace": False, "large": [],
        "git_dir": str(tmp_path / "there/state/t.git"), "commit": answer["commit"],
        "hash": answer["tree"], "large_paths": [], "pack": str(tmp_path / "in.pack"),
        "repo": {**json.loads(files[REPOSITORY]), "pack": str(tmp_path / "repo.pack")},
    }  # fmt: skip
    assert lay(spec)["state"] == "ok"
    assert seen(tmp_path / "there/tree") == seen(tree.root)
    git("fsck", "--no-dangling", cwd=tmp_path / "there/tree")
    again = Tree(tmp_path / "there/tree", tmp_path / "other.git").snap()
    assert again["tree"] == answer["tree"]
    assert history_files(again).keys() == files.keys()


def test_a_laying_killed_at_every_git_call_is_finished_by_the_next(
    tree: Tree, tmp_path: Path
) -> None:
    """A `git` that does its n-th call and kills the script above it, over a folder of another."""
    managed(tree)
    answer, real = tree.snap(), shutil.which("git")
    files, wanted = history_files(answer), seen(tree.root)
    number, most = 0, 40
    while number < most:
        number += 1
        place = tmp_path / str(number)
        (place / "bin").mkdir(parents=True)
        (place / "tree").mkdir()
        (place / "tree/old").write_text("of before\n")
        wrapper = place / "bin/git"
        wrapper.write_text(
            f"#!/bin/sh\necho x >> {place}/calls\n"
            f'if [ "$(wc -l < {place}/calls)" -eq {number} ]; then\n'
            f'  {real} "$@"; touch {place}/killed; kill -9 $PPID; exit 1\nfi\nexec {real} "$@"\n'
        )
        wrapper.chmod(0o755)

        def spec(place: Path = place) -> dict[str, object]:
            (place / "in.pack").write_bytes(pack_of(answer))
            (place / "repo.pack").write_bytes(files[PACK])
            told = {**json.loads(files[REPOSITORY]), "pack": str(place / "repo.pack")}
            return {
                "verb": "lay", "tree": str(place / "tree"), "replace": True, "large": [],
                "git_dir": str(place / "state/t.git"), "commit": answer["commit"],
                "hash": answer["tree"], "large_paths": [], "pack": str(place / "in.pack"),
                "repo": told,
            }  # fmt: skip

        done = subprocess.run(
            [sys.executable, "-", json.dumps(spec())], input=LAY.encode(), capture_output=True,
            env={**os.environ, "PATH": f"{place}/bin:{os.environ['PATH']}"}, check=False,
        )  # fmt: skip
        if not (place / "killed").exists():
            assert done.returncode == 0, done.stderr
            break
        assert done.returncode == -signal.SIGKILL
        whole = (place / "tree/untracked.py").exists()
        assert whole or (place / "tree/old").exists(), "one or the other, never neither"
        assert lay(spec())["state"] == "ok"
        assert seen(place / "tree") == wanted
        left = {p.name for p in place.iterdir()} - {"bin", "state", "calls", "killed", "tree"}
        assert left <= {"in.pack", "repo.pack"}
    assert 15 <= number < most, "the calls of one laying"


def test_an_unchanged_tree_is_not_asked_again_and_a_commit_alone_is_news(tree: Tree) -> None:
    managed(tree)
    first = tree.snap()
    assert tree.snap()["history"] == first["history"]
    commit(tree, "The edit, committed")
    second = tree.snap()
    assert second["tree"] == first["tree"]
    assert len(history_files(second)) == len(history_files(first)) + 1


def test_commits_that_no_remote_holds_become_patches(tree: Tree) -> None:
    git("init", "-q", cwd=tree.root)
    upstream = commit(tree, "upstream")
    git("update-ref", "refs/remotes/origin/main", upstream, cwd=tree.root)
    git("config", "diff.noprefix", "true", cwd=tree.root)
    for number in range(3):
        tree.write("sglang/srt/server.py", b"print(%d)\n" % number)
        commit(tree, f"Mine {number}")
    answer: Any = tree.snap()["history"]
    assert answer["pack"] is None, "not a tree of ours: its files and its patches"
    texts = [base64.b64decode(r["data"]) for r in answer["commits"]]
    assert [t.count(b"Subject: [PATCH] Mine") for t in texts] == [1, 1, 1]
    git("checkout", "-q", upstream, cwd=tree.root)
    git("am", "-q", cwd=tree.root, stdin=b"".join(texts))
    assert (tree.root / "sglang/srt/server.py").read_bytes() == b"print(2)\n"


def test_a_history_too_long_is_named_and_not_taken(tree: Tree) -> None:
    git("init", "-q", cwd=tree.root)
    for _ in range(201):
        git("commit", "-q", "--allow-empty", "-m", "x", cwd=tree.root)
    answer: Any = tree.snap()
    assert answer["state"] == "ok"
    assert answer["history"]["commits"] == []
    assert "201 commits" in answer["history"]["left_out"]


def test_a_secret_in_a_binary_of_an_older_commit_is_seen(tree: Tree) -> None:
    git("init", "-q", cwd=tree.root)
    tree.write("kernel.bin", b"\x7fELF\0\0" + SECRETS["private-key"].encode())
    commit(tree, "oops")
    (tree.root / "kernel.bin").unlink()
    commit(tree, "gone")
    answer: Any = tree.snap()
    assert "a binary file (private-key)" in answer["history"]["left_out"]
    assert history_files(answer) == {}


@pytest.mark.parametrize("way", ["removed later", "in a message", "upstream, edited away"])
def test_a_secret_of_an_older_version_never_leaves_and_the_files_do(tree: Tree, way: str) -> None:
    value = SECRETS["hub-token"]
    if way == "upstream, edited away":
        tree.write("sglang/conf.py", value.encode())
    pin = managed(tree)
    if way == "removed later":
        tree.write("sglang/conf.py", value.encode())
        commit(tree, "oops")
        tree.write("sglang/conf.py", b"x = 1\n")
        commit(tree, "gone")
    elif way == "in a message":
        commit(tree, f"use {value}")
    else:
        tree.write("sglang/conf.py", b"x = 1\n")
        commit(tree, "gone")
    answer: Any = tree.snap()
    assert answer["state"] == "ok"
    assert "looks like a secret" in answer["history"]["left_out"]
    assert history_files(answer) == {}
    assert value not in json.dumps(answer)
    assert pin["commit"]
    known = tree.git("cat-file", "--batch-all-objects", "--batch")
    assert value.encode() not in known


def test_an_allowed_file_may_look_like_a_secret_in_older_versions_too(tree: Tree) -> None:
    managed(tree)
    tree.write("sglang/conf.py", SECRETS["hub-token"].encode())
    commit(tree, "a fixture")
    answer: Any = tree.snap(allow=["sglang/conf.py"])
    assert answer["history"]["left_out"] == ""
    refused: Any = tree.snap()
    assert refused["state"] == "ok", "its present version was allowed as it is"
    assert "sglang/conf.py" in refused["history"]["left_out"]


def test_what_the_rules_keep_out_is_counted(tree: Tree) -> None:
    git("init", "-q", cwd=tree.root)
    tree.write(".gitignore", b"build/\n*.so\n__pycache__/\n")
    for number in range(7):
        tree.write(f"build/{number}.o")
    tree.write("kernel.so")
    tree.write("sglang/__pycache__/x.pyc")
    answer: Any = tree.snap()
    assert answer["ignored"] == {"count": 8, "places": [["build/", 7], ["kernel.so", 1]]}
    assert tree.snap()["ignored"] == answer["ignored"]
