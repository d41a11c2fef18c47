"""Commands that need no host: init, config, host list, completion."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ddops.config.settings import names
from ddops.errors import UnreachableError
from tests.guards.source import ROOT
from tests.unit.cli_support import Run, runner


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    return runner(tmp_path, monkeypatch, capfd)


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_init_makes_a_project_that_works(run: Run) -> None:
    done = run("init", "boxes")
    assert (done.code, done.out) == (0, "")
    assert files(Path("boxes")) == [".gitignore", "ddops.toml", "inventory/hosts.toml"]
    assert Path("boxes/inventory/profiles").is_dir()
    for argv in (("config", "show"), ("host", "list"), ("config", "paths")):
        again = run("--project", "boxes", *argv)
        assert again.code == 0, again.err
        assert "warning" not in again.err


def test_init_here(run: Run) -> None:
    assert run("init").code == 0
    assert Path("ddops.toml").is_file()


def test_init_twice_is_refused_and_changes_nothing(run: Run) -> None:
    run("init")
    Path("ddops.toml").write_text("# mine\n", encoding="utf-8")
    done = run("init")
    assert done.code == 2
    assert "ddops.toml is there already" in done.err
    assert Path("ddops.toml").read_text(encoding="utf-8") == "# mine\n"


def test_init_keeps_the_files_that_are_there(run: Run) -> None:
    Path("inventory").mkdir()
    mine = '[hosts.box]\nssh = "box"\n'
    Path("inventory/hosts.toml").write_text(mine, encoding="utf-8")
    Path(".gitignore").write_text("*.log\n", encoding="utf-8")
    done = run("init")
    assert done.code == 0
    assert "kept inventory/hosts.toml" in done.err
    assert Path("inventory/hosts.toml").read_text(encoding="utf-8") == mine
    assert Path(".gitignore").read_text(encoding="utf-8") == "*.log\n"
    assert "box" in run("host", "list").out


def test_every_key_that_init_shows_commented_out_exists(run: Run) -> None:
    """What a newcomer uncomments must be right."""
    import re

    run("init")
    for name in ("ddops.toml", "inventory/hosts.toml"):
        path = Path(name)
        text = re.sub(r"^# (?=\[|\w+ +=|\w+ = )", "", path.read_text("utf-8"), flags=re.MULTILINE)
        path.write_text(text.replace("SHA256:...", "SHA256:" + "A" * 43), encoding="utf-8")
    done = run("host", "list")
    assert done.code == 0, done.err
    assert "box1" in done.out
    assert run("config", "show").code == 0


def test_show_says_where_each_value_came_from(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    user = tmp_path / "home" / ".config" / "ddops" / "config.toml"
    user.parent.mkdir(parents=True)
    user.write_text("[settings]\nparallel = 3\nkeep_releases = 4\n", encoding="utf-8")
    Path("ddops.toml").write_text("[settings]\nkeep_releases = 7\n", encoding="utf-8")
    monkeypatch.setenv("DDOPS_CONNECTS", "2")
    monkeypatch.setenv("COLUMNS", "400")
    rows = {
        line.split()[0]: line.split(None, 2)[1:]
        for line in run("config", "show", "--origin").out.splitlines()[1:]
    }
    assert rows["connects"] == ["2", "env DDOPS_CONNECTS"]
    assert rows["keep_releases"] == ["7", "project ddops.toml:2"]
    assert rows["parallel"][0] == "3"
    assert rows["parallel"][1].startswith("user ")
    assert rows["load_budget_s"][1] == "default"
    assert set(rows) == set(names())


def test_show_as_json(run: Run) -> None:
    done = run("config", "show", "--json")
    assert done.document["schema"] == "ddops.config/1"
    assert done.document["data"]["parallel"] == 10
    origin = run("config", "show", "--json", "--origin").document["data"]
    assert origin["parallel"] == {"value": 10, "source": "default", "at": ""}


def test_a_setting_that_is_wrong_names_its_place(run: Run) -> None:
    Path("ddops.toml").write_text("[settings]\nparalel = 3\n", encoding="utf-8")
    done = run("config", "show")
    assert done.code == 2
    assert "ddops.toml:2: settings.paralel: unknown key `paralel`" in done.err
    assert "nearest is `parallel`" in done.err


def test_a_variable_that_nothing_reads_is_a_warning(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDOPS_PARALEL", "3")
    done = run("config", "show")
    assert done.code == 0
    assert "DDOPS_PARALLEL" in done.err


@pytest.mark.parametrize("word", ["hosts", "hosts.toml", "inventory/hosts.toml"])
def test_one_schema_by_any_of_its_names(run: Run, word: str) -> None:
    assert run("config", "schema", word).document["title"] == "inventory/hosts.toml"


def test_all_schemas(run: Run) -> None:
    assert "ddops.toml" in run("config", "schema").document
    steps = run("config", "schema", "runbooks").document["$defs"]["StepTable"]
    assert {"do", "skip_if", "verify"} <= set(steps["properties"])
    wrong = run("config", "schema", "inventory")
    assert wrong.code == 2
    assert "one of: " in wrong.err


def test_paths(run: Run) -> None:
    done = run("config", "paths", "--json")
    data = done.document["data"]
    assert data["project"].endswith("here  (no ddops.toml)")
    assert Path(data["shipped defaults"]).is_dir()
    assert not Path(".ddops").exists()
    assert run("config", "paths").out.startswith("WHAT ")


def test_host_list_as_json(run: Run) -> None:
    Path("inventory").mkdir()
    Path("inventory/hosts.toml").write_text(
        '[hosts.box]\nssh = "box.example"\nclass = "pcie"\ngroups = ["a", "b"]\n', encoding="utf-8"
    )
    document = run("host", "list", "--json").document
    assert document["schema"] == "ddops.hosts/1"
    rows = {row["name"]: row for row in document["data"]}
    assert rows["box"]["ssh"] == "box.example"
    assert rows["box"]["class"] == "pcie"
    assert rows["box"]["origin"] == "project"
    assert rows["b300"]["origin"] == "shipped"
    assert rows["b300"]["services"] == "k26-b300"


def test_an_unknown_host_is_named_and_the_nearest_too(run: Run) -> None:
    done = run("check", "b30")
    assert done.code == 2
    assert "unknown target `b30`, nearest is `b300`" in done.err


def test_without_a_terminal_nothing_is_changed_by_silence(run: Run) -> None:
    Path("inventory").mkdir()
    Path("inventory/hosts.toml").write_text(
        '[hosts.b300]\nssh = "b300.invalid"\nengine_env = "sim"\nsupervisor = "process"\n',
        encoding="utf-8",
    )
    done = run("deploy", "b300")
    assert done.code == 2
    assert "say --yes" in done.err


def test_a_project_of_no_hosts_has_no_status(run: Run) -> None:
    done = run("status")
    assert done.code == 2
    assert "next: " in done.err


class Dead:
    """A host that nobody reaches."""

    host = "box1"

    def run(self, *_words: object, **_more: object) -> None:
        raise UnreachableError("box1: no answer")

    def close(self) -> None:
        """Nothing is open."""


def test_a_host_for_a_router_alone_has_a_status_and_is_unknown_when_it_is_silent(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("inventory/services").mkdir(parents=True)
    Path("inventory/hosts.toml").write_text(
        '[hosts.box1]\nssh = "a.invalid"\n[hosts.box2]\nssh = "b.invalid"\n', encoding="utf-8"
    )
    tiny = (ROOT / "inventory/services/tiny.toml").read_text(encoding="utf-8")
    kept = "\n".join(x for x in tiny.splitlines() if not x.startswith(("hosts =", "listen =")))
    Path("inventory/services/chat.toml").write_text(
        'hosts = ["box2"]\nserved_model_name = "chat"\nlisten = "0.0.0.0"\napi_key = "env:K"\n'
        f'{kept}\n[router]\nhost = "box1"\n', encoding="utf-8"
    )  # fmt: skip
    monkeypatch.setattr("ddops.cli.app.App.open_transport", lambda *_more: Dead())
    done = run("status", "box1")
    assert done.code == 3, done.err
    head, _, replica, *_ = done.out.splitlines()
    assert head.startswith("chat.router on box1 at 127.0.0.1:30080 is UNKNOWN: ")
    assert replica.split()[:2] == ["box2", "?"]
    assert "hosts failed" not in done.err, "one host, one error"
    (row,) = json.loads(run("status", "box1", "--json").out)["data"]
    assert (row["router_of"], row["state"], row["replicas"][0]["health"]) == (
        "chat",
        "unknown",
        "?",
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_valid(run: Run, shell: str) -> None:
    done = run("completion", shell)
    assert (done.code, done.err) == (0, "")
    assert "_DDOPS_COMPLETE" in done.out
    found = shutil.which(shell)
    if found is not None:
        subprocess.run([found, "-n"], input=done.out, text=True, check=True, timeout=30)


def test_completion_of_a_shell_nobody_has(run: Run) -> None:
    assert run("completion", "tcsh").code == 2


def test_a_deploy_of_a_gpu_host_can_be_read_without_the_host(run: Run) -> None:
    """The release is named from local files; what is said of it fits a terminal."""
    Path("inventory").mkdir()
    Path("ssh").write_text("Host nobody\n  HostName 127.0.0.1\n  Port 1\n", encoding="utf-8")
    host = 'ssh = "nobody"\nssh_config = "ssh"\nclass = "nvlink"\ngroups = ["hgx-b300"]\n'
    Path("inventory/hosts.toml").write_text(f"[hosts.b300]\n{host}", encoding="utf-8")
    Path("ddops.toml").touch()
    done = run("deploy", "b300", "--dry-run")
    assert done.code == 0, done.err
    assert "\\n" not in done.out
    facts = [
        line for line in done.out.splitlines() if re.match(r"  (evidence|release|host) ", line)
    ]
    assert len(facts) == 3
    assert re.fullmatch(r"  release    [0-9a-f]{12}", facts[1])
    assert "UNKNOWN: b300: cannot connect" in facts[2]
    assert max(map(len, done.out.split("  command\n")[0].splitlines())) <= 80
