"""The builder of environments: whole or not there, and one at a time."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddops.hostside import build_env, env_whole, joined

SCRIPT = joined("env_whole", "build_env")


def spec(tmp_path: Path, **more: object) -> list[str]:
    tree = tmp_path / "trees" / "engine"
    tree.mkdir(parents=True, exist_ok=True)
    (tree / "__init__.py").write_text("NAME = 'stand-in'\n")
    value = {"dir": str(tmp_path / "env" / "abc"), "digest": "abc", "torch": None, "lock": None,
             "dists": [], "trees": [str(tree)], "find_links": None, "index": None,
             "torch_build": None, **more}  # fmt: skip
    return [sys.executable, "-c", SCRIPT, json.dumps(value)]


def build(words: list[str]) -> dict[str, object]:
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    value: dict[str, object] = json.loads(done.stdout)
    return value


def test_built_once_and_then_left_alone(tmp_path: Path) -> None:
    words = spec(tmp_path)
    assert build(words)["built"] is True
    record = json.loads((tmp_path / "env" / "abc" / "env.json").read_text())
    assert record["digest"] == "abc"
    python = tmp_path / "env" / "abc" / "bin" / "python"
    said = subprocess.run(
        [python, "-c", "import engine; print(engine.NAME)"], capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert said.stdout == "stand-in\n"
    assert build(words)["built"] is False


def test_a_half_built_one_is_built_anew(tmp_path: Path) -> None:
    half = tmp_path / "env" / "abc"
    half.mkdir(parents=True)
    (half / "rubbish").touch()
    assert build(spec(tmp_path))["built"] is True
    assert not (half / "rubbish").exists()


def test_a_failed_build_has_no_mark_of_being_whole(tmp_path: Path) -> None:
    words = spec(tmp_path, trees=[str(tmp_path / "nowhere")])
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "nowhere" in done.stderr
    assert not (tmp_path / "env" / "abc" / "env.json").exists()


@pytest.mark.parametrize("got", ["cpu", "cuda"])
def test_another_build_of_torch_is_no_whole_environment(tmp_path: Path, got: str) -> None:
    torch = tmp_path / "trees" / "torch"
    torch.mkdir(parents=True)
    version = "13.0" if got == "cuda" else None
    (torch / "__init__.py").write_text("from . import version\n")
    (torch / "version.py").write_text(f"cuda = {version!r}\n")
    wrong = {"cpu": "cuda", "cuda": "cpu"}[got]
    words = spec(tmp_path, trees=[str(torch)], torch_build=wrong)
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert f"torch is a {got} build, not {wrong}" in done.stderr
    assert not (tmp_path / "env" / "abc" / "env.json").exists()
    assert build(spec(tmp_path, trees=[str(torch)], torch_build=got))["built"] is True


def test_a_lock_that_does_not_install_names_pips_words(tmp_path: Path) -> None:
    lock = tmp_path / "engine.lock"
    lock.write_text("no-such-package-of-ours==1.0 --hash=sha256:" + "0" * 64 + "\n")
    empty = tmp_path / "wheels"
    empty.mkdir()
    words = spec(tmp_path, lock=str(lock), find_links=str(empty))
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert "no-such-package-of-ours" in done.stderr
    assert not (tmp_path / "env" / "abc" / "env.json").exists()


def test_a_second_build_waits_for_the_first(tmp_path: Path) -> None:
    words = spec(tmp_path)
    (tmp_path / "env").mkdir()
    with (tmp_path / "env" / "abc.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = subprocess.Popen(words, stdout=subprocess.PIPE)
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(0.5)
        assert not (tmp_path / "env" / "abc").exists()
    began = time.monotonic()
    out, _ = second.communicate(timeout=60)
    assert json.loads(out)["built"] is True
    assert time.monotonic() - began < 60


LISTING = env_whole.LISTING
WHOLE = {"digest": "abc", "wrong": [], "unknown": []}


def seen(env: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = env_whole.seen(env)  # type: ignore[no-untyped-call]
    return found


def package(folder: Path, name: str) -> str:
    """A copied package with a dist-info, like the engine's plugin."""
    (folder / name / "srt").mkdir(parents=True)
    (folder / name / "__init__.py").touch()
    (folder / f"{name}-1.0.dist-info").mkdir()
    (folder / f"{name}-1.0.dist-info/RECORD").write_text(f"{name}/__init__.py,,0\n")
    return str(folder / name)


def site(env: Path) -> Path:
    return next(env.glob("lib/python3*/site-packages"))


def dangle(env: Path) -> None:
    (env / "bin/python").unlink()
    (env / "bin/python").symlink_to("/nowhere/python3.9")


def upgraded(env: Path) -> None:
    """The system's Python became another one below the same name."""
    old = site(env).parent
    old.rename(old.with_name("python3.8"))
    record = json.loads((env / "env.json").read_text())
    (env / "env.json").write_text(json.dumps({**record, "python": "3.8.1"}))


BREAKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "lib": (lambda e: shutil.rmtree(e / "lib"), "lib is missing"),
    "a package": (lambda e: shutil.rmtree(site(e) / "engine"), "site-packages/engine is missing"),
    "one of a shared folder": (
        lambda e: shutil.rmtree(site(e) / "shared/cudnn"), "shared/cudnn is missing"
    ),
    "no interpreter": (lambda e: (e / "bin/python").unlink(), "bin/python does not start"),
    "bin": (lambda e: shutil.rmtree(e / "bin"), "bin/python does not start"),
    "a dangling link": (dangle, "/nowhere/python3.9"),
    "another Python": (upgraded, "built with 3.8"),
    "the mark cut short": (
        lambda e: (e / "env.json").write_text('{"schema": "ddo'), "env.json cannot be read"
    ),
    "an empty mark": (lambda e: (e / "env.json").write_text(""), "env.json cannot be read"),
    "a mark of another kind": (lambda e: (e / "env.json").write_text("[]"), "cannot be read"),
    "no mark": (lambda e: (e / "env.json").unlink(), "not built to its end"),
    "the listing cut short": (lambda e: (e / LISTING).write_bytes(b"bin"), LISTING),
    "no listing": (lambda e: (e / LISTING).unlink(), LISTING),
}  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """An environment of two packages, and what builds it."""
    folder = tmp_path_factory.mktemp("built")
    other = package(folder / "made", "other")
    for name in ("cudnn", "nccl"):
        (folder / "made/shared" / name).mkdir(parents=True)
    shared = str(folder / "made/shared")
    trees = [str(folder / "trees/engine"), other, f"{other}-1.0.dist-info", shared]
    words = spec(folder, trees=trees)
    assert build(words)["built"] is True
    return folder / "env/abc", words


@pytest.mark.parametrize("how", BREAKS)
def test_what_is_broken_is_seen_and_built_anew(built: tuple[Path, list[str]], how: str) -> None:
    env, words = built
    assert seen(str(env)) == WHOLE
    broken, words_of_it = BREAKS[how]
    broken(env)
    found = seen(str(env))
    assert found is not None
    assert words_of_it in "; ".join(found["wrong"])
    assert build(words)["built"] is True
    assert seen(str(env)) == WHOLE
    assert build(words)["built"] is False


def test_one_that_an_earlier_release_built_is_known_by_its_distributions(
    built: tuple[Path, list[str]],
) -> None:
    env, words = built
    record = json.loads((env / "env.json").read_text())
    del record["listing"]
    (env / "env.json").write_text(json.dumps(record))
    (env / LISTING).unlink()
    assert seen(str(env)) == WHOLE
    shutil.rmtree(site(env) / "other-1.0.dist-info")
    assert "other-1.0.dist-info is missing" in str(seen(str(env)))
    assert build(words)["built"] is True


def test_nothing_lies_there_or_something_else(tmp_path: Path) -> None:
    assert seen(str(tmp_path / "env/abc")) is None
    (tmp_path / "env").mkdir()
    (tmp_path / "env/abc").write_text("a file")
    assert "env.json" in str(seen(str(tmp_path / "env/abc")))
    assert build(spec(tmp_path))["built"] is True


def test_a_build_that_fails_leaves_the_broken_one_no_worse(tmp_path: Path) -> None:
    """An engine may still run from it, and what is left of it may start again."""
    words = spec(tmp_path)
    build(words)
    env = tmp_path / "env/abc"
    shutil.rmtree(site(env) / "engine")
    before = sorted(str(p.relative_to(env)) for p in env.rglob("*"))
    shutil.move(tmp_path / "trees/engine", tmp_path / "elsewhere")
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert sorted(str(p.relative_to(env)) for p in env.rglob("*")) == before
    assert [p.name for p in env.parent.iterdir() if p.is_dir()] == ["abc"]
    shutil.move(tmp_path / "elsewhere", tmp_path / "trees/engine")
    assert build(words)["built"] is True
    assert seen(str(env)) == WHOLE
    assert [p.name for p in env.parent.iterdir() if p.is_dir()] == ["abc"]


def test_a_link_to_another_disk_stays_one(tmp_path: Path) -> None:
    words = spec(tmp_path)
    (tmp_path / "disk").mkdir()
    (tmp_path / "env").mkdir()
    (tmp_path / "env/abc").symlink_to(tmp_path / "disk/abc")
    assert build(words)["built"] is True
    shutil.rmtree(site(tmp_path / "env/abc") / "engine")
    assert build(words)["built"] is True
    assert (tmp_path / "env/abc").is_symlink()
    assert seen(str(tmp_path / "env/abc")) == WHOLE
    assert [p.name for p in (tmp_path / "disk").iterdir()] == ["abc"]


def test_what_a_hand_upgraded_is_not_missing(built: tuple[Path, list[str]]) -> None:
    """A version is drift, and no reason to build eleven gigabytes again."""
    env, words = built
    (site(env) / "pip-99.dist-info").mkdir()
    (site(env) / "other-1.0.dist-info").rename(site(env) / "other-2.0.dist-info")
    for old in (*site(env).glob("pip-2*.dist-info"), *(env / "bin").glob("pip*")):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    assert seen(str(env)) == WHOLE
    assert build(words)["built"] is False
    shutil.rmtree(site(env) / "other-2.0.dist-info")
    assert "other-1.0.dist-info is missing" in str(seen(str(env)))
    assert build(words)["built"] is True


def test_what_cannot_be_told_is_no_reason_to_build(
    built: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    env, _ = built
    look = os.stat

    def stale(path: Any, **more: Any) -> os.stat_result:
        if str(path).endswith("shared/nccl"):
            raise OSError(errno.ESTALE, "Stale file handle", str(path))
        return look(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", stale)
        found = seen(str(env))
    assert found is not None
    assert found["wrong"] == []
    assert "shared/nccl: Stale file handle" in found["unknown"][0]
    slow = tmp_path / "slow"
    (slow / "bin").mkdir(parents=True)
    (slow / "env.json").write_text((env / "env.json").read_text())
    shutil.copy(env / LISTING, slow / LISTING)
    (slow / "bin/python").write_text("#!/bin/sh\nexec sleep 30\n")
    (slow / "bin/python").chmod(0o755)
    monkeypatch.setattr(env_whole, "START_S", 0.2)
    assert "did not answer" in str((seen(str(slow)) or {})["unknown"])
    told = {"digest": "abc", "wrong": [], "unknown": ["x: Stale file handle"]}
    monkeypatch.setattr(build_env, "seen", lambda _: told)
    with pytest.raises(SystemExit, match="cannot be looked at: x: Stale file handle"):
        build_env.build({"dir": str(env)})  # type: ignore[no-untyped-call]
    assert seen(str(env)) == WHOLE


def test_scripts_that_are_sent_as_one_have_no_name_twice() -> None:
    """The later one would silently be the other's."""
    for names in (("env_whole", "build_env"), ("setup_files", "setup_system", "setup_run",
                                               "env_whole", "state")):  # fmt: skip
        defined = re.findall(r"^(?:def|class) (\w+)|^(\w+) = ", joined(*names), re.MULTILINE)
        flat = [a or b for a, b in defined if (a or b) != "main"]
        assert sorted(set(flat)) == sorted(flat)


def test_code_that_a_hand_edited_is_no_broken_environment(built: tuple[Path, list[str]]) -> None:
    env, _ = built
    folder = site(env) / "other/srt"
    shutil.rmtree(folder)
    (site(env) / "other/by_hand.py").touch()
    assert seen(str(env)) == WHOLE
    (site(env) / "other/by_hand.py").unlink()
    folder.mkdir()


def test_a_tree_that_was_put_aside_there_is_not_thrown_away(tmp_path: Path) -> None:
    words = spec(tmp_path)
    build(words)
    env = tmp_path / "env/abc"
    aside = site(env) / "engine.before-20260101"
    (site(env) / "engine").rename(aside)
    (aside / "mine.py").write_text("MINE = 1\n")
    assert build(words)["built"] is True
    assert seen(str(env)) == WHOLE
    (kept,) = (tmp_path / "env").glob("abc.replaced-*/lib/python3*/site-packages/*/mine.py")
    assert kept.read_text() == "MINE = 1\n"
