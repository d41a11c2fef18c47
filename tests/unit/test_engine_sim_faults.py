"""Every fault of the stand-in does what its name says, from the environment and live."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_engine_sim_support import (
    ENGINE,
    KEY,
    Sim,
    draft_dir,
    engine,
    environment,
    run_to_end,
    wait_for,
)

ASKED = "0123456789ab-feed00000001"
STREAM = {"text": "s", "stream": True, "sampling_params": {"temperature": 0, "max_new_tokens": 9}}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    home = tmp_path_factory.mktemp("faults")
    flags = ["--weight-version", ASKED, "--speculative-algorithm", "DFLASH"]
    flags += ["--speculative-draft-model-path", str(draft_dir(home))]
    with engine(home, *flags) as one:
        yield one


@pytest.fixture
def live(running: Sim) -> Iterator[Sim]:
    """One server for all faults that can come and go."""
    yield running
    running.script()
    assert running.process.poll() is None
    assert running.generate()["meta_info"]["weight_version"] == ASKED


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("garbag", "unknown fault 'garbag'; did you mean 'garbage'?"),
        ("step_ms=5,stale_identiti", "did you mean 'stale_identity'?"),
        ("die_loading=fire", "die_loading=fire: one of oom, arch, flag"),
        ("load_s=soon", "load_s=soon: a number"),
        ("early_eos=1.5", "early_eos=1.5: a whole number"),
        ("golden=/nowhere/golden.json", "No such file"),
    ],
)
def test_what_it_does_not_know_is_2(tmp_path: Path, text: str, why: str) -> None:
    status, output = run_to_end(tmp_path, sim=text)
    assert status == 2
    assert why in output


def test_unknown_name_in_the_file_is_2(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text('{"hangs": true}')
    status, output = run_to_end(tmp_path, env={"DDOPS_SIM_FILE": str(tmp_path / "f.json")})
    assert status == 2
    assert "did you mean 'hang'?" in output


def test_the_file_overrides_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    with engine(tmp_path, sim="early_eos=2") as sim:
        assert len(sim.generate()["output_ids"]) == 2
        sim.script(early_eos=4)
        assert len(sim.generate()["output_ids"]) == 4
        sim.script(early_eos=False)
        assert len(sim.generate()["output_ids"]) == 8
        sim.script(no_such=1)
        assert len(sim.generate()["output_ids"]) == 8
        assert "did you mean" in sim.log
        (tmp_path / ".ddops-sim.json").unlink()
        assert len(sim.generate()["output_ids"]) == 2


def test_load_s_is_503_then_200(tmp_path: Path) -> None:
    with engine(tmp_path, sim="load_s=0.4,shards=2", ready=False) as sim:
        wait_for(lambda: sim.health() == 503)
        assert sim.ask("/generate", {"text": "a"}).status == 503
        assert sim.ask("/v1/models").status == 200
        sim.wait_ready()
        assert "50% Completed | 1/2" in sim.log


def test_port_late_and_listen_loaded(tmp_path: Path) -> None:
    for script in ("port_late_s=0.4", "load_s=0.4,listen=loaded"):
        began = time.monotonic()
        with engine(tmp_path, sim=script, ready=False) as sim:
            wait_for(sim.health)
            assert sim.health() == 200
            assert time.monotonic() - began >= 0.4


def test_never_ready_until_taken_away(tmp_path: Path) -> None:
    with engine(tmp_path, sim="never_ready", ready=False) as sim:
        wait_for(lambda: sim.health() == 503)
        time.sleep(0.1)
        assert sim.health() == 503
        sim.script(never_ready=False)
        sim.wait_ready()


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("oom", "torch.OutOfMemoryError: CUDA out of memory"),
        ("arch", "no kernel image is available for execution on the device"),
        ("flag", "ValueError: "),
    ],
)
def test_die_loading(tmp_path: Path, kind: str, line: str) -> None:
    status, output = run_to_end(tmp_path, sim=f"die_loading={kind},load_s=0.1")
    assert status == 1
    assert line in output
    assert "Received sigquit from a child process" in output
    assert "fired up" not in output


def test_die_after_s(tmp_path: Path) -> None:
    with engine(tmp_path, sim="die_after_s=0.2") as sim:
        assert sim.process.wait(3) == 1
        assert "Scheduler hit an exception" in sim.log


def test_die_on_request(tmp_path: Path) -> None:
    with engine(tmp_path, sim="die_on_request=3") as sim:
        sim.generate()
        sim.generate()
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            sim.generate()
        assert sim.process.wait(3) == 1


def test_wrong_identity(live: Sim) -> None:
    for word, info, meta in (("all", False, False), ("info", False, True), ("meta", True, False)):
        live.script(wrong_identity=word)
        assert (live.ask("/model_info").json()["weight_version"] == ASKED) is info
        assert (live.ask("/server_info").json()["weight_version"] == ASKED) is info
        assert (live.generate()["meta_info"]["weight_version"] == ASKED) is meta


def test_stale_identity(live: Sim) -> None:
    live.script(stale_identity=True)
    stale = live.ask("/model_info").json()["weight_version"]
    assert stale != ASKED
    assert stale.startswith(ASKED[:12] + "-")
    live.script(stale_identity="beef-1")
    assert live.generate()["meta_info"]["weight_version"] == "beef-1"


def test_garbage_is_wrong_but_plausible(live: Sim) -> None:
    right = live.generate("g", 20)
    live.script(garbage=True)
    wrong = live.generate("g", 20)
    assert wrong["output_ids"] != right["output_ids"]
    assert wrong == {**live.generate("g", 20), "meta_info": wrong["meta_info"]}
    assert len(wrong["text"].split()) == 20


def test_mask_bug_spoils_from_the_fourth_token_and_commits_less(live: Sim) -> None:
    right = live.generate("m", 100)
    live.script(mask_bug=True)
    wrong = live.generate("m", 100)
    assert wrong["output_ids"][:3] == right["output_ids"][:3]
    assert wrong["output_ids"][3:20] != right["output_ids"][3:20]
    assert wrong["meta_info"]["spec_accept_length"] < 2


def test_mask_bug_spares_a_plain_profile(tmp_path: Path) -> None:
    with engine(tmp_path) as sim:
        right = sim.generate("m", 30)["output_ids"]
        sim.script(mask_bug=True)
        assert sim.generate("m", 30)["output_ids"] == right


@pytest.mark.parametrize("part", ["health", "generate", "all"])
def test_hang(live: Sim, part: str) -> None:
    live.script(hang=part)
    for name, path, body in (("health", "/health", None), ("generate", "/generate", {"text": "a"})):
        if part in (name, "all"):
            with pytest.raises(TimeoutError):
                live.ask(path, body, timeout=0.2)
        else:
            assert live.ask(path, body).status == 200


@pytest.mark.parametrize("part", ["health", "generate", "all"])
def test_status_503(live: Sim, part: str) -> None:
    live.script(status_503=part)
    health = 503 if part in ("health", "all") else 200
    generate = 503 if part in ("generate", "all") else 200
    assert live.health() == health
    assert live.ask("/generate", {"text": "a"}).status == generate


def test_early_eos_despite_ignore_eos(live: Sim) -> None:
    live.script(early_eos=3)
    answer = live.generate(tokens=50, sampling={"ignore_eos": True})
    assert len(answer["output_ids"]) == 3
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": 2}


def test_chunk_tokens(live: Sim) -> None:
    one_by_one = live.ask("/generate", STREAM).events()
    live.script(chunk_tokens=4)
    events = live.ask("/generate", STREAM).events()
    assert len(events) < len(one_by_one)
    assert events[-2]["output_ids"] == one_by_one[-2]["output_ids"]


def test_missing_usage(live: Sim) -> None:
    body = {"prompt": "a", "max_tokens": 3, "stream_options": {"include_usage": True}}
    live.script(missing_usage=True)
    assert "usage" not in live.ask("/v1/completions", body).json()
    events = live.ask("/v1/completions", {**body, "stream": True}).events()
    assert events[-1] == "DONE"
    assert all(e["choices"] for e in events[:-1])


def test_truncate_stream(live: Sim) -> None:
    live.script(truncate_stream=2)
    with pytest.raises(http.client.IncompleteRead) as cut:
        live.ask("/generate", STREAM)
    assert cut.value.partial.count(b"data: ") == 2
    assert b"[DONE]" not in cut.value.partial
    assert live.ask("/generate", {"text": "whole"}).status == 200


def test_health_s_and_step_ms_take_time(live: Sim) -> None:
    live.script(health_s=0.2, step_ms=10)
    began = time.monotonic()
    assert live.health() == 200
    assert time.monotonic() - began >= 0.2
    assert live.generate(tokens=16)["meta_info"]["e2e_latency"] >= 0.05


def test_batch_ms_makes_the_tree_lose_when_crowded(tmp_path: Path) -> None:
    """The crossover that the tool is to find: a wide window pays alone and costs in company."""
    flags = ["--speculative-algorithm", "DDTREE", "--speculative-eagle-topk", "4"]
    flags += ["--speculative-draft-model-path", str(draft_dir(tmp_path))]
    flags += ["--speculative-num-draft-tokens", "9"]
    script = "step_ms=4,batch_ms=0.5"

    def latency(sim: Sim, crowd: int) -> float:
        params = {"temperature": 0, "max_new_tokens": 24}
        texts = [f"t{i}" for i in range(crowd)]
        answers = sim.ask("/generate", {"text": texts, "sampling_params": params}).json()
        return max(float(a["meta_info"]["e2e_latency"]) for a in answers)

    with engine(tmp_path, sim=script) as plain, engine(tmp_path, *flags, sim=script) as tree:
        assert latency(tree, 1) < latency(plain, 1)
        assert latency(tree, 16) > latency(plain, 16)


def test_log_secret(tmp_path: Path) -> None:
    with engine(tmp_path, "--api-key", KEY, sim="log_secret") as sim:
        assert f"'api_key': '{KEY}'" in sim.log


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_leak_child_outlives_the_server(tmp_path: Path, how: signal.Signals) -> None:
    pid_file = tmp_path / "leak.pid"
    with engine(tmp_path, sim=f"leak_child={pid_file}") as sim:
        wait_for(lambda: pid_file.exists() and pid_file.read_text())
        pid = int(pid_file.read_text())
        sim.process.send_signal(how)
        sim.process.wait(5)
    try:
        assert os.getsid(pid) == pid
    finally:
        os.kill(pid, signal.SIGKILL)


def test_ignore_sigterm(tmp_path: Path) -> None:
    with engine(tmp_path, sim="ignore_sigterm") as sim:
        sim.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "SIGTERM received and ignored" in sim.log)
        assert sim.health() == 200
        sim.script(ignore_sigterm=False)
        sim.process.send_signal(signal.SIGTERM)
        assert sim.process.wait(3) == 0


def test_slow_stop_keeps_the_port_and_answers_503(tmp_path: Path) -> None:
    with engine(tmp_path, sim="slow_stop_s=0.5") as sim:
        began = time.monotonic()
        sim.process.send_signal(signal.SIGTERM)
        wait_for(lambda: sim.health() == 503)
        assert sim.process.wait(3) == 0
        assert time.monotonic() - began >= 0.5


def test_term_while_the_port_is_late(tmp_path: Path) -> None:
    with engine(tmp_path, sim="port_late_s=60", ready=False) as sim:
        wait_for(lambda: "Load weight begin" in sim.log)
        sim.process.send_signal(signal.SIGTERM)
        assert sim.process.wait(3) == 0
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", sim.port), timeout=1)


def test_the_readme_lists_every_name(tmp_path: Path) -> None:
    code = "from sglang._sim_faults import KNOBS; print(*KNOBS)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), stdout=subprocess.PIPE, check=True
    )
    rows = re.findall(r"^\| (`.*?) \|", (ENGINE / "README.md").read_text("utf-8"), re.M)
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == set(done.stdout.decode().split())
