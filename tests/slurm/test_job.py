"""A service as a job: submitted, ready, gated on its own node, replaced, taken back, cancelled."""

from __future__ import annotations

from pathlib import Path

from tests.lab.harness import Done
from tests.lab.looking import seen_in_proc, until
from tests.slurm.harness import SlurmProject, Submitting

KEY = "canary-key/Heron+5512-quiet"
TOKEN = "canary-token-Otter-9031"


def result(done: Done) -> dict[str, object]:
    assert isinstance(done.json, list)
    (one,) = done.json
    assert isinstance(one, dict)
    return one


def test_a_job_is_submitted_gated_on_its_node_and_shown(
    lab: SlurmProject, idle: Submitting
) -> None:
    lab.more_env.update({"THE_KEY": KEY, "THE_TOKEN": TOKEN})
    lab.job_service(api_key='"env:THE_KEY"', env='{ SECRET_TOKEN = "env:THE_TOKEN" }')
    first = result(lab.ok("deploy", "tiny", "--json"))
    job = idle.job()
    assert (job["state"], first["changed"]) == ("RUNNING", True)
    assert first["url"] == f"http://{job['nodes']}:{idle.port}"
    said = idle.get("/model_info", key=KEY)
    launch = idle.launch()
    assert said is not None
    assert launch is not None
    assert said["weight_version"] == launch["weight_version"]
    assert (launch["job"], launch["node"], launch["restarts"]) == (job["id"], job["nodes"], 0)
    assert idle.committed == first["release"] == launch["release"]
    states = idle.states()
    assert (states["staged"], states["gated"], states["vram_free"]) == ("ok", "ok", "skip")
    staged = next(t for t in idle.story() if t.state == "staged")
    assert "to start at" in str(staged.evidence), "Slurm's own word"
    (pid,) = idle.pids()
    env = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert b"CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7" in env, "the GPUs that Slurm gave it"
    assert f"SECRET_TOKEN={TOKEN}".encode() in env
    told = lab.sh(f"scontrol show job {job['id']}; scontrol write batch_script {job['id']} -")
    assert "Requeue=1" in told
    assert "OverSubscribe=NO" in told
    for secret in (KEY, TOKEN):
        assert secret not in told
        assert not seen_in_proc(secret)
    seen = lab.statuses()
    assert (seen["state"], seen["health"], seen["unproven"]) == ("up", "ok", None)
    assert f"job {job['id']} is RUNNING" in lab.ok("status", "tiny").out.replace("\n", " ")
    lab.ok("drift", "tiny")
    again = result(lab.ok("deploy", "tiny", "--json"))
    assert (again["changed"], again["nonce"], idle.job()) == (False, first["nonce"], job)


def test_what_fails_its_gates_goes_back_and_a_rollback_goes_further(
    lab: SlurmProject, serving: Submitting
) -> None:
    first = serving.committed
    lab.ok("deploy", "tiny", "--profile", lab.profile("next", "commit=3"))
    second, job = serving.committed, serving.job()
    assert second != first
    failed = lab.run("deploy", "tiny", "--profile", lab.profile("bad", "garbage"))
    assert failed.rc == 5, failed
    assert "G4 exactness FAIL" in failed.err
    assert serving.current == serving.committed == second
    assert serving.states()["restored"] == "ok"
    assert serving.job()["id"] != job["id"]
    assert len(serving.engines()) == 1
    dies = lab.run("deploy", "tiny", "--profile", lab.profile("dies", "die_loading=oom"))
    assert dies.rc == 5, dies
    assert "the engine ended while loading" in dies.err
    assert "CUDA out of memory" in dies.err
    lab.ok("rollback", "tiny", "--yes")
    assert serving.current == serving.committed == first
    said, launch = serving.get("/model_info"), serving.launch()
    assert said is not None
    assert launch is not None
    assert said["weight_version"] == launch["weight_version"]
    assert launch["release"] == first


def test_what_slurm_would_not_take_is_refused_before_anything_is_stopped(
    lab: SlurmProject, serving: Submitting
) -> None:
    job = serving.job()
    lab.asked(partition="nowhere")
    unknown = lab.run("deploy", "tiny", "--profile", lab.profile("next", "commit=3"))
    assert unknown.rc == 4, unknown
    assert "invalid partition" in unknown.err.lower()
    lab.asked(gres="gpu:h200:9")
    many = lab.run("deploy", "tiny", "--profile", lab.profile("next", "commit=3"))
    assert many.rc == 4, many
    assert serving.job() == job
    assert "stopped" not in serving.states()
    assert not serving.locked


def test_a_job_that_waits_too_long_is_cancelled_and_its_reason_is_told(
    lab: SlurmProject, idle: Submitting
) -> None:
    lab.sh("sbatch --nodes=2 --exclusive --output=/dev/null --wrap='sleep 600'")
    until(lambda: idle.job()["state"] == "RUNNING", what="a job of somebody else")
    other = idle.job()
    lab.asked(queue_s=3)
    done = lab.run("deploy", "tiny")
    assert done.rc == 1, done
    assert "is PENDING: Resources, for 3 s" in done.err
    assert idle.job() == other, "ours is out of the queue, the other one was left alone"
    assert idle.current is None


def test_a_killed_controller_leaves_a_job_that_the_next_deploy_finds(
    lab: SlurmProject, serving: Submitting
) -> None:
    old = serving.committed
    profile = lab.profile("slow", "load_s=4")
    run = lab.spawn("deploy", "tiny", "--profile", profile)
    until(lambda: serving.started_after(old), 60, "the start of the new release")
    run.kill()
    assert serving.committed == old
    done = result(lab.ok("deploy", "tiny", "--profile", profile, "--json"))
    assert serving.committed == done["release"] == serving.current
    assert len(lab.jobs()) == len(serving.engines()) == 1


def test_a_cancel_in_the_middle_of_a_launch_leaves_nothing(
    lab: SlurmProject, idle: Submitting
) -> None:
    idle.fault(load_s=30)
    run = lab.spawn("deploy", "tiny")
    until(lambda: any(j["state"] == "RUNNING" for j in lab.jobs()), 60, "a running job")
    run.interrupt()
    done = run.end()
    assert done.rc == 130, done
    assert not lab.jobs()
    assert not idle.engines()
    assert lab.sh("sinfo --noheader --Node --format='%N %T'") == "g1 idle\ng2 idle"


def test_a_service_moves_to_slurm_by_one_line_and_goes_back_where_it_came_from(
    lab: SlurmProject, idle: Submitting
) -> None:
    lab.service()
    shipped = (lab.root / "inventory/services/tiny.toml").read_text()
    idle.svctl("status", "tiny")  # the host's own supervisor, as on any other
    lab.ok("deploy", "tiny", "--yes")
    (here,) = idle.pids()
    digest = idle.committed
    lab.job_service()
    lines = set((lab.root / "inventory/services/tiny.toml").read_text().splitlines())
    assert lines - set(shipped.splitlines()) == {'engine = "slurm"'}
    failed = lab.run("deploy", "tiny", "--yes", "--profile", lab.profile("bad", "garbage"))
    assert failed.rc == 5, failed
    assert not lab.jobs()
    here_again = idle.svctl("status", "tiny")["state"]
    assert here_again in ("STARTING", "RUNNING"), "it serves where it served before"
    lab.ok("deploy", "tiny", "--yes")
    assert idle.committed == digest, "the same release, whoever runs it"
    assert idle.svctl("status", "tiny")["state"] is None
    (there,) = idle.pids()
    assert there != here
    assert idle.job()["state"] == "RUNNING"
