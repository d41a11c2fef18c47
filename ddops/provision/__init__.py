"""Preparing a host: typed steps, a plan that is shown, and an apply that does exactly that."""

from ddops.provision.build import Provision
from ddops.provision.code import EngineCode, edits, engine_code
from ddops.provision.envs import EnvRecipe, env_recipe
from ddops.provision.setup import setup_manifest, undo_setup
from ddops.provision.side import HostSide

__all__ = [
    "EngineCode",
    "EnvRecipe",
    "HostSide",
    "Provision",
    "edits",
    "engine_code",
    "env_recipe",
    "setup_manifest",
    "undo_setup",
]
