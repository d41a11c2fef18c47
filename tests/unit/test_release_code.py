"""What a release says of its code: series, plugin, and where the engine finds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddops.deploy.code import judge_tree, release_code
from ddops.deploy.release import Code, build_release
from ddops.inventory.model import Origin, Profile, Service
from ddops.layout import HostLayout
from ddops.provision import EnvRecipe, engine_code, env_recipe
from ddops.tree.series import Series, parse_patch, read_series

ROOT = Path(__file__).resolve().parents[2]
HERE = Origin("project", Path("x.toml"))
SERVICE = Service(name="k", origin=HERE, model="m", profile="p", hosts=("h",))
PATCH = b"""From 0 Mon Sep 17 00:00:00 2001
Subject: [PATCH] one

---
diff --git a/sglang/a.py b/sglang/a.py
--- a/sglang/a.py
+++ b/sglang/a.py
@@ -1 +1 @@
-x
+y
"""


def lookup(name: str) -> Path:
    return ROOT / name


@pytest.fixture
def recipe(tmp_path: Path) -> EnvRecipe:
    return env_recipe("sglang-cpu", lookup, tmp_path)


def profile(**env: str) -> Profile:
    return Profile(name="p", origin=HERE, env=env)


def test_the_series_is_that_of_the_engine_in_the_lock(recipe: EnvRecipe, tmp_path: Path) -> None:
    assert recipe.engine == "sglang-0.5.23"
    code = engine_code(recipe, lookup)
    assert code.series.digest == read_series("sglang-0.5.23", lookup).digest != ""
    assert len(code.plugin) == 64
    stand_in = env_recipe("sim", lookup, tmp_path / "sim")
    assert (stand_in.engine, stand_in.plugin) == ("sim-0.5.23", "")
    assert not engine_code(stand_in, lookup).patched


def test_a_patch_makes_another_release_and_another_folder(recipe: EnvRecipe) -> None:
    code = release_code(SERVICE, profile(), recipe, lookup)
    one = build_release(SERVICE, profile(), recipe.digest, lookup, code)
    where = HostLayout("${engine_dir}").code(code.digest)
    assert dict(one.launch.env)["PYTHONPATH"] == where
    assert one.content["series"] == code.series
    assert one.content["plugin"] == recipe.plugin
    plain = build_release(SERVICE, profile(), recipe.digest, lookup)
    assert "PYTHONPATH" not in dict(plain.launch.env)
    assert plain.digest != one.digest
    other = Code(code.digest, "0" * 64, code.plugin)
    assert build_release(SERVICE, profile(), recipe.digest, lookup, other).digest != one.digest
    plug = Code(code.digest, code.series, "0" * 64)
    assert build_release(SERVICE, profile(), recipe.digest, lookup, plug).digest != one.digest


def test_a_path_of_the_profile_stays_behind_the_code(recipe: EnvRecipe) -> None:
    mine = profile(PYTHONPATH="/mine")
    code = release_code(SERVICE, mine, recipe, lookup)
    release = build_release(SERVICE, mine, recipe.digest, lookup, code)
    assert dict(release.launch.env)["PYTHONPATH"].split(":")[1:] == ["/mine"]


@pytest.mark.parametrize("path", ["${engine_dir}/tree", "${engine_dir}/tree/python"])
def test_a_release_from_the_managed_tree_names_its_series(recipe: EnvRecipe, path: str) -> None:
    mine = profile(PYTHONPATH=path)
    code = release_code(SERVICE, mine, recipe, lookup)
    assert (code.digest, code.series) == ("", read_series("sglang-0.5.23", lookup).digest)
    release = build_release(SERVICE, mine, recipe.digest, lookup, code)
    assert dict(release.launch.env)["PYTHONPATH"] == path
    near = profile(PYTHONPATH="${engine_dir}/treehouse")
    assert release_code(SERVICE, near, recipe, lookup).digest != ""


def seen(**changes: object) -> dict[str, object]:
    return {"applied": ["a.patch"], "superseded": [], "unfinished": False, "dirty": [],
            "pure": True, **changes}  # fmt: skip


def test_a_tree_is_its_upstream_and_series_and_no_more() -> None:
    series = Series("e", (parse_patch("a.patch", PATCH),))
    assert judge_tree(seen(), series) == []
    assert judge_tree(seen(applied=[], superseded=["a.patch"]), series) == []
    for changes, words in (
        ({"applied": []}, "a.patch is not applied: ddops tree apply"),
        ({"dirty": ["x.py"]}, "edited by hand: x.py: ddops tree export"),
        ({"unfinished": True}, "a change of it was cut short: ddops tree apply"),
        ({"pure": False}, "it has commits beyond the series: ddops tree export"),
    ):
        assert judge_tree(seen(**changes), series) == [words]
