"""The project and its settings: precedence, origin, paths that may not lead out."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ddops.config import data_root, find_project, load_settings, lookup, paths
from ddops.config.project import Project
from ddops.errors import ConfigError, UsageError


@pytest.fixture
def project(tmp_path: Path) -> Project:
    root = tmp_path / "proj"
    root.mkdir()
    (root / "ddops.toml").write_text("")
    return find_project(root)


def env_for(project: Project, **more: str) -> dict[str, str]:
    return {"HOME": str(project.root.parent / "home"), **more}


def test_the_project_is_found_from_below(project: Project) -> None:
    below = project.root / "a" / "b"
    below.mkdir(parents=True)
    assert find_project(below) == Project(project.root)
    assert project.state == project.root / ".ddops"
    assert project.ledger == project.root / ".ddops" / "ledger.db"


def test_without_a_file_the_folder_itself_is_the_project(tmp_path: Path) -> None:
    assert find_project(tmp_path) == Project(tmp_path.resolve(), explicit=False)


def test_a_start_that_is_no_folder_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("file", "loop", "absent"):
        with pytest.raises(UsageError):
            find_project(tmp_path / name)


def test_a_planted_project_in_a_shared_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    (shared / "mine").mkdir(parents=True)
    (shared / "ddops.toml").write_text("")
    shared.chmod(stat.S_ISVTX | 0o777)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    if (shared / "ddops.toml").stat().st_uid == 0:
        os.chown(shared / "ddops.toml", 4243, -1)
    with pytest.raises(ConfigError, match="belongs to another user"):
        find_project(shared / "mine")


def test_defaults_are_looked_up_project_first(project: Project) -> None:
    shipped = lookup(project, "inventory/hosts.toml")
    assert shipped == data_root() / "inventory/hosts.toml"
    own = project.root / "inventory" / "hosts.toml"
    own.parent.mkdir()
    own.write_text("")
    assert lookup(project, "inventory/hosts.toml") == own
    assert lookup(project, "inventory") == own.parent


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "templates/../../x", "a\0b"])
def test_a_lookup_never_leads_out(project: Project, name: str) -> None:
    with pytest.raises(UsageError, match="not a path inside the project"):
        lookup(project, name)


def test_a_link_out_of_the_project_is_refused(project: Project, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("")
    (project.root / "x").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is a link out of"):
        lookup(project, "x")


def test_what_nobody_has_is_said(project: Project) -> None:
    with pytest.raises(UsageError, match="neither the project nor the package has nope"):
        lookup(project, "nope")


def test_every_source_beats_the_one_below_it(project: Project) -> None:
    user = project.root.parent / "home" / ".config" / "ddops" / "config.toml"
    user.parent.mkdir(parents=True)
    user.write_text(
        "[settings]\nparallel = 2\nconnects = 2\nkeep_releases = 2\nload_budget_s = 77\n"
    )
    project.file.write_text("[settings]\nparallel = 3\nconnects = 3\nkeep_releases = 3\n")
    env = env_for(project, DDOPS_PARALLEL="4", DDOPS_CONNECTS="4")
    s = load_settings(project, env=env, flags={"parallel": 5, "load_budget_s": None})
    assert (s.parallel, s.connects, s.keep_releases, s.load_budget_s) == (5, 4, 3, 77)
    assert s.connect_timeout_s == 10
    shown = s.show(origin=True)
    assert shown["parallel"] == {"value": 5, "source": "flag", "at": "--parallel"}
    assert shown["connects"] == {"value": 4, "source": "env", "at": "DDOPS_CONNECTS"}
    assert shown["keep_releases"] == {"value": 3, "source": "project", "at": "ddops.toml:4"}
    assert shown["load_budget_s"] == {"value": 77, "source": "user", "at": f"{user}:5"}
    assert shown["ready_quiet_s"] == {"value": 2.0, "source": "default", "at": ""}
    assert s.show()["parallel"] == 5


def test_the_faults_of_all_sources_are_told_at_once(project: Project) -> None:
    project.file.write_text("[settings]\nparalel = 3\nconnects = 'a'\n\n[settinks]\n")
    env = env_for(project, DDOPS_READY_QUIET_S="-1", DDOPS_PARALLEL="many")
    with pytest.raises(ConfigError) as caught:
        load_settings(project, env=env, flags={"keep_releases": 0})
    assert caught.value.lines() == [
        "command line: --keep-releases: expected a whole number of at least 1, got 0",
        "ddops.toml:2: settings.paralel: unknown key `paralel`, nearest is `parallel`",
        "ddops.toml:3: settings.connects: expected a whole number of at least 1, got text",
        "ddops.toml:5: settinks: unknown key `settinks`, nearest is `settings`",
        'environment: DDOPS_PARALLEL: expected a whole number of at least 1, got "many"',
        'environment: DDOPS_READY_QUIET_S: expected a number of at least 0, got -1',
        "next: ddops config schema   # prints what each file may hold",
    ]


def test_an_unknown_variable_is_a_warning(project: Project) -> None:
    env = env_for(project, DDOPS_PARALEL="3", DDOPS_DEBUG="1", DDOPS_ZZZ="", OTHER="1")
    assert load_settings(project, env=env).warnings == (
        "unknown variable `DDOPS_PARALEL`, nearest is `DDOPS_PARALLEL`; it has no effect",
        "unknown variable `DDOPS_ZZZ`; it has no effect",
    )


def test_an_empty_variable_is_not_set(project: Project) -> None:
    settings = load_settings(project, env=env_for(project, DDOPS_PARALLEL=""))
    assert settings.origins["parallel"].source == "default"


def test_the_ledger_starts_from_who_names_it(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    env = env_for(project)
    assert load_settings(project, env=env).ledger_path == project.root / ".ddops" / "ledger.db"
    project.file.write_text("[settings]\nledger = 'l/a.db'\n")
    assert load_settings(project, env=env).ledger_path == project.root / "l" / "a.db"
    env["DDOPS_LEDGER"] = "b.db"
    assert load_settings(project, env=env).ledger_path == tmp_path / "b.db"


def test_times_take_fractions_and_are_above_zero(project: Project) -> None:
    env = env_for(project, DDOPS_CONNECT_TIMEOUT_S="0.5")
    assert load_settings(project, env=env).connect_timeout_s == 0.5
    for wrong in ("0", "-1", "nan", "inf", "1h"):
        with pytest.raises(ConfigError, match="expected a number above 0"):
            load_settings(project, env=env_for(project, DDOPS_CONNECT_TIMEOUT_S=wrong))


def test_folders_follow_xdg() -> None:
    env = {"HOME": "/h", "XDG_CACHE_HOME": "/c", "XDG_DATA_HOME": "relative"}
    found = paths(env)
    assert found.config_file == Path("/h/.config/ddops/config.toml")
    assert found.cache == Path("/c/ddops")
    assert found.data == Path("/h/.local/share/ddops")
    assert found.runtime is None
    assert paths({**env, "XDG_RUNTIME_DIR": "/r"}).runtime == Path("/r/ddops")
