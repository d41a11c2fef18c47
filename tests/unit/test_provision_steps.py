"""Provision's steps against hosts in memory and on this machine."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ddops.errors import CommandFailed, DdopsError
from ddops.events import ListReporter
from ddops.inventory.model import Host, Origin, Service
from ddops.layout import HostLayout
from ddops.model import Result
from ddops.plan import Change, apply_plan, make_plan
from ddops.provision import Provision, env_recipe
from ddops.provision.side import HostSide
from ddops.provision.steps import DirsStep, FileStep, PresentStep, TreeStep
from ddops.transport import FakeTransport, LocalTransport
from sglang_ddtree.compat import SGLANG_VERSION

ROOT = Path(__file__).resolve().parents[2]
HERE = Origin("project", Path("x.toml"))


def lookup(name: str) -> Path:
    return ROOT / name


@pytest.fixture
def side(tmp_path: Path) -> HostSide:
    return HostSide(LocalTransport("here"), HostLayout(str(tmp_path / "engine")), sys.executable)


def test_dirs_get_their_modes(side: HostSide) -> None:
    base = side.layout.engine_dir
    step = DirsStep("dirs", "folders", side, ((base, 0o755), (side.layout.state, 0o700)))
    assert len(step.observe().lines) == 2
    step.apply()
    assert not step.observe().pending
    Path(side.layout.state).chmod(0o755)
    assert step.observe().lines == (f"mode of {side.layout.state}: 0755 -> 0700",)
    step.apply()
    assert not step.observe().pending


def test_a_file_where_a_folder_should_be_is_never_removed(side: HostSide) -> None:
    path = Path(side.layout.engine_dir)
    path.write_text("precious")
    step = DirsStep("dirs", "folders", side, ((str(path), 0o755),))
    with pytest.raises(DdopsError, match="in the way"):
        step.observe()
    assert path.read_text() == "precious"


def test_a_tree_is_sent_replaced_and_recognised(side: HostSide, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.mkdir()
    (local / "a.txt").write_text("one")
    remote = f"{side.layout.engine_dir}/models/m"
    step = TreeStep("weights", "weights", side, local, remote, side.layout.models)
    assert step.observe().change is Change.CREATE
    step.apply()
    assert step.observe().change is Change.NONE
    (Path(remote) / "a.txt").write_text("two")
    assert step.observe().change is Change.UPDATE
    step.apply()
    assert (Path(remote) / "a.txt").read_text() == "one"


def test_a_digest_that_cannot_be_taken_is_no_missing_tree(tmp_path: Path) -> None:
    """A host whose disk fails must not have its weights sent over what is there."""

    def python(command: object) -> Result:
        return Result(1, b"", b"OSError: input/output error", 0.0)

    host = FakeTransport("box").on("python3", python)
    side = HostSide(host, HostLayout("/opt/ddops"), "python3")
    step = TreeStep("w", "w", side, tmp_path, "/opt/ddops/models/m", "/opt/ddops/models")
    with pytest.raises(CommandFailed, match="state cannot be read"):
        step.observe()


def test_a_file_is_shown_as_a_diff(side: HostSide) -> None:
    path = f"{side.layout.engine_dir}/x.conf"
    step = FileStep("f", "f", side, path, "a\nb\n", 0o600)
    assert step.observe().change is Change.CREATE
    step.apply()
    assert Path(path).stat().st_mode & 0o777 == 0o600
    Path(path).write_text("a\nc\n")
    proposal = step.observe()
    assert proposal.change is Change.UPDATE
    assert "-c" in proposal.lines
    assert "+b" in proposal.lines


def test_weights_nobody_brings_are_unknown_until_they_are_there(side: HostSide) -> None:
    path = Path(side.layout.models) / "big"
    step = PresentStep("w", "weights", side, str(path), "acme/big")
    assert step.observe().change is Change.UNKNOWN
    with pytest.raises(DdopsError, match="acme/big is not at"):
        step.apply()
    path.mkdir(parents=True)
    assert step.observe().change is Change.NONE


def service(**changes: object) -> Service:
    values: dict[str, object] = {
        "name": "k", "origin": HERE, "model": "acme/m", "model_path": "${engine_dir}/models/m",
        "profile": "p", "hosts": ("here",), **changes,
    }  # fmt: skip
    return Service(**values)  # type: ignore[arg-type]


def test_a_whole_host_with_the_stand_in(tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    host = Host(
        name="here", origin=HERE, ssh="here", engine_dir=str(engine), engine_env="sim",
        supervisor="systemd", python=sys.executable, setup="none",
    )  # fmt: skip
    (tmp_path / "work").mkdir()
    steps = Provision(LocalTransport("here"), host, [service()], lookup, tmp_path / "work").steps()
    plan = make_plan("here", steps)
    assert plan.pending == len(plan.rows)
    assert not engine.exists()  # a plan makes nothing
    rows: list[str] = []
    done = apply_plan(
        plan, steps, report=ListReporter(), stopped=lambda: False,
        journal=lambda step, state: rows.append(f"{step} {state}"),
    )  # fmt: skip
    assert done == len(steps)
    assert make_plan("here", steps).pending == 0
    assert rows[0] == "dirs begin"
    assert '"ddops_simulated": true' in (engine / "models/m/config.json").read_text()
    assert (engine / ".ddops").stat().st_mode & 0o777 == 0o700


def test_environments_are_named_by_what_they_are_built_from(tmp_path: Path) -> None:
    one = env_recipe("sim", lookup, tmp_path / "a")
    assert one.digest == env_recipe("sim", lookup, tmp_path / "b").digest
    assert one.parts("trees") == ["sglang"]
    assert not one.has("engine.lock")
    real = env_recipe("sglang-cpu", lookup, tmp_path / "c")
    assert real.has("engine.lock")
    assert real.digest != one.digest
    assert [n.partition("-")[0] for n in real.parts("trees")] == ["sglang_ddtree"] * 2
    (info,) = (real.folder / "trees").glob("*.dist-info")
    assert "ddtree = sglang_ddtree:register" in (info / "entry_points.txt").read_text()
    assert "sglang_ddtree/plugin.py,sha256=" in (info / "RECORD").read_text()
    gpu = env_recipe("sglang", lookup, tmp_path / "d")
    assert (gpu.engine, gpu.plugin) == (real.engine, real.plugin)
    assert len({gpu.digest, real.digest, one.digest}) == 3
    assert not gpu.has("torch.txt")


def test_the_cuda_lock_pins_its_torch_by_hash(tmp_path: Path) -> None:
    """What pip is told with `--no-deps` is all there is: a requirement without a hash ends it."""
    lines = env_recipe("sglang", lookup, tmp_path).folder.joinpath("engine.lock").read_text()
    pinned = dict(re.findall(r"^([a-z0-9][\w.-]*)==(\S+) \\$", lines, re.MULTILINE))
    assert len(pinned) == len(re.findall(r"^[a-z0-9]", lines, re.MULTILINE))
    hashes = re.findall(r"^[a-z0-9].*\n    --hash=sha256:[0-9a-f]{64}", lines, re.MULTILINE)
    assert len(hashes) == len(pinned)
    assert pinned["sglang"] == SGLANG_VERSION
    assert {"torch", "triton", "sglang-kernel", "flashinfer-python", "nvidia-nccl-cu13"} <= set(
        pinned
    )
