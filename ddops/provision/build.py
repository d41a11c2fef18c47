"""Which steps a host needs, from what the inventory says it is for."""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from ddops.config.files import read_text
from ddops.inventory.model import Host, Service
from ddops.inventory.setup import read_setup
from ddops.layout import HostLayout
from ddops.plan import Step
from ddops.provision.code import CodeStep, EngineCode, engine_code
from ddops.provision.envs import ROUTER, EnvRecipe, env_recipe
from ddops.provision.setup import setup_steps
from ddops.provision.side import HostSide, Query
from ddops.provision.steps import (
    DaemonStep,
    DirsStep,
    EnvStep,
    FileStep,
    PresentStep,
    TreeStep,
)
from ddops.provision.weights import SMALL_BYTES, Folder, WeightsStep, fetched, folder_bytes
from ddops.render import render
from ddops.transport import Transport
from ddops.transport.files import tree_digest

Lookup = Callable[[str], Path]

#: What a stand-in for weights says of itself.
_PLACEHOLDER = '{"ddops_simulated": true, "note": "no weights: a recorded lab host"}\n'


@runtime_checkable
class Asking(Protocol):
    """A step that says beforehand what it will ask, so that one look serves all."""

    def query(self) -> Query: ...


@dataclass(frozen=True, slots=True)
class Provision:
    """Everything that provisioning one host needs. `workdir` is a scratch folder of the caller."""

    transport: Transport
    host: Host
    services: Sequence[Service]
    lookup: Lookup
    workdir: Path
    #: Whether a service's router runs here.
    routes: bool = False

    @property
    def layout(self) -> HostLayout:
        return HostLayout(self.host.engine_dir)

    def recipe(self) -> EnvRecipe:
        return env_recipe(self.host.engine_env, self.lookup, self.workdir)

    def code(self, recipe: EnvRecipe) -> EngineCode:
        return engine_code(recipe, self.lookup)

    def steps(self) -> list[Step]:
        """All steps in order. Pure but for reading local files."""
        layout, side = self.layout, HostSide(self.transport, self.layout, self.host.python)
        state = layout.state
        dirs = (
            (self.host.engine_dir, 0o755), (state, 0o700), (layout.models, 0o755),
            (f"{self.host.engine_dir}/env", 0o755), (f"{state}/inputs", 0o700),
            (f"{state}/services", 0o700), (layout.lib, 0o700), (f"{state}/supervisor", 0o700),
        )  # fmt: skip
        steps: list[Step] = [
            DirsStep("dirs", "folders", side, dirs),
            TreeStep("hostside", "host-side scripts", side, _package_dir("ddops.hostside"),
                     layout.hostside, state),
        ]  # fmt: skip
        steps += setup_steps(side, self.host, read_setup(self.host, self.lookup), self.lookup)
        if self.services or not self.routes:  # a host for a router alone needs no engine
            steps += self._env_steps(side)
        if self.routes:
            steps += self._router_steps(side)
        for service in self.services:
            steps += self._weights(side, service)
        if self.host.supervisor == "process":
            steps += self._supervisor_steps(side)
        side.expect([s.query() for s in steps if isinstance(s, Asking)])
        return steps

    def _env_steps(self, side: HostSide) -> list[Step]:
        recipe, layout = self.recipe(), self.layout
        code = self.code(recipe)
        steps: list[Step] = [
            TreeStep("inputs", "engine environment: inputs", side, recipe.folder,
                     layout.inputs(recipe.digest), layout.state),
            EnvStep("env", f"engine environment ({recipe.kind})", side, recipe,
                    self.host.wheelhouse, self.host.pip_index),
        ]  # fmt: skip
        if code.patched:
            title = f"engine code ({code.engine}, series {code.series.digest[:12]})"
            steps.append(CodeStep("code", title, side, self.host, code))
        return steps

    def _router_steps(self, side: HostSide) -> list[Step]:
        recipe = env_recipe(ROUTER, self.lookup, self.workdir)
        return [
            TreeStep("router-inputs", "router environment: inputs", side, recipe.folder,
                     self.layout.inputs(recipe.digest), self.layout.state),
            EnvStep("router-env", "router environment", side, recipe, self.host.wheelhouse,
                    self.host.pip_index),
        ]  # fmt: skip

    def _weights(self, side: HostSide, service: Service) -> list[Step]:
        steps: list[Step] = []
        for key, what, revision, path, source in (
            ("model_source", service.model, service.revision, service.model_path,
             service.model_source),
            ("draft_source", service.draft, service.draft_revision, service.draft_path,
             service.draft_source),
        ):  # fmt: skip
            if what is None or path is None:
                continue
            remote = path.replace("${engine_dir}", self.host.engine_dir)
            step_id, title = f"weights:{what}", f"weights of {what}"
            if source is not None:
                endpoint = self.host.vars.get("hub")
                pulled = fetched(source, what, revision, key, endpoint)
                steps.append(
                    WeightsStep(step_id, title, side, remote, *pulled)
                    if pulled
                    else self._sent(step_id, title, side, self.lookup(source), remote)
                )
            elif self.host.engine_env == "sim":
                steps.append(FileStep(step_id, f"placeholder for {what}", side,
                                      f"{remote}/config.json", _PLACEHOLDER, 0o644))  # fmt: skip
            else:
                steps.append(PresentStep(step_id, f"weights of {what}", side, remote, what))
        if self.host.engine_env == "sim" and service.golden:
            # The stand-in has no weights: it answers golden prompts from this file.
            steps.append(FileStep(f"golden:{service.name}", "the stand-in's answers", side,
                                  f"{self.layout.models}/golden.json",
                                  read_text(self.lookup(service.golden)),
                                  0o644))  # fmt: skip
        return steps

    def _sent(self, step_id: str, title: str, side: HostSide, folder: Path, remote: str) -> Step:
        """A folder of this machine: a small one in one piece, another one file by file."""
        if folder_bytes(folder) <= SMALL_BYTES:
            return TreeStep(step_id, title, side, folder, remote, self.layout.models)
        want = f"sha256:{tree_digest(folder)}"
        return WeightsStep(step_id, title, side, remote, want, Folder(folder))

    def _supervisor_steps(self, side: HostSide) -> list[Step]:
        layout = self.layout
        conf = render(
            self.lookup, "supervisord.conf.j2", {"socket": layout.socket, "state_dir": layout.state}
        )
        return [
            TreeStep("supervisor", "process supervisor", side, _package_dir("supervisor"),
                     f"{layout.lib}/supervisor", layout.lib),
            FileStep("supervisor.conf", "process supervisor: configuration", side,
                     layout.supervisor_conf, conf),
            DaemonStep("supervisord", "process supervisor: running", side),
        ]  # fmt: skip


def _package_dir(name: str) -> Path:
    """The folder of an installed package of ours or of a dependency."""
    return Path(str(importlib.resources.files(name)))
