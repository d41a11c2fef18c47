"""What the places promise: damage is found wherever it is, and each trouble has its own words.

Real git and real restic on folders of this machine; see test_snapshot.py for real SSH. To see
them fail: drop `verify-pack` and `fsck` from gitplace, or `--read-data` from resticplace.check.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ddops.command import Secret
from ddops.errors import DdopsError, ExitCode
from ddops.snapshot import Made, Tools, make, snapshot_for_deploy, snapshot_host
from ddops.snapshot.drill import drill
from ddops.snapshot.gitplace import GitPlace
from ddops.snapshot.places import GitCopy
from ddops.snapshot.resticio import Restic
from ddops.snapshot.resticplace import ResticCopy
from ddops.snapshot.retain import retain
from ddops.snapshot.store import Store
from ddops.snapshot.verify import verify, verify_here
from ddops.transport import LocalTransport
from tests.lab.snapdriver import host_in, no_facts, tools_in
from tests.lab.test_snapshot_kills import work_in

pytestmark = pytest.mark.skipif(
    shutil.which("git") is None or shutil.which("restic") is None, reason="needs git and restic"
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "collect", no_facts)


def snap(work: Path, tools: Tools) -> Made:
    return snapshot_host(LocalTransport("box"), host_in(work), None, str(work / "tree"), tools)


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Made]:
    """One snapshot at both places."""
    work = work_in(tmp_path_factory.mktemp("taken"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make, "collect", no_facts)
        return work, snap(work, tools_in(work, restic=True))


@contextmanager
def flipped(path: Path, offset: int) -> Iterator[None]:
    whole, mode = path.read_bytes(), path.stat().st_mode
    hurt = bytearray(whole)
    hurt[offset] ^= 0xFF
    path.chmod(0o600)
    path.write_bytes(hurt)
    try:
        yield
    finally:
        path.write_bytes(whole)
        path.chmod(mode)


def objects_in(repo: Path) -> list[tuple[Path, int]]:
    """A byte inside each object of each pack, and each loose object."""
    out = []
    for pack in (repo / "objects/pack").glob("*.pack"):
        listed = subprocess.run(["git", "verify-pack", "-v", pack.with_suffix(".idx")],
                                capture_output=True, text=True, check=True)  # fmt: skip
        rows = [line.split() for line in listed.stdout.splitlines()]
        out += [(pack, int(r[4]) + int(r[3]) - 1) for r in rows if len(r) >= 5 and r[1] in
                ("commit", "tree", "blob")]  # fmt: skip
    loose = sorted((repo / "objects").glob("??/*"))
    return out + [(p, p.stat().st_size // 2) for p in loose]


def test_a_flipped_byte_in_any_object_of_the_store_is_found(taken: tuple[Path, Made]) -> None:
    work, made = taken
    store = Store(work / "store")
    verify_here(store, made.manifest)
    spots = objects_in(store.repo.dir)
    assert len(spots) >= 25, "the tree's objects and the record's"
    missed = []
    for path, offset in spots:
        with flipped(path, offset):
            try:
                verify_here(store, made.manifest)
                missed.append((path.name, offset))
            except DdopsError:
                continue
    assert not missed
    verify_here(store, made.manifest)


def test_a_flipped_byte_in_any_object_at_the_git_place_is_found(taken: tuple[Path, Made]) -> None:
    work, made = taken
    place = GitCopy(GitPlace(LocalTransport("place"), str(work / "place.git")))
    store = Store(work / "store")
    spots = objects_in(work / "place.git")
    assert len(spots) >= 25
    missed = []
    for path, offset in spots:
        with flipped(path, offset):
            try:
                place.check(store, made.manifest)
                missed.append((path.name, offset))
            except DdopsError as error:
                assert "damaged or missing" in error.what or "not whole" in error.what
    assert not missed
    place.check(store, made.manifest)


def test_a_flipped_byte_in_any_file_of_the_restic_repository_is_found(
    taken: tuple[Path, Made],
) -> None:
    work, made = taken
    place = tools_in(work, restic=True).places[1]
    files = [p for d in ("data", "index", "snapshots") for p in (work / "restic" / d).rglob("*")
             if p.is_file()]  # fmt: skip
    assert len(files) >= 6
    missed = []
    for path in files:
        with flipped(path, path.stat().st_size // 2):
            try:
                place.check(Store(work / "store"), made.manifest)
                missed.append(str(path.relative_to(work)))
            except DdopsError:
                continue
    assert not missed


def test_verify_and_drill_say_which_place_is_hurt(taken: tuple[Path, Made]) -> None:
    work, made = taken
    tools = tools_in(work, restic=True)
    verify(made.manifest, tools)
    assert [d.verdict for d in drill(made.manifest, tools)] == ["PASS", "PASS"]
    path, offset = objects_in(work / "place.git")[3]
    with flipped(path, offset):
        with pytest.raises(DdopsError, match="not whole at 1 of 3 places"):
            verify(made.manifest, tools)
        assert [d.verdict for d in drill(made.manifest, tools)] == ["FAIL", "PASS"]
        with tools.ledger() as ledger:
            states = {c.place.partition(":")[0]: c.state for c in ledger.copies(made.manifest.id)}
            assert states == {"git": "failed", "restic": "verified"}
            assert ledger.drills()[0].verdict == "PASS"
    verify(made.manifest, tools)


@pytest.mark.parametrize("number", [0, 1], ids=["git", "restic"])
def test_a_lost_store_comes_back_from_either_place(
    taken: tuple[Path, Made], tmp_path: Path, number: int
) -> None:
    work, made = taken
    fresh = Store(tmp_path / "store")
    place = tools_in(work, restic=True).places[number]
    assert made.manifest.id in place.there()
    place.get(fresh, made.manifest.id)  # type: ignore[attr-defined]
    verify_here(fresh, made.manifest)
    assert fresh.read(made.manifest.id).manifest.content == made.manifest.content


def test_large_files_go_to_restic_alone_and_come_back(tmp_path: Path) -> None:
    work = work_in(tmp_path)
    (work / "tree/kernel.bin").write_bytes(os.urandom(300_000))
    base = tools_in(work, restic=True)
    tools = Tools(**{f: getattr(base, f) for f in base.__dataclass_fields__}
                  | {"allow": ("kernel.bin",), "large_bytes": 100_000})  # fmt: skip
    made = snap(work, tools)
    [row] = made.manifest.large
    names = [e.path for e in tools.store.repo.ls(made.manifest.tree_hash)]
    assert b"kernel.bin" not in names
    fresh = Store(tmp_path / "fresh")
    tools.places[1].get(fresh, made.manifest.id)  # type: ignore[attr-defined]
    assert fresh.large(row.sha256).read_bytes() == (work / "tree/kernel.bin").read_bytes()
    verify_here(fresh, made.manifest)
    with flipped(fresh.large(row.sha256), 1000), pytest.raises(DdopsError, match=r"kernel\.bin"):
        verify_here(fresh, made.manifest)


def refused(work: Path, tools: Tools) -> DdopsError:
    with pytest.raises(DdopsError) as caught:
        snap(work, tools)
    with tools.ledger() as ledger:
        row = ledger.snapshots()[0]
        assert "verified" not in {c.state for c in ledger.copies(row.id)}, (
            "never shown as backed up"
        )
    return caught.value


def only(tools: Tools, *places: make.Place) -> Tools:
    return Tools(**{f: getattr(tools, f) for f in tools.__dataclass_fields__} | {"places": places})


def test_a_wrong_password_a_lock_and_a_dead_host_are_told_apart(tmp_path: Path) -> None:
    work = work_in(tmp_path)
    good = Restic(str(work / "restic"), Secret("pw"))
    good.ensure()
    base = tools_in(work)
    wrong = refused(work, only(base, ResticCopy(Restic(good.repository, Secret("no")))))
    assert (wrong.exit_code, "wrong password" in wrong.what) == (ExitCode.REFUSED, True)
    holder = subprocess.Popen(
        ["restic", "-r", good.repository, "--no-cache", "backup", "--stdin"],
        env={**os.environ, "RESTIC_PASSWORD": "pw"}, stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for _ in range(600):
            if any((work / "restic/locks").iterdir()):
                break
            assert holder.poll() is None
            subprocess.run(["sleep", "0.05"], check=True)
        locked = refused(work, only(base, ResticCopy(good, 100)))
    finally:
        holder.kill()
        holder.communicate()
    assert (locked.exit_code, "is locked" in locked.what) == (ExitCode.LOCK_HELD, True)
    assert "unlock" in locked.next
    # Killed: its lock stays. It is told, and never broken unasked.
    stale = refused(work, only(base, ResticCopy(good, 100)))
    assert stale.exit_code == ExitCode.LOCK_HELD
    subprocess.run(["restic", "-r", good.repository, "--no-cache", "unlock", "--remove-all"],
                   env={**os.environ, "RESTIC_PASSWORD": "pw"}, check=True,
                   capture_output=True)  # fmt: skip
    made = snap(work, only(base, ResticCopy(good, 100)))
    assert set(made.copies.values()) == {"verified"}
    dead = Restic("sftp:nobody@127.0.0.1:/r", Secret("pw"), ssh_config=Path("/dev/null"))
    lost = refused(work_in(tmp_path / "x"), only(tools_in(tmp_path / "x"), ResticCopy(dead)))
    assert lost.exit_code == ExitCode.UNREACHABLE


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system needs root")
def test_a_full_disk_at_either_place_is_said_and_mended_by_space(tmp_path: Path) -> None:
    work = work_in(tmp_path)
    (work / "tree/noise.py").write_bytes(os.urandom(90_000))
    small = tmp_path / "small"
    small.mkdir()
    base = tools_in(work)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80k", "tmpfs", small], check=True)
    try:
        git = GitCopy(GitPlace(LocalTransport("place"), str(small / "p.git")))
        full = refused(work, only(base, git))
        assert "disk is full" in full.what
        subprocess.run(["mount", "-o", "remount,size=4m", small], check=True)
        assert set(snap(work, only(base, git)).copies.values()) == {"verified"}
        subprocess.run(["mount", "-o", "remount,size=1m", small], check=True)
        (small / "ballast").write_bytes(b"\1" * 850_000)
        restic = ResticCopy(Restic(str(small / "r"), Secret("pw")), 100)
        with pytest.raises(DdopsError, match="full"):
            snap(work, only(base, restic))
        (small / "ballast").unlink()
        subprocess.run(["mount", "-o", "remount,size=16m", small], check=True)
        assert set(snap(work, only(base, restic)).copies.values()) == {"verified"}
    finally:
        subprocess.run(["umount", "-l", small], check=True)


def test_a_place_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    work = work_in(tmp_path)
    other = work / "place.git"
    other.mkdir()
    (other / "letter.txt").write_text("mine")
    error = refused(work, tools_in(work))
    assert "something else" in error.what
    assert [p.name for p in other.iterdir()] == ["letter.txt"]


def test_retention_removes_everywhere_and_its_failure_is_a_failure(tmp_path: Path) -> None:
    work = work_in(tmp_path)
    tools = tools_in(work, restic=True)
    made = []
    for number in range(3):
        (work / "tree/sglang/srt/0.py").write_text(f"{number}\n")
        made.append(snap(work, tools).manifest)
    assert [m.id for m in retain("box", 1, tools, dry_run=True)] == [made[1].id, made[0].id]
    assert len(tools.store.ids()) == 3, "a dry run removes nothing"
    config = work / "place.git/HEAD"
    head = config.read_text()
    config.write_text("broken")
    with pytest.raises(DdopsError, match="retention failed at git:"):
        retain("box", 1, tools)
    assert len(tools.store.ids()) == 3
    config.write_text(head)
    retain("box", 1, tools)
    assert list(tools.store.ids()) == [made[2].id]
    for place in tools.places:
        assert place.there() == [made[2].id]
        place.check(tools.store, made[2])
    verify_here(tools.store, made[2])
    with tools.ledger() as ledger:
        assert {c.state for c in ledger.copies(made[0].id)} == {"removed"}
    keeping = Tools(**{f: getattr(tools, f) for f in tools.__dataclass_fields__} | {"keep": 1})
    (work / "tree/sglang/srt/0.py").write_text("last\n")
    last = snap(work, keeping)
    assert list(tools.store.ids()) == [last.manifest.id]


def test_a_deploys_snapshot_skips_with_a_reason_or_raises_what_matters(tmp_path: Path) -> None:
    work = work_in(tmp_path)
    tools = tools_in(work)
    host, transport = host_in(work), LocalTransport("box")
    step = snapshot_for_deploy(transport, host, "tiny", only(tools))
    assert (step.skipped, step.evidence) == ("no [backup] is set up", {})
    step = snapshot_for_deploy(transport, host, "tiny", tools)
    assert "no source tree" in step.skipped, "a host before its first deploy"
    (work / "engine/tree").symlink_to(work / "tree")
    step = snapshot_for_deploy(transport, host, "tiny", tools)
    assert step.skipped == ""
    assert step.evidence["snapshot"] in tools.store.ids()
    assert step.evidence["fresh"] is True
    again = snapshot_for_deploy(transport, host, "tiny", tools)
    assert (again.evidence["snapshot"], again.evidence["fresh"]) == (
        step.evidence["snapshot"],
        False,
    )
    (work / "tree/.netrc").write_text("machine x login y password z\n")
    assert "secrets" in snapshot_for_deploy(transport, host, "tiny", tools).skipped
    with pytest.raises(DdopsError, match="secrets"):
        snapshot_for_deploy(transport, host, "tiny", tools, required=True)
    (work / "tree/.netrc").unlink()
    (work / "tree/new.py").write_text("x = 1\n")
    (work / "place.git/HEAD").write_text("broken")
    with pytest.raises(DdopsError, match=r"git:"):
        snapshot_for_deploy(transport, host, "tiny", tools)
