"""What a lab is made of, and where it lies. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ddops.config.files import parse_json
from ddops.errors import UsageError

#: What a lab host can pretend to be; only `cpu` runs a real engine.
GPU_KINDS = ("cpu", "pcie", "b300")
ENGINES = ("sglang-cpu", "sim")
#: Those of `--systemd` boot a whole system each.
MAX_HOSTS, MAX_BOOTED = 256, 64


@dataclass(frozen=True, slots=True)
class LabSpec:
    """`hosts` hosts of one kind. `engine` is what provision builds on them.

    `systemd` hosts boot a system of their own; `wheelhouse` is a folder that they see, read-only.
    With `slurm` there is one host, which submits jobs to so many nodes.
    """

    hosts: int = 1
    gpu: str = "cpu"
    engine: str = "sglang-cpu"
    systemd: bool = False
    wheelhouse: str | None = None
    slurm: bool = False

    def __post_init__(self) -> None:
        most = MAX_BOOTED if self.systemd else MAX_HOSTS
        if not 1 <= self.hosts <= most:
            raise UsageError(
                f"a lab has 1 to {most} hosts, not {self.hosts}",
                next="ddops lab up --hosts 4",
            )
        if self.gpu != "cpu" and self.engine != "sim":
            raise UsageError(
                f"a recorded {self.gpu} host has no GPU behind it and runs no real engine",
                next=f"ddops lab up --gpu {self.gpu} --engine sim",
            )

        if self.systemd and (self.gpu != "cpu" or self.engine != "sim"):
            raise UsageError(
                "hosts that boot systemd run the stand-in engine, and no recorded GPU",
                next="ddops lab up --systemd",
            )
        if self.slurm and (self.gpu != "cpu" or self.engine != "sim" or self.systemd):
            raise UsageError(
                "a Slurm lab runs the stand-in engine, and no recorded GPU",
                next="ddops lab up --slurm",
            )
        if self.wheelhouse is not None and not self.systemd:
            raise UsageError(
                "a wheelhouse is mounted on hosts that boot; others see the machine's own folders",
                next="set `wheelhouse` of the host in inventory/hosts.toml",
            )

    def names(self) -> list[str]:
        """Host names: `lab1`, `lab2`, ..; a recorded host bears the name of its kind."""
        if self.slurm:
            return ["slurm"]
        if self.gpu == "cpu":
            return [f"lab{i}" for i in range(1, self.hosts + 1)]
        return [self.gpu if i == 1 else f"{self.gpu}-{i}" for i in range(1, self.hosts + 1)]


@dataclass(frozen=True, slots=True)
class LabHost:
    """One running host: its loopback address and the ports that were free."""

    name: str
    address: str
    ssh_port: int
    service_port: int


@dataclass(frozen=True, slots=True)
class LabPaths:
    """Everything of a lab lies below one folder, so that taking it down is removing that."""

    dir: Path

    @property
    def state(self) -> Path:
        return self.dir / "lab.json"

    @property
    def inventory(self) -> Path:
        return self.dir / "inventory"

    @property
    def ssh_config(self) -> Path:
        return self.dir / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        return self.dir / "known_hosts"

    @property
    def key(self) -> Path:
        return self.dir / "id_ed25519"

    @property
    def backup(self) -> Path:
        """The lab's own `[backup]`."""
        return self.dir / "backup.toml"

    def host(self, name: str) -> Path:
        return self.dir / "hosts" / name

    def engine_dir(self, name: str) -> Path:
        return self.host(name) / "engine"


@dataclass(frozen=True, slots=True)
class LabState:
    """What `lab.json` holds. `made` are paths outside the lab's folder to remove with it."""

    spec: LabSpec
    hosts: tuple[LabHost, ...]
    ready: bool
    made: tuple[str, ...] = ()
    #: Where the lab's snapshots go; no host of the inventory.
    backup: LabHost | None = None

    @property
    def all_hosts(self) -> tuple[LabHost, ...]:
        return (*self.hosts, self.backup) if self.backup else self.hosts

    def dump(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def load(text: str) -> LabState:
        raw = parse_json(text)
        return LabState(
            LabSpec(**raw["spec"]),
            tuple(LabHost(**h) for h in raw["hosts"]),
            bool(raw["ready"]),
            tuple(raw["made"]),
            LabHost(**raw["backup"]) if raw.get("backup") else None,
        )
