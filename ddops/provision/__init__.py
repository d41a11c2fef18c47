"""Preparing a host: typed steps, a plan that is shown, and an apply that does exactly that."""

from ddops.provision.build import Provision
from ddops.provision.envs import EnvRecipe, env_recipe

__all__ = ["EnvRecipe", "Provision", "env_recipe"]
