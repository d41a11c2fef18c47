"""Which file a runbook's name means."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddops.config import find_project
from ddops.errors import UsageError
from ddops.runbook.find import find_runbook, runbook_names
from tests.unit.runbook.support import HEAD

MINE = HEAD + '[[steps]]\nid = "a"\ncontent = "c"\ndo = { step = "prompt", ask = "mine" }\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "here/runbooks").mkdir(parents=True)
    (tmp_path / "here/runbooks/new-host.toml").write_text(MINE)
    return tmp_path / "here"


def test_the_projects_own_stands_in_for_a_shipped_one(folder: Path) -> None:
    (folder / "ddops.toml").write_text("")
    project = find_project(folder)
    assert runbook_names(project)["new-host"] == "project"
    assert runbook_names(project)["restore-drill"] == "shipped"
    assert find_runbook(project, "new-host").source == MINE


def test_a_folder_that_is_no_project_has_none(folder: Path) -> None:
    project = find_project(folder)
    assert runbook_names(project)["new-host"] == "shipped"
    assert find_runbook(project, "new-host").source != MINE


@pytest.mark.parametrize("name", ["../x", "New", "", "new-host.toml", "a" * 100])
def test_what_is_no_name_is_none(folder: Path, name: str) -> None:
    with pytest.raises(UsageError):
        find_runbook(find_project(folder), name)


def test_a_link_out_of_the_project_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "ddops.toml").write_text("")
    (tmp_path / "out.toml").write_text(MINE)
    (folder / "runbooks/out.toml").symlink_to(tmp_path / "out.toml")
    with pytest.raises(UsageError, match="link out of"):
        find_runbook(find_project(folder), "out")
