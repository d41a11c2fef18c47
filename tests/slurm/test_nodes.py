"""Nodes that are lost, and a service on two of them."""

from __future__ import annotations

import os
import signal

from tests.lab.looking import until
from tests.slurm.harness import SlurmProject, Submitting
from tests.slurm.test_job import result


def test_a_lost_node_means_a_new_start_that_is_proven_anew(
    lab: SlurmProject, serving: Submitting
) -> None:
    before, launch = serving.job(), serving.launch()
    assert launch is not None
    lab.kill_daemon(before["nodes"])

    def again() -> bool:
        now = serving.launch()
        return now is not None and now["nonce"] != launch["nonce"]

    until(again, 90, "a requeue on the other node")
    until(lambda: serving.get("/model_info"), 30, "answers of the new start")
    after, fresh = serving.job(), serving.launch()
    assert fresh is not None
    assert (after["id"], fresh["restarts"]) == (before["id"], 1)
    assert after["nodes"] != before["nodes"]
    seen = lab.statuses()
    assert seen["health"] == "unproven"
    assert "has not passed its gates" in str(seen["unproven"])
    assert "requeued once" in str(seen["job"])
    proven = result(lab.ok("deploy", "tiny", "--json"))
    assert (proven["changed"], proven["nonce"]) == (False, fresh["nonce"]), "gated where it runs"
    assert serving.states()["gated"] == "ok"
    assert "stopped" not in serving.states()
    assert lab.statuses()["health"] == "ok"


def test_a_node_lost_in_the_middle_of_a_deploy_takes_the_deploy_back(
    lab: SlurmProject, serving: Submitting
) -> None:
    old = serving.committed
    assert old is not None
    run = lab.spawn("deploy", "tiny", "--profile", lab.profile("slow", "load_s=60"))
    until(lambda: serving.started_after(old), 60, "the start of the new release")
    lab.kill_daemon(serving.job()["nodes"])
    done = run.end()
    assert done.rc == 5, done
    # Which is seen first is a race: the job that lost its node, or what its requeue started, which
    # is the release that passed its gates and not the one on trial.
    seen = ("is lost", "not running", "NODE_FAIL", f"G3 FAIL: launched {old[:12]}")
    assert any(words in done.err for words in seen), done
    assert serving.committed == serving.current == old
    launch = serving.launch()
    assert launch is not None
    assert launch["release"] == old


def test_a_crash_of_what_passed_its_gates_is_started_again(
    lab: SlurmProject, serving: Submitting
) -> None:
    before, launch = serving.job(), serving.launch()
    assert launch is not None
    (pid,) = serving.pids()
    os.kill(pid, signal.SIGKILL)
    until(lambda: (serving.launch() or launch)["nonce"] != launch["nonce"], 90, "another start")
    until(lambda: serving.get("/model_info"), 30, "answers of the new start")
    assert serving.job()["id"] == before["id"]
    assert lab.statuses()["health"] == "unproven"


def test_one_engine_on_two_nodes(lab: SlurmProject, idle: Submitting) -> None:
    lab.job_service(nnodes="2")
    lab.ok("deploy", "tiny", "--yes")
    job = idle.job()
    assert job["nodes"] == "g[1-2]"
    assert len(idle.engines()) == 2
    assert idle.get("/model_info", node="g1") is not None
    seen = lab.statuses()
    assert (seen["state"], seen["health"]) == ("up", "ok")
    ranks = seen["job"]["ranks"] if isinstance(seen["job"], dict) else []
    assert [(r["node"], r["state"], r["health"]) for r in ranks] == [
        ("g1", "up", 200), ("g2", "up", 200),
    ]  # fmt: skip
    lab.ok("drift", "tiny")
    bad = lab.run("deploy", "tiny", "--yes", "--profile", lab.profile("bad", "garbage"))
    assert bad.rc == 5, bad
    assert idle.states()["restored"] == "ok"
    assert len(idle.engines()) == 2
