"""The deploy itself: live once, unchanged twice, another release, and who stands in its way."""

from __future__ import annotations

import http.server
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.harness import HostView, Project
from tests.lab.looking import files_below, until


def rows(lab: Project) -> int:
    with lab.ledger() as ledger:
        return len(ledger.deployments(limit=100000))


def test_first_deploy_is_live_and_its_story_is_told(lab: Project, clean_host: HostView) -> None:
    host = clean_host
    done = lab.ok("deploy", host.name, "--json")
    assert isinstance(done.json, list)
    answer = done.json[0]
    assert answer["changed"] is True
    assert host.serves() == host.current == host.committed == answer["release"]
    states = host.states()
    done_states, skipped = (["snapshotted"], set()) if lab.keeps else ([], {"snapshotted"})
    assert [s for s, v in states.items() if v == "ok"] == [
        "locked", "probed", "compat_ok", "rendered", "flags_ok", "planned", *done_states, "staged",
        "stopped", "switched", "started", "gated", "committed",
    ]  # fmt: skip
    assert {s for s, v in states.items() if v == "skip"} == {"drained", "vram_free", *skipped}
    rendered = next(t.evidence for t in host.story() if t.state == "rendered")
    assert rendered["profile"] == "tiny-dflash"
    assert rendered["evidence"] == {"status": "untested", "runs": []}
    with lab.ledger() as ledger:
        deployment = ledger.deployments(host=host.name, limit=1)[0]
        gates = ledger.deployment_gates(deployment.op_id)
        launch = ledger.launch(answer["nonce"])
        last = ledger.last_committed("tiny", host.name)
        release = ledger.release(answer["release"])
    assert [(g.name, g.verdict.value) for g in gates] == [
        ("G0", "PASS"), ("G1", "PASS"), ("G2", "PASS"), ("G3", "PASS"), ("G4 exactness", "PASS"),
        ("G5", "SKIP"), ("G6", "SKIP"),
    ]  # fmt: skip
    assert launch is not None
    assert launch.deployment == deployment.op_id
    assert last is not None
    assert last.op_id == deployment.op_id
    assert release is not None
    assert "${port}" in json.dumps(dict(release.spec))
    journal = [json.loads(x) for x in Path(host.layout.journal).read_text().splitlines()]
    assert [r["state"] for r in journal if r.get("op") == deployment.op_id][-1] == "committed"
    assert "up" in lab.ok("status", host.name).out


def test_the_second_deploy_changes_nothing(lab: Project, serving: HostView) -> None:
    pids, count = serving.pids(), rows(lab)
    before = _but_the_log(serving)
    done = lab.ok("deploy", serving.name)
    assert "unchanged" in done.out
    assert serving.pids() == pids
    assert rows(lab) == count
    assert _but_the_log(serving) == before


def _but_the_log(host: HostView) -> dict[str, str]:
    """The host's state; the engine logs every look at its health, the supervisor what it saw."""
    found = files_below(Path(host.layout.state))
    return {p: v for p, v in found.items() if not p.endswith(".log")}


def test_another_profile_is_another_release_and_commits_only_when_gated(
    lab: Project, serving: HostView
) -> None:
    old = serving.serves()
    lab.profile("slow", "load_s=3")
    run = lab.spawn("deploy", serving.name, "--profile", "slow")
    until(lambda: serving.current != old, what="the switch")
    until(lambda: serving.launch() is not None, what="the start")
    assert serving.committed == old  # still what a rollback would go to
    assert serving.locked
    done = run.end()
    assert done.rc == 0, done
    assert serving.serves() == serving.current == serving.committed != old
    assert not serving.locked
    with lab.ledger() as ledger:
        assert ledger.deployments(host=serving.name, limit=1)[0].previous == old


def test_an_engine_that_crashes_is_restarted_as_another_start(
    lab: Project, serving: HostView
) -> None:
    before, first = serving.launch(), serving.pids()
    assert before is not None
    os.kill(int(str(before["pid"])), signal.SIGKILL)
    until(lambda: serving.serves() is not None and serving.launch() != before, what="a restart")
    after = serving.launch()
    assert after is not None
    assert after["release"] == before["release"]
    assert after["nonce"] != before["nonce"]
    assert after["weight_version"] != before["weight_version"]
    assert not set(first) & set(serving.pids())
    row = _status(lab, serving.name)
    assert row["health"] == "ok"
    assert row["nonce"] == after["nonce"]
    assert lab.ok("deploy", serving.name).out.count("unchanged") == 1


def _status(lab: Project, host: str) -> dict[str, object]:
    data = lab.ok("status", host, "--json").json
    assert isinstance(data, list)
    row: dict[str, object] = data[0]
    return row


def test_status_says_what_is_seen_not_what_was_meant(lab: Project, serving: HostView) -> None:
    row = _status(lab, serving.name)
    launch = serving.launch()
    assert launch is not None
    assert (row["state"], row["health"], row["pid"]) == ("up", "ok", launch["pid"])
    assert row["release"] == row["committed"] == serving.serves()
    assert "sim" in lab.ok("status", serving.name).out
    serving.fault(wrong_identity="info")
    assert _status(lab, serving.name)["health"] == "wrong identity"
    serving.fault(status_503="health")
    assert _status(lab, serving.name)["health"] == "503"
    serving.fault()
    serving.svctl("stop", "tiny")
    row = _status(lab, serving.name)
    assert (row["state"], row["release"], row["health"]) == ("down", None, None)
    assert row["committed"] == serving.committed
    # Down, but committed: the deploy brings it up again.
    lab.ok("deploy", serving.name)
    assert serving.serves() == serving.committed


@pytest.fixture
def intruder(clean_host: HostView) -> Iterator[int]:
    """Somebody else on the service's port."""
    server = http.server.HTTPServer(
        ("127.0.0.1", clean_host.port), http.server.SimpleHTTPRequestHandler
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield os.getpid()
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_port_in_use_names_who_holds_it(
    lab: Project, clean_host: HostView, intruder: int
) -> None:
    done = lab.run("deploy", clean_host.name)
    assert done.rc == 4, done
    assert f"port {clean_host.port} is in use by pid {intruder}" in done.err
    assert clean_host.current is None
    assert not clean_host.locked
    assert clean_host.states()["planned"] == "fail"
    assert "staged" not in clean_host.states()
    assert "port not ours" not in lab.ok("status", clean_host.name).out  # no engine: it is down


def test_weights_that_are_gone_are_refused_before_the_stop(lab: Project, serving: HostView) -> None:
    models = Path(serving.layout.models) / "tiny-qwen3"
    pids = serving.pids()
    aside = models.with_name("aside")
    lab.profile("other", "commit=3")
    models.rename(aside)
    try:
        done = lab.run("deploy", serving.name, "--profile", "other")
    finally:
        aside.rename(models)
    assert done.rc == 4, done
    assert str(models) in done.err
    assert "ddops provision" in done.err
    assert serving.pids() == pids
    assert serving.current == serving.committed


def test_one_late_answer_is_no_reason_to_restart(lab: Project, serving: HostView) -> None:
    pids = serving.pids()
    serving.fault(status_503="health")
    run = lab.spawn("deploy", serving.name)
    until(lambda: serving.locked, what="the second look")
    serving.fault()
    done = run.end()
    assert done.rc == 0, done
    assert "unchanged" in done.out
    assert serving.pids() == pids


def test_a_service_that_stays_ill_is_started_anew(lab: Project, serving: HostView) -> None:
    first = serving.launch()
    serving.fault(status_503="health")
    run = lab.spawn("deploy", serving.name)
    until(lambda: serving.launch() not in (first, None), what="a new start")
    serving.fault()
    done = run.end()
    assert done.rc == 0, done
    assert "live" in done.out
    assert serving.serves() == serving.committed


def test_a_service_listens_on_loopback_alone(serving: HostView) -> None:
    want = f":{serving.port:04X}"
    table = Path("/proc/net/tcp").read_text().splitlines() + (
        Path("/proc/net/tcp6").read_text().splitlines() if Path("/proc/net/tcp6").exists() else []
    )
    listens = [
        line.split()[1] for line in table if line.split()[1].endswith(want) and " 0A " in line
    ]
    assert listens == [f"0100007F{want}"]


def test_the_supervisor_outlives_the_controller(lab: Project, serving: HostView) -> None:
    lab.profile("outlives", "load_s=4")
    run = lab.spawn("deploy", serving.name, "--profile", "outlives")
    until(lambda: serving.states().get("switched") == "ok", what="the switch")
    until(lambda: serving.pids(), what="the new engine")
    run.kill()
    until(lambda: serving.serves() is not None, what="the engine, all alone")


def test_an_old_engine_deaf_to_term_is_ended_all_the_same(lab: Project, serving: HostView) -> None:
    """Its own grace is half a minute; here it has a second, from its next start on."""
    path = Path(serving.service.current) / "launch.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "stop_grace_s": 1}))
    first = serving.launch()
    assert first is not None
    os.kill(int(str(first["pid"])), signal.SIGKILL)
    until(lambda: serving.serves() and serving.launch() != first, what="a restart")
    (deaf,) = serving.pids()
    serving.fault(ignore_sigterm=True)
    lab.profile("after-deaf", "commit=5")
    run = lab.spawn("deploy", serving.name, "--profile", "after-deaf")
    until(lambda: deaf not in serving.pids(), what="the end of the deaf one")
    serving.fault()
    done = run.end()
    assert done.rc == 0, done
    assert serving.serves() == serving.committed
    log = (Path(serving.service.log) / "engine.log").read_text()
    assert "SIGTERM received and ignored" in log


def test_the_release_before_is_kept_however_old_and_no_more_than_said(
    lab: Project, clean_host: HostView
) -> None:
    """It is what a rollback goes to: its age on disk says nothing."""
    host, two = clean_host, {"DDOPS_KEEP_RELEASES": "2"}
    served = []
    for number in (0, 1, 0, 2):  # the third is not staged anew, so the second is younger on disk
        lab.profile(f"keep{number}", f"commit={number + 2}")
        lab.ok("deploy", host.name, "--profile", f"keep{number}", env=two)
        served.append(host.serves())
    assert served[0] == served[2]
    kept = {p.name for p in Path(host.service.releases).iterdir()}
    assert kept == {served[3], served[2]}


def test_the_very_launch_is_judged_before_the_old_service_stops(
    lab: Project, serving: HostView
) -> None:
    """An option the release does not have: ten minutes of loading, saved, and the service too."""
    name = lab.profile("misspelt")
    file = lab.root / "inventory/profiles/misspelt.toml"
    file.write_text(file.read_text().replace("[launch]\n", "[launch]\ncuda-graph-max-bz = 4\n"))
    before, pids = serving.serves(), serving.pids()
    done = lab.run("deploy", serving.name, "--profile", name)
    assert done.rc == 4
    assert "RUN-01" in done.err
    assert "--cuda-graph-max-bz" in done.err
    assert (serving.serves(), serving.pids()) == (before, pids)
    assert serving.states()["compat_ok"] == "fail"
    until_day = ("--reason", "our fork has it", "--until", "2099-01-01")
    lab.run("check", serving.name, "--waive", "RUN-01", *until_day)
    waived = lab.run("deploy", serving.name, "--profile", name)
    (lab.root / ".ddops/lab/inventory/waivers.toml").unlink()
    assert "waived: RUN-01 until 2099-01-01" in waived.err
    assert waived.rc == 4, "the installed engine has the last word"
    assert "nearest is --cuda-graph-max-bs" in waived.err
    states = serving.states()
    assert (states["compat_ok"], states["flags_ok"]) == ("ok", "fail")
    assert (serving.serves(), serving.pids()) == (before, pids)
