"""What only looks at trees and snapshots writes nothing: not on the host, not in the project.

The host is this machine in a folder, so the real scripts run; every byte, mode, time and inode of
host and project is compared. To see it fail: give `applied` in hostside/tree_git.py a Trial that
keeps, or let `lay` in hostside/snap_lay.py answer where `look` was asked.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ddops.cli import root as root_module
from ddops.cli.app import App
from ddops.transport import LocalTransport
from tests.unit.snapshot.conftest import fingerprint, git

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
PATCH = "0001-say.patch"
MESSAGE = "Say it\n\nWhat: x\nWhy: x\nUpstream: not sent\nTest: this one\n"
Drive = Callable[..., int]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a host that has a managed tree, a series that is not applied, snapshots."""
    base = tmp_path_factory.mktemp("dry")
    package = base / "site/sglang"
    (package / "srt").mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '1'\n")
    for number in range(5):
        (package / f"srt/{number}.py").write_text(f"print({number})\n" * 20)
    work = base / "work"
    shutil.copytree(base / "site", work)
    git("init", "-q", cwd=work)
    git("add", "-A", cwd=work)
    git("commit", "-qm", "upstream", cwd=work)
    (work / "sglang/srt/1.py").write_text("print('patched')\n" + "print(1)\n" * 19)
    git("commit", "-qam", MESSAGE, cwd=work)
    root = base / "project"
    for name, text in {
        "ddops.toml": "[backup]\nkeep = 1\n",
        "inventory/hosts.toml": (
            f'[hosts.box]\nssh = "box"\nclass = "cpu"\nengine_dir = "{base}/engine"\n'
            'engine_env = "sim"\nsupervisor = "process"\n'
        ),
        "patches/sglang-0.5.23/series": f"{PATCH}\n",
        f"patches/sglang-0.5.23/{PATCH}": git("format-patch", "-1", "--stdout", cwd=work).decode(),
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return base


@pytest.fixture
def drive(made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Drive:
    monkeypatch.setattr(App, "transport", lambda _self, host: LocalTransport(host.name))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    return lambda *argv: root_module.run(["--project", str(made / "project"), *argv])


@pytest.fixture
def ready(made: Path, drive: Drive) -> Path:
    """Made once: the tree, an edit by hand, two snapshots."""
    if not (made / "engine/tree").exists():
        assert drive("tree", "status", "box") == 4
        assert not (made / "engine").exists(), "there is no tree, and asking makes nothing"
        assert drive("tree", "init", "box", "--installed", str(made / "site/sglang")) == 0
        (made / "engine/tree/sglang/srt/4.py").write_text("edited\n")
        assert drive("snapshot", "box") == 0
        (made / "engine/tree/sglang/srt/3.py").write_text("edited\n")
        (made / "project/ddops.toml").write_text("")  # no retention yet
        assert drive("snapshot", "box") == 0
    return made


def state(base: Path) -> list[tuple[object, ...]]:
    """All of host and project; what SQLite makes beside an open ledger is no content."""
    rows = fingerprint(base / "engine") + fingerprint(base / "project")
    return [r for r in rows if not str(r[0]).endswith(("ledger.db-shm", "ledger.db-wal"))
            and not str(r[0]).endswith("project/.ddops")]  # fmt: skip


LOOKING = [
    ("tree", "status", "box"),
    ("tree", "status", "box", "--json"),
    ("tree", "apply", "box", "--check"),
    ("tree", "reverse", "box", "--check"),
    ("snapshot", "list"),
    ("snapshot", "list", "box", "--json"),
    ("snapshot", "prune", "--keep", "1", "--dry-run"),
]


@pytest.mark.parametrize("argv", LOOKING, ids=" ".join)
def test_looking_writes_nothing(argv: tuple[str, ...], ready: Path, drive: Drive) -> None:
    before = state(ready)
    assert drive(*argv) == 0
    assert state(ready) == before


def test_looking_at_one_snapshot_writes_nothing(
    ready: Path, drive: Drive, capsys: pytest.CaptureFixture[str]
) -> None:
    assert drive("snapshot", "list") == 0
    newest, oldest = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:3]]
    before = state(ready)
    for argv in (("show", newest), ("show", newest, "--json"), ("diff", oldest, newest, "--patch")):
        assert drive("snapshot", *argv) == 0
    # The tree that is there is the snapshot's, so nothing would have to be laid down; an older one
    # is refused, before anything.
    assert drive("restore", oldest, "--to", "box", "--yes") == 4
    assert state(ready) == before


def test_a_series_too_long_for_a_word_leaves_nothing_either(ready: Path, drive: Drive) -> None:
    folder = ready / "project/patches/sglang-0.5.23"
    series, patch = folder / "series", (folder / PATCH).read_text()
    noise = "".join(f"{hash((n, 'x')) & (1 << 62) - 1:016x}\n" for n in range(12_000))
    (folder / "0002-long.patch").write_text(patch.replace("What: x", f"What: x\n\n{noise}"))
    kept = series.read_text()
    series.write_text(f"{PATCH}\n0002-long.patch\n")
    try:
        before = state(ready)
        assert drive("tree", "status", "box") == 0
        assert state(ready) == before
    finally:
        series.write_text(kept)
        (folder / "0002-long.patch").unlink()


def test_the_same_without_check_does_change_things(ready: Path, drive: Drive) -> None:
    """So that the tests above watch something that could have changed. The last one here."""
    before = state(ready)
    assert drive("tree", "apply", "box", "--yes") == 0
    assert drive("snapshot", "prune", "--keep", "1", "--yes") == 0
    after = state(ready)
    assert {r[0] for r in before} != {r[0] for r in after}
