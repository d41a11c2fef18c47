"""A service as a Slurm job: its script, what is made of Slurm's answers, what the gates hear."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from ddops.command import cmd
from ddops.deploy.release import places
from ddops.engines import LaunchSpec
from ddops.errors import CommandFailed, RefusedError
from ddops.gates import Job, Rank, judge_g0, judge_g1, judge_g2
from ddops.inventory.model import Host, Node, Origin, Service, SlurmTable
from ddops.layout import HostLayout
from ddops.model import Result, State, Verdict
from ddops.supervise import Order, SlurmJob, orchestrator_of, require_drained
from ddops.supervise.slurm import job_name
from ddops.transport.fake import FakeTransport
from tests.lab.harness import ROOT
from tests.unit.test_gates import LAUNCH, WELL, but

#: Scripts for hosts are not annotated.
jobctl: Any = importlib.import_module("ddops.hostside.jobctl")
jobstep: Any = importlib.import_module("ddops.hostside.jobstep")
board: Any = importlib.import_module("ddops.hostside.board")
guard: Any = importlib.import_module("ddops.hostside.guard")
HERE = Origin("project", Path("inventory/x.toml"))
LAYOUT = HostLayout("/shared/ddops")
DIGEST = "cd" * 32


@pytest.fixture(autouse=True)
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script finds the others in its own folder, as on a host."""
    monkeypatch.syspath_prepend(str(ROOT / "ddops" / "hostside"))


def order(slurm: SlurmTable = SlurmTable(), nnodes: int = 1) -> Order:  # noqa: B008 - immutable
    service = Service(
        model="m", profile="p", hosts=("k",), name="tiny", origin=HERE, engine="slurm",
        nnodes=nnodes, api_key="env:KEY",
    )  # fmt: skip
    host = Host(ssh="k", name="k", origin=HERE, engine_dir="/shared/ddops", slurm=slurm)
    launch = LaunchSpec(("python",), (), (("TOKEN", "env:TOKEN"),), "env:KEY", 30)
    return Order(service, host, 30000, DIGEST, launch, "")


def lookup(name: str) -> Path:
    return ROOT / name


def script(asked: Order, layout: HostLayout = LAYOUT) -> list[str]:
    job = SlurmJob(FakeTransport("k"), layout, "python3")
    return job.render(asked, lookup)["job.sbatch"].splitlines()


def test_the_script_asks_for_what_the_host_says() -> None:
    lines = script(
        order(SlurmTable(partition="b300", account="inf", gres="gpu:8", time_limit="7-00:00:00"))
    )
    for word in ("partition=b300", "account=inf", "gres=gpu:8", "time=7-00:00:00", "exclusive",
                 "requeue", "nodes=1", "export=HOME,PATH,USER,LOGNAME,LANG"):  # fmt: skip
        assert f"#SBATCH --{word}" in lines
    first = next(n for n, line in enumerate(lines) if not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first:]), "Slurm stops reading"
    assert "TOKEN" not in "\n".join(lines), "no secret, not even its name"


def test_what_is_not_asked_for_is_not_there() -> None:
    text = "\n".join(script(order()))
    assert "--time=UNLIMITED" in text
    for word in ("partition", "account", "gres", "--label"):
        assert word not in text


def test_two_nodes_have_a_rank_each() -> None:
    text = "\n".join(script(order(nnodes=2)))
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks=2\n#SBATCH --ntasks-per-node=1\n" in text
    assert "--label" in text
    assert "/services/tiny 20000 && status=0 || status=$?\n" in text, "where rank 0 waits"


def test_a_folder_with_odd_letters_stays_one_word() -> None:
    lines = script(order(), HostLayout("/sh ared/100%j's"))
    (out,) = [x for x in lines if x.startswith("#SBATCH --output=")]
    assert out.endswith("100%%j's/.ddops/services/tiny/log/engine.log\""), "no pattern of Slurm's"
    assert """'/sh ared/100%j'"'"'s/.ddops/services/tiny'""" in "\n".join(lines)


def test_one_name_here_and_on_the_host() -> None:
    folder = LAYOUT.service("tiny").dir
    assert job_name(folder, "tiny") == jobctl.job_name(folder, "tiny")
    assert job_name(folder, "tiny") != job_name("/other", "tiny")


# ---- over a scripted host


def answering(**answer: object) -> tuple[FakeTransport, SlurmJob]:
    host = FakeTransport("k").on("python3", json.dumps({"schema": "ddops.jobctl/1", **answer}))
    return host, SlurmJob(host, LAYOUT, "python3")


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("PENDING", State.UP), ("RUNNING", State.UP), ("COMPLETING", State.UP),
        ("CANCELLED", State.DOWN), ("NODE_FAIL", State.DOWN), (None, State.DOWN),
        ("OF_TOMORROW", State.UNKNOWN),
    ],
)  # fmt: skip
def test_words_of_slurm(word: str | None, state: State) -> None:
    host, job = answering(state=word, why="job 3")
    assert job.cancel("tiny").state is state
    assert host.calls[0].argv == (
        "python3", "/shared/ddops/.ddops/hostside/jobctl.py", "/shared/ddops/.ddops", "cancel",
        "tiny",
    )  # fmt: skip


def test_what_slurm_refuses_is_told_with_where_to_look() -> None:
    _, job = answering(error="Slurm does not take the job: invalid partition")
    with pytest.raises(RefusedError) as told:
        job.status("tiny")
    assert "invalid partition" in told.value.why
    assert "sinfo" in told.value.next
    host = FakeTransport("k").on("python3", json.dumps({"schema": "x", "error": "no squeue"}))
    with pytest.raises(RefusedError, match="observe"):
        SlurmJob(host, LAYOUT, "python3").observe("tiny", 30000)


def test_a_script_that_is_not_there_is_an_error() -> None:
    host = FakeTransport("k").on("python3", Result(2, b"", b"can't open file", 0.0))
    with pytest.raises(CommandFailed) as told:
        SlurmJob(host, LAYOUT, "python3").submit("tiny")
    assert told.value.next == "ddops provision k"


def test_a_command_beside_the_engine_keeps_its_words_environment_and_input() -> None:
    host, job = answering()
    job.inside("tiny").run(cmd("python3", "-m", "load", env={"A": "b c"}, stdin=b"in"))
    (call,) = host.calls
    assert call.argv[3:] == ("run", "tiny", "env", "A=b c", "python3", "-m", "load")
    assert call.stdin == b"in"


def test_an_engine_that_is_only_rendered_is_refused() -> None:
    asked = order()
    service = asked.service.handed_to("kubernetes")
    with pytest.raises(RefusedError, match="kubernetes"):
        orchestrator_of(FakeTransport("k"), asked.host, service)


def test_hosts_are_not_counted_for_a_job_on_several_nodes() -> None:
    assert order(nnodes=2).service.hosts_of_one == 1
    assert order(nnodes=2).service.handed_to("systemd").hosts_of_one == 2


@pytest.mark.parametrize("said", ["drained\n", "down*\n", "drained\ndrained\n"])
def test_a_drained_node_may_be_touched(said: str) -> None:
    host = host_of(node="g1")
    require_drained(FakeTransport("k").on("sinfo", said), host)


@pytest.mark.parametrize("said", ["allocated\n", "idle\n", "draining\n", "", "drained\nmixed\n"])
def test_a_node_that_may_be_in_use_is_left_alone(said: str) -> None:
    with pytest.raises(RefusedError) as told:
        require_drained(FakeTransport("k").on("sinfo", said), host_of(node="g1"))
    assert "state=drain" in told.value.next
    require_drained(FakeTransport("k"), host_of(node=None))  # no node: nobody is asked


def host_of(node: str | None) -> Host:
    return Host(ssh="k", name="k", origin=HERE, slurm=SlurmTable(node=node))


# ---- what the host makes of Slurm's answers


def tools(folder: Path, monkeypatch: pytest.MonkeyPatch, squeue: str, **more: str) -> None:
    """Stand-ins for Slurm's commands; what they answer is made up."""
    scripts = dict.fromkeys(jobctl.TOOLS, "exit 0") | {"squeue": f"cat <<'X'\n{squeue}\nX"} | more
    for name, body in scripts.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def raw(**values: object) -> dict[str, object]:
    return {"job_id": 7, "job_state": "RUNNING", "nodes": "g1", "restart_cnt": 0,
            "exit_code": 0, "state_reason": "None", **values}  # fmt: skip


def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *rows: dict[str, object]) -> Any:
    made = jobctl.Jobs(str(tmp_path / "s"), "tiny")
    named = [{**r, "name": r.get("name", made.name)} for r in rows]
    (tmp_path / "bin").mkdir()
    tools(tmp_path / "bin", monkeypatch, json.dumps({"jobs": named}))
    return made


def test_only_its_own_jobs_count_and_one_that_is_not_over_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = jobs(
        tmp_path, monkeypatch, raw(job_id=9, job_state="FAILED", exit_code=256), raw(job_id=8),
        raw(job_id=10, name="somebody"), raw(job_id=11, user_id=os.getuid() + 1),
    )  # fmt: skip
    assert known.latest()["id"] == 8
    assert [j["id"] for j in known.known()] == [8, 9]


def test_the_shape_of_newer_versions_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = jobs(
        tmp_path, monkeypatch,
        raw(job_state=["RUNNING", "COMPLETING"], restart_cnt={"set": True, "number": 2},
            exit_code={"return_code": {"set": True, "number": 3}}),
    )  # fmt: skip
    job = known.latest()
    assert (job["state"], job["restarts"], job["exit_code"]) == ("COMPLETING", 2, 3)


def test_words_for_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = jobs(tmp_path, monkeypatch, raw(job_state="PENDING", state_reason="Resources"))
    assert known.status()["why"] == "job 7 is PENDING: Resources"
    assert jobctl.words(None) == "Slurm knows no job of it"
    failed = jobctl.job_of(raw(job_state="FAILED", exit_code=256, restart_cnt=1))
    assert jobctl.words(failed) == "job 7 is FAILED, exit status 1, requeued once"


@pytest.mark.parametrize("text", ["", "no cluster", "[]", '{"jobs": 3}', '{"errors": []}', "\x00"])
def test_an_answer_that_is_none_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "bin").mkdir()
    tools(tmp_path / "bin", monkeypatch, text.replace("\x00", "?"))
    assert jobctl.main([str(tmp_path), "status", "tiny"]) == 0
    assert "squeue --json does not answer" in json.loads(capsys.readouterr().out)["error"]


def test_slurm_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for words in (["status"], ["verify", DIGEST], ["observe", "1", "0", "10"], ["submit"]):
        assert jobctl.main([str(tmp_path), words[0], "tiny", *words[1:]]) == 0
        told = json.loads(capsys.readouterr().out)["error"]
        assert told.startswith("Slurm is not installed here: no sbatch, squeue")
    assert jobctl.main([str(tmp_path), "run", "tiny", "true"]) == 254
    assert "not installed" in capsys.readouterr().err


def test_a_job_that_waits_is_down_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = jobs(tmp_path, monkeypatch, raw(job_state="PENDING", state_reason="Priority", nodes=""))
    seen = known.observe("30000", "6", "100")
    assert seen["engine"] == {"state": "down", "why": "job 7 is PENDING: Priority"}
    assert (seen["job"]["ranks"], seen["port"]["listening"]) == ([], False)


def test_a_second_submission_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = jobs(tmp_path, monkeypatch, raw(job_state="PENDING"))
    assert known.submit() == {"state": "PENDING", "job": 7, "started": False}


LOOK = {"http_s": 0, "log_bytes": 100}


def test_a_look_at_a_host_asks_slurm_for_a_job_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = jobs(tmp_path, monkeypatch, raw(job_state="PENDING", state_reason="Priority", nodes=""))
    service = Path(known.dir)
    (service / "run").mkdir(parents=True)
    (tmp_path / "s" / "hostside").symlink_to(ROOT / "ddops" / "hostside")
    plain = board.service(str(service), 1, LOOK)
    assert plain["engine"]["why"] == "never launched here"
    (service / "run" / "engine").write_text("slurm")
    seen = board.service(str(service), 1, LOOK)
    assert seen["engine"]["why"] == "job 7 is PENDING: Priority"
    assert seen["committed"] is None
    (tmp_path / "bin" / "squeue").write_text("#!/bin/sh\necho no >&2; exit 1\n")
    lost = board.service(str(service), 1, LOOK)
    assert lost["engine"]["state"] == "unknown", "no answer of Slurm's is no word on the engine"
    assert "squeue --json does not answer: no" in lost["engine"]["why"]


# ---- on the node


@pytest.fixture
def service(tmp_path: Path) -> Path:
    """`new` is current, `old` is what passed its gates."""
    made = tmp_path / "services" / "tiny"
    for digest in ("old", "new"):
        (made / "releases" / digest).mkdir(parents=True)
        (made / "releases" / digest / "launch.json").write_text("{}")
    (made / "run").mkdir()
    (made / "run" / "launch.json").write_text("{}")
    (made / "current").symlink_to("releases/new")
    (made / "committed").symlink_to("releases/old")
    return made


def test_a_first_submission_starts_what_its_deploy_chose(
    service: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    assert jobstep.condition(str(service)) == 0
    assert (service / "current").readlink().name == "new"


def test_a_requeue_starts_what_passed_its_gates(
    service: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert jobstep.condition(str(service)) == 0
    assert (service / "current").readlink() == Path("releases/old")
    assert not (service / "run" / "launch.json").exists(), "the old start counts for nothing"
    (service / "committed").unlink()
    assert jobstep.condition(str(service)) == 1
    assert "no release of this service has passed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("committed", "count", "cancelled", "rc"),
    [("new", "0", "", 0), ("new", "2", "6", 0), ("new", "3", "", 1), ("new", "0", "7", 1),
     ("old", "0", "", 1)],
)  # fmt: skip
def test_a_crash_is_worth_another_start_a_few_times(
    service: Path, monkeypatch: pytest.MonkeyPatch, committed: str, count: str, cancelled: str,
    rc: int,
) -> None:  # fmt: skip
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", count)
    (service / "run" / "cancelled").write_text(cancelled)
    (service / "committed").unlink()
    (service / "committed").symlink_to(f"releases/{committed}")
    assert jobstep.again(str(service)) == rc
    (service / "run" / "launch.json").write_text(json.dumps({"started": time.time() - 4000}))
    loop = count == "3"
    assert jobstep.again(str(service)) == (0 if loop else rc), "a long life is no loop"


def test_a_node_that_does_not_see_the_disk_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert jobstep.condition(str(tmp_path / "nowhere")) == 1
    assert "is its disk shared?" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("body", "busy"),
    [
        ("echo '0, 3'; echo '1, 900'", []), ("echo '0, 3'; echo '1, 80000'", ["3", "80000"]),
        ("echo '0, [N/A]'", ["unknown: "]), ("echo broken >&2; exit 9", ["unknown: broken"]),
        ("true", ["unknown: "]),
    ],
)  # fmt: skip
def test_memory_in_use_keeps_a_job_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, busy: list[str]
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n{body}\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert jobstep.busy_memory() == busy


def test_a_followers_folder_has_the_release_and_a_record_of_its_own(service: Path) -> None:
    where = jobstep.rank_dir(str(service), 1)
    jobstep.lay_rank(str(service), where)
    jobstep.lay_rank(str(service), where)  # a requeue
    assert Path(where, "current", "launch.json").exists()
    assert not Path(where, "run", "launch.json").exists()
    assert jobstep.rank_dir(str(service), 0) == str(service)


def test_a_node_fills_in_its_own_places() -> None:
    spec = {"argv": ["--node-rank", "${rank}", "${other}"], "env": {"A": "${dist_addr}/x"}, "n": 1}
    assert guard.filled(spec, {"rank": "1", "dist_addr": "g1:2"}) == {
        "argv": ["--node-rank", "1", "${other}"], "env": {"A": "g1:2/x"}, "n": 1,
    }  # fmt: skip


# ---- what the gates hear

RANK = Rank("g1", State.UP, "", "n1", True, 200)
JOB = Job(7, "RUNNING", "job 7 is RUNNING", 0, "n1", (RANK, dataclasses.replace(RANK, node="g2")))


def ranked(**changes: object) -> Job:
    other = dataclasses.replace(RANK, node="g2", **changes)  # type: ignore[arg-type]
    return dataclasses.replace(JOB, ranks=(RANK, other))


def test_a_job_that_is_well_passes() -> None:
    seen = but(job=JOB)
    results = [judge_g0(seen, seen, "op"), judge_g1(seen), judge_g2(seen)]
    assert [r.verdict for r in results] == [Verdict.PASS] * 3
    assert "on g1, g2" in results[0].message
    assert seen.healthy


@pytest.mark.parametrize(
    ("job", "verdict", "words"),
    [
        (dataclasses.replace(JOB, state="COMPLETING", why="job 7 is COMPLETING"), Verdict.FAIL,
         "COMPLETING"),
        (dataclasses.replace(JOB, restarts=1), Verdict.FAIL, "started again"),
        (ranked(state=State.DOWN, why="gone"), Verdict.FAIL, "g2 not running: gone"),
        (ranked(state=State.UNKNOWN), Verdict.UNKNOWN, "g2 not running"),
        (ranked(nonce="n2"), Verdict.FAIL, "a rank of the engine was restarted"),
    ],
)  # fmt: skip
def test_g0_hears_the_job_and_every_rank(job: Job, verdict: Verdict, words: str) -> None:
    result = judge_g0(but(job=JOB), but(job=job), "op")
    assert result.verdict is verdict
    assert words in result.message


def test_g1_and_g2_ask_every_rank() -> None:
    assert judge_g1(but(job=ranked(owned=False))).verdict is Verdict.FAIL
    late = judge_g2(but(job=ranked(health=None)))
    assert (late.verdict, "g2" in late.message) == (Verdict.FAIL, True)
    assert not but(job=ranked(health=503)).healthy


def test_a_start_without_a_deploy_behind_it_is_unproven() -> None:
    assert but(job=JOB).unproven == ""
    assert "has not passed its gates" in but(job=dataclasses.replace(JOB, proven="n0")).unproven
    assert "has not passed" in but(job=dataclasses.replace(JOB, proven=None)).unproven
    assert WELL.unproven == "", "other starts have no such record"
    assert LAUNCH.nonce == "n1"


def test_places_are_left_to_the_nodes() -> None:
    host = host_of(None)
    assert set(places(host, 1, Node(later=True))) == {"engine_dir", "port"}
    assert places(host, 1, Node())["rank"] == "0"
