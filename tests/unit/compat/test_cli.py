"""`ddops check` and `ddops probe`: what is shown, what is refused, what a proof asks of a host.

To see it fail: let `_refusal` in ddops/cli/check.py return None.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddops.cli import root as root_module
from ddops.cli.app import App
from ddops.compat import beside
from ddops.hostside import source
from ddops.transport.fake import FakeTransport
from tests.unit.compat import hosts

Drive = Callable[..., int]
HOSTS = """\
[hosts.pcie]
ssh = "pcie"
class = "pcie"
[hosts.b300]
ssh = "b300"
class = "nvlink"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "inventory").mkdir(parents=True)
    (root / "ddops.toml").write_text("")
    (root / "inventory/hosts.toml").write_text(HOSTS)
    return root


@pytest.fixture
def drive(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drive:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *argv: root_module.run(["--project", str(project), *argv])


def keep(path: Path, kind: str, **changes: Any) -> str:
    path.write_text(json.dumps(hosts.changed(hosts.host(kind), changes)))
    return str(path)


def test_kept_facts_are_judged_with_no_host_asked(
    drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = keep(tmp_path / "f.json", "b300")
    assert drive("check", "b300", "--facts", file, "--all") == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == ["SEVERITY", "VERDICT", "CHECK", "SEEN", "MEND"]
    severities = [line.split()[1] for line in out.splitlines()[1:] if line.startswith("b300  ")]
    order = ["blocker", "error", "warning", "information"]
    shown = [s for s in severities if s in order]
    assert shown == sorted(shown, key=order.index)
    assert "simulated" in out


def test_a_failed_blocker_refuses(
    drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = keep(tmp_path / "f.json", "b300", **{"commands|fm_unit|out": "ActiveState=failed"})
    assert drive("check", "b300", "--facts", file, "--json") == 4
    rows = json.loads(capsys.readouterr().out)["data"]["b300"]
    bad = {r["check"]: r for r in rows if r["refuses"]}
    assert set(bad) == {"FAB-02"}
    assert bad["FAB-02"]["severity"] == "blocker"
    assert bad["FAB-02"]["mend"]


def test_a_warning_does_not_refuse(drive: Drive, tmp_path: Path) -> None:
    file = keep(tmp_path / "f.json", "pcie", **{"probes|environ|NCCL_P2P_LEVEL": "sys"})
    assert drive("check", "pcie", "--facts", file) == 0


@pytest.mark.parametrize("service", ["k26-b300"])
def test_a_service_s_launch_is_judged(
    drive: Drive, tmp_path: Path, service: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = keep(tmp_path / "f.json", "b300")
    assert drive("check", "b300", "--facts", file, "--for", service, "--json") == 0
    rows = {r["check"]: r for r in json.loads(capsys.readouterr().out)["data"]["b300"]}
    assert rows["RUN-01"]["verdict"] == "PASS"
    assert rows["RUN-06"]["verdict"] == "PASS"
    other = keep(tmp_path / "g.json", "pcie")
    assert drive("check", "pcie", "--facts", other, "--for", "nobody") == 2


def test_explain(drive: Drive, capsys: pytest.CaptureFixture[str]) -> None:
    assert drive("check", "--explain", "py-06") == 0
    out = capsys.readouterr().out
    assert "FBGEMM/issues/6151" in out
    assert "passes when:" in out
    assert drive("check", "--explain", "PY-99") == 2
    assert drive("check") == 2


@pytest.mark.parametrize("check", [c.id for c in beside()])
def test_a_row_of_a_router_is_explained_and_never_waived(
    drive: Drive, project: Path, capsys: pytest.CaptureFixture[str], check: str
) -> None:
    assert drive("check", "--explain", check.lower()) == 0
    out = capsys.readouterr().out
    assert f"check:        {check}\n" in out
    assert "passes when:" in out
    wish = ("--waive", check, "--reason", "x", "--until", "2099-01-01")
    assert drive("check", "b300", *wish) == 2
    err = capsys.readouterr().err
    assert f"{check} cannot be waived" in err
    assert "no deploy waits for it" in err
    assert not (project / "inventory/waivers.toml").exists()


def test_two_hosts_are_compared(
    drive: Drive, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def transport(_self: App, host: Any) -> FakeTransport:
        made = FakeTransport(host.name)
        made.on(lambda c: c.argv[0] == "python3", lambda _c: json.dumps(hosts.host(host.name)))
        return made

    monkeypatch.setattr(App, "transport", transport)
    assert drive("check", "pcie", "b300", "--diff") == 0
    out = capsys.readouterr().out
    assert "GPU-LIST" in out
    assert "HOST-DISK" not in out
    assert drive("check", "pcie", "--diff") == 2


def test_a_proof_is_run_once_for_a_chain(
    drive: Drive, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = hosts.changed(hosts.host("pcie"), {"simulated": False, "probes|proved": "__null__"})
    ran: list[str] = []

    def answer(command: Any) -> str:
        if command.stdin == source("prove").encode():
            digest = command.argv[command.argv.index("--digest") + 1]
            ran.append(digest)
            results = {"p2p": {"ok": False, "timed_out": True}}
            raw["probes"]["proved"] = {"digest": digest, "results": results}
            return json.dumps(raw["probes"]["proved"])
        return json.dumps(raw)

    box = FakeTransport("pcie")
    box.on(lambda c: c.argv[0] == "python3", answer)
    monkeypatch.setattr(App, "transport", lambda _self, _host: box)
    assert drive("check", "pcie", "--prove", "--json") == 4
    rows = {r["check"]: r for r in json.loads(capsys.readouterr().out)["data"]["pcie"]}
    assert rows["P2P-02"]["verdict"] == "FAIL"
    assert drive("check", "pcie", "--prove") == 4
    assert len(ran) == 1


def test_facts_are_kept_in_a_file(
    drive: Drive, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    box = FakeTransport("pcie")
    box.on(lambda c: c.argv[0] == "python3", lambda _c: json.dumps(hosts.host("pcie")))
    monkeypatch.setattr(App, "transport", lambda _self, _host: box)
    file = tmp_path / "kept.json"
    assert drive("probe", "pcie", "--save", str(file)) == 0
    assert drive("check", "pcie", "--facts", str(file)) == 0
    assert drive("probe", "pcie", "b300", "--save", str(file)) == 2
    assert len(box.calls) == 1, "one round trip"


def bad_power(drive: Drive, tmp_path: Path) -> str:
    file = keep(tmp_path / "f.json", "b300", **{"commands|fm_unit|out": "ActiveState=failed"})
    assert drive("check", "b300", "--facts", file) == 4
    return file


def test_a_waiver_is_written_where_people_read_it_and_holds(
    drive: Drive, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = bad_power(drive, tmp_path)
    mine = project / "inventory/waivers.toml"
    mine.write_text('# ours\n[[waiver]]\ncheck = "DRV-01"\non = ["pcie"]\nreason = "r"\n'
                    'owner = "o"\nuntil = 2099-01-01')  # fmt: skip
    words = 'by "the" PSU \\ größe'
    wish = ("--waive", "fab-02", "--reason", words, "--until", "2099-12-31")
    assert drive("check", "b300", "--facts", file, *wish) == 0
    assert mine.read_text().startswith('# ours\n[[waiver]]\ncheck = "DRV-01"\n')
    capsys.readouterr()
    assert drive("check", "b300", "--facts", file, "--json") == 0, "the next run reads it"
    rows = {r["check"]: r for r in json.loads(capsys.readouterr().out)["data"]["b300"]}
    assert rows["FAB-02"]["verdict"] == "FAIL"
    assert words in rows["FAB-02"]["waived"]
    assert drive("check", "pcie", "--facts", keep(tmp_path / "p.json", "pcie")) == 0
    assert "waiver without use" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wish",
    [
        ("--waive", "FAB-02"),
        ("--waive", "FAB-02", "--reason", "x"),
        ("--reason", "x", "--until", "2099-01-01"),
        ("--waive", "FAB-99", "--reason", "x", "--until", "2099-01-01"),
        ("--waive", "FAB-02", "--reason", "x", "--until", "2020-01-01"),
        ("--waive", "FAB-02", "--reason", "x", "--until", "tomorrow"),
        ("--waive", "FAB-02", "--reason", "x\ny", "--until", "2099-01-01"),
        ("--waive", "FAB-02", "--reason", " ", "--until", "2099-01-01"),
        ("--waive", "FAB-02", "--reason", "x" * 501, "--until", "2099-01-01"),
        ("--waive", "FAB-02", "--waive", "ROUTER", "--reason", "x", "--until", "2099-01-01"),
    ],
)
def test_half_a_waiver_is_none(
    wish: tuple[str, ...], drive: Drive, project: Path, tmp_path: Path
) -> None:
    file = bad_power(drive, tmp_path)
    assert drive("check", "b300", "--facts", file, *wish) == 2
    assert not (project / "inventory/waivers.toml").exists()


UNTIL = ("--until", "2099-01-01")


def test_several_checks_are_waived_at_once(drive: Drive, project: Path, tmp_path: Path) -> None:
    file, wish = bad_power(drive, tmp_path), ("--waive", "fab-02", "--waive", "GPU-06")
    again = ("--waive", "FAB-02", "--reason", "x" * 500, *UNTIL)
    assert drive("check", "b300", "--facts", file, *wish, *again) == 0
    rows = tomllib.loads((project / "inventory/waivers.toml").read_text())["waiver"]
    assert [r["check"] for r in rows] == ["FAB-02", "GPU-06"]


INLINE = 'waiver = [{check="GPU-06", on=["b300"], reason="r", owner="o", until=2099-01-31}]\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (INLINE, 'add to the list `waiver` of inventory/waivers.toml: { check = "FAB-02", on ='),
        ("#" * (1 << 20), "it would be larger than 1 MiB"),
    ],
)
def test_a_waiver_that_would_break_the_file_is_not_written(
    text: str, says: str, drive: Drive, project: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    file, mine = bad_power(drive, tmp_path), project / "inventory/waivers.toml"
    mine.write_text(text)
    assert (
        drive("check", "b300", "--facts", file, "--waive", "FAB-02", "--reason", "x", *UNTIL) == 4
    )
    assert says in capsys.readouterr().err
    assert mine.read_text() == text
    assert drive("host", "list") == 0


def test_a_waiver_of_a_lab_host_goes_with_the_lab(
    drive: Drive, project: Path, tmp_path: Path
) -> None:
    lab = project / ".ddops/lab/inventory"
    lab.mkdir(parents=True)
    (project / "inventory/hosts.toml").write_text(HOSTS.split("[hosts.b300]")[0])
    (lab / "hosts.toml").write_text('[hosts.lab1]\nssh = "lab1"\nclass = "nvlink"\n')
    file = keep(tmp_path / "f.json", "b300")
    assert (
        drive("check", "lab1", "--facts", file, "--waive", "FAB-02", "--reason", "x", *UNTIL) == 0
    )
    assert not (project / "inventory/waivers.toml").exists()
    assert "FAB-02" in (lab / "waivers.toml").read_text()
    shutil.rmtree(lab)
    assert drive("host", "list") == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("waiver = 3", "expected [[waiver]] tables"),
        ("[[waivers]]\nx = 1", "nearest is `waiver`"),
        ('[[waiver]]\ncheck = "GPU-06"\non = ["b300"]\nreason = "x"\nowner = "o"', "until"),
        ('[[waiver]]\ncheck = "GPU-06"\non = ["b30"]\nreason = "x"\nowner = "o"\n'
         "until = 2099-01-01", "nearest is `b300`"),
        ('[[waiver]]\ncheck = "GPU-06"\non = ["b300"]\nreason = "x"\nowner = "o"\n'
         'until = "soon"', "until"),
        ("[[waiver]\n", "waivers.toml"),
    ],
)  # fmt: skip
def test_a_bad_file_names_its_place(
    text: str, words: str, drive: Drive, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "inventory/waivers.toml").write_text(text)
    assert drive("host", "list") == 2
    err = capsys.readouterr().err
    assert words in err
    assert "inventory/waivers.toml" in err


def test_hosts_that_say_the_same_share_a_row(
    drive: Drive, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"p{i}" for i in range(20)]
    (project / "inventory/hosts.toml").write_text(
        "".join(f'[hosts.{n}]\nssh = "{n}"\nclass = "pcie"\ngroups = ["all"]\n' for n in names)
    )

    def transport(_self: App, host: Any) -> FakeTransport:
        odd = {"probes|environ|NCCL_P2P_LEVEL": "sys"} if host.name == "p7" else {}
        raw = json.dumps(hosts.changed(hosts.host("pcie"), odd))
        return FakeTransport(host.name).on(lambda c: c.argv[0] == "python3", lambda _c: raw)

    monkeypatch.setattr(App, "transport", transport)
    assert drive("check", "all") == 0
    done = capsys.readouterr()
    lines = done.out.splitlines()
    assert [line.split()[:2] for line in lines if "P2P-04" in line] == [["p7", "warning"]]
    assert [line.split()[:2] for line in lines if "GPU-PINS" in line] == [["all", "20"]]
    assert len([line for line in lines if ": " in line and "PASS" in line]) == 2
    assert "20 of 20 hosts" in done.err
