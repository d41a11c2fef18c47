"""A plan that was kept is applied as it is, or refused: never another one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.lab.harness import Project


@pytest.fixture
def bare(make_project: object) -> Project:
    project: Project = make_project("plan")  # type: ignore[operator]
    project.ok("lab", "up", "--engine", "sim")
    return project


def test_a_kept_plan_is_done_exactly_or_not_at_all(bare: Project) -> None:
    kept = bare.root / "plan.json"
    bare.ok("plan", "lab", "--out", str(kept))
    assert json.loads(kept.read_text())["data"][0]["pending"] > 3
    assert bare.run("plan", "lab", "--exit-code").rc == 8
    engine_dir = Path(bare.host("lab1").layout.engine_dir)
    (engine_dir / "models").mkdir(parents=True)
    moved = bare.run("provision", "--plan", str(kept))
    assert moved.rc == 4, moved
    assert "moved on since the plan was made" in moved.err
    assert "no longer as planned:" in moved.err
    assert not (engine_dir / "env").exists()
    (engine_dir / "models").rmdir()
    assert "steps done" in bare.ok("provision", "--plan", str(kept)).err
    again = bare.run("provision", "--plan", str(kept))
    assert again.rc == 4, "what it would do is done"
    assert bare.run("plan", "lab", "--exit-code").rc == 0


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "ddops.plan/1"}', "nul\0"])
def test_what_is_no_plan(lab: Project, text: str, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text(text)
    assert lab.run("provision", "--plan", str(file)).rc == 2
    assert lab.run("provision", "--plan", str(tmp_path / "none")).rc == 2
    assert lab.run("provision", "lab", "--plan", str(file)).rc == 2
