"""The builder of environments: whole or not there, and one at a time."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddops import hostside

SCRIPT = Path(hostside.__file__).with_name("build_env.py")


def spec(tmp_path: Path, **more: object) -> list[str]:
    tree = tmp_path / "trees" / "engine"
    tree.mkdir(parents=True, exist_ok=True)
    (tree / "__init__.py").write_text("NAME = 'stand-in'\n")
    value = {"dir": str(tmp_path / "env" / "abc"), "digest": "abc", "torch": None, "lock": None,
             "dists": [], "trees": [str(tree)], "find_links": None, "index": None,
             "torch_build": None, **more}  # fmt: skip
    return [sys.executable, str(SCRIPT), json.dumps(value)]


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
