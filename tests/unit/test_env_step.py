"""What provision proposes for an environment, by what was seen of it.

To see it fail: let `observe` of EnvStep in ddops/provision/steps.py take UNKNOWN for a reason to
build, or a tree that is about to be laid for a missing one.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ddops.layout import HostLayout
from ddops.plan import Change
from ddops.provision.steps import EnvStep

LAYOUT = HostLayout("/opt/e")
TREE = "lib/python3.11/site-packages/sglang"


def step(seen: object, laid: str = "") -> EnvStep:
    def state(*, envs: list[str]) -> dict[str, dict[str, object]]:
        return {"envs": dict.fromkeys(envs, seen)}

    side: Any = SimpleNamespace(
        layout=LAYOUT, state=state, transport=SimpleNamespace(host="box"), python="python3"
    )
    recipe: Any = SimpleNamespace(digest="abc", kind="cuda")
    return EnvStep("env", "engine environment", side, recipe, None, None, laid)


def env(digest: str | None = "abc", **more: list[str]) -> dict[str, object]:
    return {"digest": digest, "wrong": [], "unknown": [], **more}


@pytest.mark.parametrize(
    ("seen", "change", "words"),
    [
        (None, Change.CREATE, "build /opt/e/env/abc (cuda)"),
        (env(), Change.NONE, ""),
        (env("old"), Change.UPDATE, "it was built of old"),
        (env(wrong=["lib is missing"]), Change.UPDATE, "lib is missing"),
        (
            env(wrong=["lib is missing"], unknown=["x"]),
            Change.UPDATE,
            "an engine that runs from it",
        ),
        (env(unknown=["bin/python did not answer"]), Change.UNKNOWN, "bin/python did not answer"),
        (env(None, unknown=["env.json: stale"]), Change.UNKNOWN, "env.json: stale"),
    ],
)
def test_what_is_missing_is_built_and_what_is_not_known_is_left(
    seen: object, change: Change, words: str
) -> None:
    found = step(seen).observe()
    assert found.change is change
    assert words in "\n".join(found.lines)


def test_a_tree_that_is_about_to_be_laid_is_not_missing() -> None:
    """A restore would build eleven gigabytes for the folder that it brings itself."""
    seen = env(wrong=[f"{TREE} is missing"])
    laid = f"{LAYOUT.env('abc')}/{TREE}"
    assert step(seen).observe().change is Change.UPDATE
    assert step(seen, laid).observe().change is Change.NONE
    more = env(wrong=[f"{TREE} is missing", "bin is missing"])
    assert step(more, laid).observe().change is Change.UPDATE
