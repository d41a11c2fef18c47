"""A folder is written whole, by ddops alone, and never over what somebody else has in it."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from ddops.config import folders
from ddops.config.folders import MARK, write_folder
from ddops.errors import DdopsError, RefusedError

FILES = {"a.yaml": "a: 1\n", "box/b.json": "{}\n"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for a disk is not what these are about."""
    monkeypatch.setattr(os, "fsync", lambda _fd: None)


def held(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): p.read_text("utf-8")
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != MARK
    }


def hidden(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if p.name.startswith(".")]


def test_it_is_written_for_its_owner_alone(tmp_path: Path) -> None:
    target = tmp_path / "out"
    old = os.umask(0)
    try:
        assert write_folder(target, FILES)
    finally:
        os.umask(old)
    assert held(target) == FILES
    modes = {p: p.stat().st_mode & 0o777 for p in (target, *target.rglob("*"))}
    assert {m for p, m in modes.items() if p.is_dir()} == {0o700}
    assert {m for p, m in modes.items() if p.is_file()} == {0o600}
    assert hidden(tmp_path) == []


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    assert write_folder(target, FILES)
    assert held(target) == FILES


def test_the_same_again_changes_nothing(tmp_path: Path) -> None:
    target = tmp_path / "out"
    write_folder(target, FILES)
    before = target.stat().st_ino
    assert not write_folder(target, FILES)
    assert target.stat().st_ino == before


def test_other_files_take_the_place_of_all(tmp_path: Path) -> None:
    target = tmp_path / "out"
    write_folder(target, FILES)
    assert write_folder(target, {"c": "é ☃\n"})
    assert held(target) == {"c": "é ☃\n"}
    assert hidden(tmp_path) == []


def test_a_file_that_was_taken_away_comes_back(tmp_path: Path) -> None:
    target = tmp_path / "out"
    write_folder(target, FILES)
    (target / "a.yaml").unlink()
    assert write_folder(target, FILES)
    assert held(target) == FILES


def _foreign(target: Path) -> None:
    target.mkdir()
    (target / "mine.txt").write_text("mine")


def _added(target: Path) -> None:
    write_folder(target, FILES)
    (target / "kustomization.yaml").write_text("mine")


def _edited(target: Path) -> None:
    write_folder(target, FILES)
    (target / "a.yaml").write_text("a: 2\n")


def _linked(target: Path) -> None:
    write_folder(target, FILES)
    (target / "a.yaml").unlink()
    (target / "a.yaml").symlink_to("/etc/hostname")


def _linked_folder(target: Path) -> None:
    write_folder(target, FILES)
    (target.parent / "real").mkdir()
    (target / "more").symlink_to(target.parent / "real")


def _is_a_link(target: Path) -> None:
    (target.parent / "real").mkdir()
    target.symlink_to(target.parent / "real")


def _is_a_file(target: Path) -> None:
    target.write_text("mine")


def _folders(target: Path) -> None:
    (target / "mine").mkdir(parents=True)


def _mark(text: str) -> object:
    def made(target: Path) -> None:
        target.mkdir()
        (target / MARK).write_text(text)

    return made


@pytest.mark.parametrize(
    "made",
    [
        _foreign, _added, _edited, _linked, _linked_folder, _is_a_link, _is_a_file, _folders,
        _mark(""), _mark("[1"), _mark("[]"), _mark("[" * 100000),
        _mark('{"schema": "x", "files": {}}'),
        _mark('{"schema": "ddops.rendered/1", "files": []}'), _mark("\x00\xff"),
    ],
)  # fmt: skip
def test_what_is_not_its_own_is_left_alone(made: object, tmp_path: Path) -> None:
    target = tmp_path / "out"
    assert callable(made)
    made(target)
    before = {str(p): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(RefusedError) as caught:
        write_folder(target, FILES)
    assert "is not written over" in caught.value.what
    assert caught.value.next
    assert {str(p): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_a_foreign_folder_is_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be the root of everything."""
    monkeypatch.setattr(Path, "rglob", lambda *_args: pytest.fail("looked into it"))
    for folder in ("/", "/usr"):
        with pytest.raises(RefusedError):
            write_folder(Path(folder), FILES)


def test_a_mark_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    os.mkfifo(target / MARK)
    with pytest.raises(DdopsError):
        write_folder(target, FILES)


@pytest.mark.parametrize("parent", ["nothing", "file"])
def test_without_its_parent_it_is_not_written(parent: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DdopsError, match="cannot be written"):
        write_folder(tmp_path / parent / "out", FILES)


def test_a_failure_on_the_way_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out"
    write_folder(target, FILES)

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DdopsError, match="no space left"):
        write_folder(target, {"c": "new"})
    assert held(target) == FILES
    assert hidden(tmp_path) == []


def test_where_names_cannot_be_exchanged_it_takes_two_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "_exchange", lambda *_names: False)
    target = tmp_path / "out"
    write_folder(target, FILES)
    assert write_folder(target, {"c": "new"})
    assert held(target) == {"c": "new"}
    assert hidden(tmp_path) == []


def test_a_rename_that_fails_puts_the_old_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, rename = tmp_path / "out", Path.rename
    write_folder(target, FILES)
    left = [True]

    def once(self: Path, to: Path) -> Path:
        if to == target and left:
            left.clear()
            raise OSError(5, "Input/output error")
        return rename(self, to)

    monkeypatch.setattr(folders, "_exchange", lambda *_names: False)
    monkeypatch.setattr(Path, "rename", once)
    with pytest.raises(DdopsError, match="input/output error"):
        write_folder(target, {"c": "new"})
    assert held(target) == FILES
    assert hidden(tmp_path) == []


def test_names_that_are_not_there_cannot_be_exchanged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        folders._exchange(tmp_path / "a", tmp_path / "b")


def test_two_at_once_leave_one_of_them_whole(tmp_path: Path) -> None:
    target = tmp_path / "out"
    sets = [{f"f{n}": str(k) * 100 for n in range(5)} for k in range(6)]
    told: list[Exception] = []

    def write(files: dict[str, str]) -> None:
        try:
            write_folder(target, files)
        except DdopsError as error:
            told.append(error)

    threads = [threading.Thread(target=write, args=(files,)) for files in sets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert held(target) in sets
    assert len(told) < len(sets)
    assert json.loads((target / MARK).read_text())["files"].keys() == held(target).keys()
