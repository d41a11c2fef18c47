"""A host's setup: done on this machine below a scratch folder, undone, and refused.

What needs apt, users or a kernel runs against stand-ins of their programs here, and for real on
hosts that boot (tests/systemd/test_setup.py).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from ddops.errors import ConfigError, DdopsError, RefusedError
from ddops.inventory.model import Host, Origin
from ddops.inventory.setup import SetupTable, parse_setup, read_setup
from ddops.layout import HostLayout
from ddops.model import Result
from ddops.plan import Change
from ddops.provision.setup import SetupStep, setup_manifest, setup_steps, undo_setup
from ddops.provision.side import HostSide
from ddops.transport import FakeTransport, LocalTransport

ROOT = Path(__file__).resolve().parents[2]
HERE = Origin("project", Path("x.toml"))


@pytest.fixture
def side(tmp_path: Path) -> HostSide:
    layout = HostLayout(str(tmp_path / "engine"))
    Path(layout.state).mkdir(parents=True)
    return HostSide(LocalTransport("here"), layout, sys.executable)


def host(side: HostSide, **more: object) -> Host:
    values: dict[str, object] = {"name": "here", "origin": HERE, "ssh": "here",
                                 "engine_dir": side.layout.engine_dir, **more}  # fmt: skip
    return Host(**values)  # type: ignore[arg-type]


def steps_of(side: HostSide, tmp_path: Path, text: str) -> list[SetupStep]:
    path = tmp_path / "setup.toml"
    path.write_text(text.replace("BASE", str(tmp_path / "base")))
    return setup_steps(side, host(side), parse_setup(path), lambda name: tmp_path / name)


FILES = """
[[dir]]
path = "BASE/a/b"
mode = "0750"
[[file]]
path = "BASE/a/conf"
content = "dir = ${engine_dir}\\nname = ${host}\\n"
mode = "0640"
[[file]]
path = "BASE/old"
content = "new\\n"
[[line]]
path = "BASE/lines"
line = "opt = 2"
match = "^opt ="
[[line]]
path = "BASE/fresh"
line = "alone"
[[link]]
path = "BASE/link"
target = "BASE/a/conf"
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    base = tmp_path / "base"
    base.mkdir()
    (base / "old").write_text("old\n")
    (base / "old").chmod(0o600)
    (base / "lines").write_text("first\nopt = 1\nlast\n")
    return base


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(p): (p.lstat().st_mode, str(p.readlink()).encode() if p.is_symlink() else
                 p.read_bytes() if p.is_file() else b"")
        for p in sorted(folder.rglob("*"))
    }  # fmt: skip


def test_files_are_done_once_and_undone_to_the_byte(
    side: HostSide, tmp_path: Path, base: Path
) -> None:
    before = everything(base)
    (step,) = steps_of(side, tmp_path, FILES)
    plan = step.observe()
    assert plan.change is Change.UPDATE
    assert {"-old", "+new", "-opt = 1", "+opt = 2"} <= set(plan.lines)
    assert everything(base) == before
    step.apply()
    assert step.observe() == step.observe()
    assert not step.observe().pending
    assert (base / "a/conf").read_text() == f"dir = {side.layout.engine_dir}\nname = here\n"
    assert (base / "a/conf").stat().st_mode & 0o777 == 0o640
    assert (base / "a/b").stat().st_mode & 0o777 == 0o750
    assert (base / "lines").read_text() == "first\nopt = 2\nlast\n"
    ids = setup_manifest(side)
    assert len(ids) == 6
    done, left = undo_setup(side, "op", ids)
    assert (len(done), left) == (6, [])
    assert everything(base) == before
    assert setup_manifest(side) == []
    assert undo_setup(side, "op", ids) == ([], [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_what_root_makes_belongs_to_whom_its_folder_belongs(
    side: HostSide, tmp_path: Path, base: Path
) -> None:
    for path, uid in ((base, 1234), (base / "old", 4321)):
        os.chown(path, uid, uid)
    (step,) = steps_of(side, tmp_path, FILES)
    step.apply()
    owners = {str(p.relative_to(base)): p.lstat().st_uid for p in base.rglob("*")}
    assert {k: v for k, v in owners.items() if k not in ("lines", "link")} == {
        "a": 1234, "a/b": 1234, "a/conf": 1234, "fresh": 1234, "old": 4321,
    }  # fmt: skip
    assert owners["lines"] == 0, "as it was"
    undo_setup(side, "op", setup_manifest(side))
    assert (base / "old").stat().st_uid == 4321


def test_what_was_changed_since_is_left(side: HostSide, tmp_path: Path, base: Path) -> None:
    (step,) = steps_of(side, tmp_path, FILES)
    step.apply()
    (base / "old").write_text("edited by a person\n")
    (base / "a/b/theirs").write_text("")
    (base / "link").unlink()
    (base / "lines").write_text("first\nopt = 2\nlast\nadded\n")
    _, left = undo_setup(side, "op", setup_manifest(side))
    assert sorted(words.partition(str(base))[2] for words in left) == [
        "/a/b is not empty: left", "/link has been changed since: left",
        "/old has been changed since: left",
    ]  # fmt: skip
    assert (base / "old").read_text() == "edited by a person\n"
    assert (base / "lines").read_text() == "first\nopt = 1\nlast\nadded\n"


def test_the_first_state_is_what_undo_goes_back_to(
    side: HostSide, tmp_path: Path, base: Path
) -> None:
    for text in ("one", "two", "three"):
        form = f'[[file]]\npath = "BASE/old"\ncontent = "{text}"\n'
        (step,) = steps_of(side, tmp_path, form)
        step.apply()
    undo_setup(side, "op", setup_manifest(side))
    assert (base / "old").read_text() == "old\n"


def test_a_change_that_was_cut_short_can_be_undone(
    side: HostSide, tmp_path: Path, base: Path
) -> None:
    """Killed between the change and its record: the row of the beginning says what was there."""
    (step,) = steps_of(side, tmp_path, '[[file]]\npath = "BASE/old"\ncontent = "new"\n')
    step.apply()
    record = Path(side.layout.state) / "setup.jsonl"
    first = record.read_text().splitlines()[0]
    assert json.loads(first)["state"] == "begin"
    record.write_text(first + '\n{"state": "do')
    assert not step.observe().pending
    undo_setup(side, "op", setup_manifest(side))
    assert (base / "old").read_text() == "old\n"
    assert record.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[dir]]\npath = "BASE/old"\n', "in the way: not a folder"),
        ('[[link]]\npath = "BASE/old"\ntarget = "/x"\n', "in the way: not a link"),
        ('[[file]]\npath = "BASE"\ncontent = ""\n', "in the way: not a file"),
        ('[[require]]\npath = "BASE/absent"\nwhy = "w"\nnext = "n"\n', "absent is not there: w"),
        ('[[sysctl]]\nkey = "no.such.key"\nvalue = "1"\n', "this kernel has no no.such.key"),
        ('[[package]]\nname = "fm-${driver_branch}"\n', "no NVIDIA driver is loaded"),
    ],
)
def test_what_is_not_known_is_never_done(
    text: str, words: str, side: HostSide, tmp_path: Path, base: Path
) -> None:
    if "driver" in text and Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has an NVIDIA driver")
    before = everything(base)
    (step,) = steps_of(side, tmp_path, text)
    proposal = step.observe()
    assert proposal.change is Change.UNKNOWN
    assert words in proposal.lines[0]
    with pytest.raises(DdopsError):
        step.apply()
    assert everything(base) == before


def test_advice_is_shown_and_never_pending(side: HostSide, tmp_path: Path) -> None:
    text = '[[advice]]\ncmdline = "no.such=word"\nwhy = "because"\n'
    (step,) = steps_of(side, tmp_path, text)
    assert not step.observe().pending
    assert step.observe().lines == (
        "advice: no.such=word on the kernel's command line: because",
    )  # fmt: skip


#: A dpkg and an apt of paper: `state` holds what is installed, `plan` what apt would do.
DPKG = 'cat "$STATE" 2>/dev/null; exit 0'
APT = """
echo "$*" >> "$STATE.calls"
case "$*" in
  -s*remove*) echo "Remv git [1]" ;;
  -s*) cat "$STATE.plan" ;;
  *install*) printf 'git\\tii \\t1:2.39\\n' >> "$STATE" ;;
  *remove*) : > "$STATE" ;;
esac
"""


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    bin_dir, state = tmp_path / "bin", tmp_path / "dpkg"
    bin_dir.mkdir()
    for name, text in (("dpkg-query", DPKG), ("apt-get", APT)):
        (bin_dir / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin_dir / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_dir}:{os.environ['PATH']}")
    monkeypatch.setenv("STATE", str(state))
    monkeypatch.setenv("DPKG_ADMINDIR", str(tmp_path / "no-list"))  # so that dpkg is asked
    (tmp_path / "dpkg.plan").write_text("Inst git (1:2.39 Debian:12 [amd64])\nConf git (x)\n")
    return state


@pytest.mark.skipif(os.geteuid() != 0, reason="packages are installed as root")
def test_packages_are_installed_once_and_removed_again(
    side: HostSide, tmp_path: Path, apt: Path
) -> None:
    (step,) = steps_of(side, tmp_path, '[[package]]\nname = "git"\n')
    assert step.observe().lines == ("install git",)
    assert " -y " not in f" {(tmp_path / 'dpkg.calls').read_text()}"
    step.apply()
    assert not step.observe().pending
    done, left = undo_setup(side, "op", setup_manifest(side))
    assert (done, left) == (["package git"], [])
    assert step.observe().pending


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("Inst git (1:2)\nInst libnvidia-compute-590 (590.1)\n", "change the driver"),
        ("Inst git (1:2)\nInst nvidia-driver-590-open [580.2] (590.1)\n", "change the driver"),
        ("Inst git (1:2)\nInst linux-image-6.8.0-50-generic (6.8)\n", "change the driver"),
        ("Remv openssh-server [1]\nInst git (1:2)\n", "would remove openssh-server"),
    ],
)
def test_the_driver_is_never_changed_unasked(
    plan: str, words: str, side: HostSide, tmp_path: Path, apt: Path
) -> None:
    (tmp_path / "dpkg.plan").write_text(plan)
    (step,) = steps_of(side, tmp_path, '[[package]]\nname = "git"\n')
    proposal = step.observe()
    assert proposal.change is Change.UNKNOWN
    assert words in proposal.lines[0]
    with pytest.raises(DdopsError):
        step.apply()
    assert "-y" not in (tmp_path / "dpkg.calls").read_text()


def test_what_is_no_driver_may_come_along(side: HostSide, tmp_path: Path, apt: Path) -> None:
    (tmp_path / "dpkg.plan").write_text(
        "Inst git (1:2)\nInst libnvidia-container1 (1.17)\nInst cuda-nvcc-13-0 (13.0)\n"
    )
    (step,) = steps_of(side, tmp_path, '[[package]]\nname = "git"\n')
    assert step.observe().lines == (
        "install git", "  with libnvidia-container1 (1.17)", "  with cuda-nvcc-13-0 (13.0)",
    )  # fmt: skip


def test_a_sudo_that_wants_a_password_is_told_and_nothing_is_done() -> None:
    def answer(command: object) -> Result:
        if str(command).startswith("sudo"):
            return Result(1, b"", b"sudo: a password is required", 0.0)
        return Result(0, json.dumps({"state": "root", "id": "package git"}).encode(), b"", 0.0)

    box = FakeTransport("box").on("python3", answer).on("sudo", answer)
    side = HostSide(box, HostLayout("/opt/ddops"), "python3")
    step = SetupStep("setup:packages", "p", side, ({"kind": "package", "id": "package git"},))
    with pytest.raises(RefusedError, match="package git needs root") as caught:
        step.apply()
    assert "sudo -n true" in caught.value.next


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[file]]\npath = "/x"\n', "one of `content`, `source` and `template`"),
        ('[[file]]\npath = "/x/../y"\ncontent = ""\n', "'..'"),
        ('[[file]]\npath = "x"\ncontent = ""\n', "an absolute path"),
        ('[[dir]]\npath = "/x"\nmode = "755"\n', "a mode like 0644"),
        ('[[dir]]\npath = "/x"\n[[dir]]\npath = "/x"\n', "twice"),
        ('[[package]]\nname = "Git; rm"\n', "Git; rm"),
        ('[[packages]]\nname = "git"\n', "package"),
        ('[[unit]]\nname = "x"\n', "expected"),
    ],
)
def test_a_wrong_file_names_its_fault(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        parse_setup(path)
    assert words in " ".join(caught.value.lines())


def counts(setup: SetupTable) -> dict[str, int]:
    return {kind: len(getattr(setup, kind)) for kind in SetupTable.__struct_fields__}


def test_the_shipped_files_are_right_and_bring_no_driver(side: HostSide) -> None:
    found = {}
    for kind in ("cpu", "pcie", "nvlink"):
        there = host(side, host_class=kind)
        setup = read_setup(there, lambda name: ROOT / name)
        steps = setup_steps(side, there, setup, lambda name: ROOT / name)
        assert [r["id"] for s in steps for r in s.resources]
        assert not [p for p in setup.package if p.name.startswith(("nvidia-driver", "cuda-driver"))]
        found[kind] = setup
    assert {m.name for m in found["nvlink"].module} == {"mlx5_ib", "ib_umad"}
    manager = next(p for p in found["nvlink"].package if "fabricmanager" in p.name)
    assert (manager.name, manager.version) == (
        "nvidia-fabricmanager-${driver_branch}", "${driver}-*",
    )  # fmt: skip
    assert not [p for p in found["pcie"].package if "fabricmanager" in p.name]
    assert counts(found["cpu"]) | {"package": 0} == dict.fromkeys(counts(found["cpu"]), 0)


def test_a_recorded_host_and_a_lab_are_left_alone(side: HostSide) -> None:
    def nothing(name: str) -> Path:
        raise AssertionError(name)

    lab = Origin("lab", Path("x.toml"))
    for there in (host(side, simulated=True), host(side, origin=lab), host(side, setup="none")):
        assert read_setup(there, nothing) == SetupTable()


DPKG_LIST = """\
Package: git
Status: install ok installed
Architecture: amd64
Version: 1:2.39.5-0+deb12u2
Description: words
 Package: rsync

Package: git-man
Status: install ok installed
Version: 1:2.40

Package: gone
Status: deinstall ok config-files
Version: 3
"""


def test_the_list_of_dpkg_is_read_as_dpkg_reads_it(
    side: HostSide, tmp_path: Path, apt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "dpkg-list"
    (folder / "updates").mkdir(parents=True)
    (folder / "status").write_text(DPKG_LIST)
    monkeypatch.setenv("DPKG_ADMINDIR", str(folder))
    (tmp_path / "dpkg.plan").write_text("")
    text = "".join(f'[[package]]\nname = "{n}"\n' for n in ("git", "rsync", "gone"))
    (step,) = steps_of(side, tmp_path, text)
    assert step.observe().lines == ("install rsync", "install gone")
    (step,) = steps_of(side, tmp_path, '[[package]]\nname = "git"\nversion = "1:2.39*"\n')
    assert not step.observe().pending
    (folder / "updates/0001").write_text("half written")
    assert step.observe().pending, "dpkg itself, of paper, has no git"
