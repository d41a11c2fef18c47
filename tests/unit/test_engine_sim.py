"""The stand-in's healthy answers: shapes, determinism, streams, golden prompts, metrics."""

from __future__ import annotations

import http.client
import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_engine_sim_support import KEY, Sim, draft_dir, engine, free_port, wait_for

VERSION = "0123456789ab-feed00000001"
DDTREE = {"DDTREE_BUDGET": "8", "DDTREE_TOPK": "4"}


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    home = tmp_path_factory.mktemp("plain")
    with engine(home, "--weight-version", VERSION, "--enable-metrics") as one:
        yield one


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    home = tmp_path_factory.mktemp("tree")
    flags = ["--speculative-algorithm", "DDTREE", "--enable-metrics"]
    flags += ["--speculative-draft-model-path", str(draft_dir(home))]
    with engine(home, *flags, env=DDTREE) as one:
        yield one


def test_listens_fast_and_says_what_it_is(tmp_path: Path) -> None:
    with engine(tmp_path) as one:
        log = one.log
    for line in (
        "stands in for sglang 0.5.23, no model runs",
        "Load weight begin",
        "Loading safetensors checkpoint shards:  25% Completed | 1/4",
        "The server is fired up and ready to roll!",
    ):
        assert line in log
    stamped = [ln for ln in log.splitlines() if ln.startswith("[")]
    assert all(" sim] " in line for line in stamped)


def test_identity_everywhere(sim: Sim) -> None:
    info, model = sim.ask("/server_info").json(), sim.ask("/model_info").json()
    assert info["ddops_simulated"] is True
    assert info["version"] == "0.5.23"
    assert info["weight_version"] == model["weight_version"] == VERSION
    assert sim.generate()["meta_info"]["weight_version"] == VERSION
    assert info["port"] == sim.port
    assert info["internal_states"][0]["effective_max_running_requests_per_dp"] == 256
    assert "--weight-version" in info["launch_command"]
    assert model["is_generation"] is True
    assert model["architectures"] == ["Qwen3ForCausalLM"]
    assert sim.ask("/get_server_info").json()["weight_version"] == VERSION
    assert sim.ask("/get_model_info").json() == model


def test_small_endpoints(sim: Sim) -> None:
    name = sim.ask("/v1/models").json()["data"][0]["id"]
    assert sim.ask(f"/v1/models/{name}").json()["max_model_len"] == 4096
    assert sim.ask("/v1/models/other").status == 404
    assert sim.ask("/health_generate").status == 200
    assert sim.ask("/ready").status == 200
    assert sim.ask("/flush_cache", {}).body.startswith(b"Cache flushed.")
    assert sim.ask("/nothing").json() == {"detail": "Not Found"}
    assert sim.ask("/generate").status == 405


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {}),
        ("/generate", {"text": "a", "input_ids": [1]}),
        ("/generate", {"input_ids": [-1]}),
        ("/generate", {"input_ids": [3] * 5000}),
        ("/generate", {"text": "a", "sampling_params": {"temperature": -1}}),
        ("/generate", ["no", "object"]),
        ("/v1/completions", {"prompt": None}),
        ("/v1/chat/completions", {"messages": []}),
    ],
)
def test_bad_requests_are_400(sim: Sim, path: str, body: Any) -> None:
    answer = sim.ask(path, body)
    assert answer.status == 400
    assert "message" in str(answer.json())


def test_native_shape(sim: Sim) -> None:
    answer = sim.generate(tokens=5, rid="mine")
    meta = answer["meta_info"]
    assert meta["id"] == "mine"
    assert len(answer["output_ids"]) == meta["completion_tokens"] == 5
    assert meta["finish_reason"] == {"type": "length", "length": 5}
    assert meta["prompt_tokens"] > 0
    assert meta["e2e_latency"] >= 0
    assert "spec_verify_ct" not in meta


def test_greedy_is_a_pure_function_of_the_ids(sim: Sim, tree: Sim) -> None:
    whole = sim.generate("same", 300, sampling={"ignore_eos": True})["output_ids"]
    assert sim.generate("same", 300, sampling={"ignore_eos": True})["output_ids"] == whole
    assert tree.generate("same", 300, sampling={"ignore_eos": True})["output_ids"] == whole
    assert sim.generate("other", 300)["output_ids"] != whole
    ids = {"temperature": 0, "max_new_tokens": 10, "ignore_eos": True}
    prompt = [5, 6, 7]
    first = sim.ask("/generate", {"input_ids": prompt, "sampling_params": ids}).json()
    half = {"input_ids": prompt + first["output_ids"][:4], "sampling_params": ids}
    assert sim.ask("/generate", half).json()["output_ids"][:6] == first["output_ids"][4:]


def test_sampling_follows_the_seed(sim: Sim) -> None:
    def at(seed: int, temperature: float = 0.8) -> Any:
        sampling = {"temperature": temperature, "sampling_seed": seed}
        return sim.generate("same", 12, sampling=sampling)["output_ids"]

    assert at(1) == at(1)
    assert at(1) != at(2)
    assert at(1, 0) == at(2, 0)


def test_ends_by_itself_by_stop_text_and_by_stop_token(sim: Sim) -> None:
    long = sim.generate("end", 4000)
    assert 256 < len(long["output_ids"]) < 1026
    assert long["meta_info"]["finish_reason"] == {"type": "stop", "matched": 2}
    some = sim.generate("end", 12)
    word = some["text"].split()[5]
    cut = sim.generate("end", 12, sampling={"stop": [word]})
    assert cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": word}
    assert some["text"].startswith(cut["text"])
    assert word not in cut["text"]
    token = some["output_ids"][3]
    ended = sim.generate("end", 12, sampling={"stop_token_ids": [token]})
    assert ended["output_ids"] == some["output_ids"][: some["output_ids"].index(token) + 1]


def test_batches_keep_their_order(sim: Sim) -> None:
    params = {"temperature": 0, "max_new_tokens": 4}
    both = sim.ask("/generate", {"text": ["one", "two"], "sampling_params": params}).json()
    assert [b["output_ids"] for b in both] == [
        sim.generate(t, 4)["output_ids"] for t in ("one", "two")
    ]
    streamed = {"text": ["one", "two"], "sampling_params": params, "stream": True}
    last = {e["index"]: e for e in sim.ask("/generate", streamed).events()[:-1]}
    assert [last[i]["output_ids"] for i in (0, 1)] == [b["output_ids"] for b in both]
    assert len(sim.ask("/generate", {"text": "a", "sampling_params": {"n": 3}}).json()) == 3


def test_native_stream_is_cumulative(sim: Sim, tree: Sim) -> None:
    body = {"text": "flow", "sampling_params": {"temperature": 0, "max_new_tokens": 40}}
    whole = sim.generate("flow", 40)
    for one in (sim, tree):
        *events, end = one.ask("/generate", {**body, "stream": True}).events()
        assert end == "DONE"
        counts = [e["meta_info"]["completion_tokens"] for e in events]
        assert counts == sorted(set(counts))
        assert all(len(e["output_ids"]) == n for e, n in zip(events, counts, strict=True))
        assert all(whole["text"].startswith(e["text"]) for e in events)
        assert events[-1]["output_ids"] == whole["output_ids"]
        assert events[-1]["meta_info"]["finish_reason"]["type"] == "length"
        assert (len(events) == 40) == (one is sim)


def test_speculative_numbers_add_up(tree: Sim) -> None:
    meta = tree.generate("numbers", 200)["meta_info"]
    made, calls = meta["completion_tokens"], meta["spec_verify_ct"]
    assert meta["spec_accept_length"] == pytest.approx(made / calls)
    assert meta["spec_num_correct_drafts"] == made - 1 - calls
    assert meta["spec_num_proposed_drafts"] == calls * 8
    assert sum(meta["spec_correct_drafts_histogram"]) == calls
    assert 4 < meta["spec_accept_length"] < 5.2
    state = tree.ask("/server_info").json()["internal_states"][0]
    assert state["avg_spec_accept_length"] > 4


def test_chain_commits_less_than_the_tree(tmp_path: Path) -> None:
    flags = ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path"]
    with engine(tmp_path, *flags, str(draft_dir(tmp_path))) as chain:
        meta = chain.generate("numbers", 200)["meta_info"]
        assert 1.8 < meta["spec_accept_length"] < 2.3
        chain.script(commit=3.5)
        assert 3.2 < chain.generate("numbers", 200)["meta_info"]["spec_accept_length"] < 3.8


def test_cached_tokens_and_flush(sim: Sim) -> None:
    def cached() -> Any:
        return sim.generate("remember " * 20, 2)["meta_info"]["cached_tokens"]

    assert cached() == 0
    assert cached() == len("remember " * 20) // 4 - 1
    sim.ask("/flush_cache", {})
    assert cached() == 0


def test_completions(sim: Sim) -> None:
    body = {"model": "m", "prompt": "hi", "temperature": 0, "max_tokens": 6}
    whole = sim.ask("/v1/completions", body).json()
    assert whole["object"] == "text_completion"
    assert whole["usage"]["completion_tokens"] == 6
    assert whole["metadata"] == {"weight_version": VERSION}
    assert whole["choices"][0]["finish_reason"] == "length"
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *events, end = sim.ask("/v1/completions", {**body, **options}).events()
    assert end == "DONE"
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == whole["usage"]
    assert "".join(e["choices"][0]["text"] for e in events[:-1]) == whole["choices"][0]["text"]
    assert sim.generate("hi", 6)["text"] == whole["choices"][0]["text"]
    assert sim.ask("/v1/completions", {"prompt": "hi"}).json()["usage"]["completion_tokens"] == 16
    two = sim.ask("/v1/completions", {**body, "prompt": [[3, 4], [5, 6]]}).json()
    assert [c["index"] for c in two["choices"]] == [0, 1]
    assert sim.ask("/v1/completions", body, {"Content-Type": "text/plain"}).status == 400


def test_chat(sim: Sim) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    body = {"model": "m", "messages": messages, "temperature": 0, "max_completion_tokens": 6}
    whole = sim.ask("/v1/chat/completions", body).json()
    message = whole["choices"][0]["message"]
    assert message["role"] == "assistant"
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *events, _ = sim.ask("/v1/chat/completions", {**body, **options}).events()
    deltas = [e["choices"][0] for e in events if e["choices"]]
    assert deltas[0]["delta"]["role"] == "assistant"
    assert "".join(d["delta"]["content"] or "" for d in deltas) == message["content"]
    assert [d["finish_reason"] for d in deltas if d["finish_reason"]] == ["length"]
    assert events[-1]["usage"]["completion_tokens"] == 6
    bare = sim.ask("/v1/chat/completions", {**body, "stream": True}).events()
    assert all(e == "DONE" or e["choices"] for e in bare)


def test_logprobs(sim: Sim) -> None:
    meta = sim.generate("lp", 3, return_logprob=True, top_logprobs_num=2)["meta_info"]
    assert len(meta["output_token_logprobs"]) == 3
    for best, second in meta["output_top_logprobs"]:
        assert best[0] > second[0]


def test_metrics_count_what_was_made(sim: Sim, tree: Sim) -> None:
    def value(one: Sim, name: str) -> float:
        text = one.ask("/metrics").body.decode()
        return sum(float(v) for v in re.findall(rf"^sglang:{name}\{{[^}}]*}} (\S+)$", text, re.M))

    before = value(sim, "generation_tokens_total")
    sim.generate("count", 9)
    assert value(sim, "generation_tokens_total") == before + 9
    assert value(sim, "num_running_reqs") == 0
    assert value(sim, "gen_throughput") > 0
    calls = value(tree, "spec_verify_calls_total")
    meta = tree.generate("count", 50)["meta_info"]
    assert value(tree, "spec_verify_calls_total") == calls + meta["spec_verify_ct"]
    assert value(tree, "spec_accept_length") > 1
    text = sim.ask("/metrics").body.decode()
    assert 'sglang:e2e_request_latency_seconds_bucket{model_name="' in text
    assert "spec_accept_length" not in text


def test_metrics_only_when_asked_for(tmp_path: Path) -> None:
    with engine(tmp_path) as one:
        assert one.ask("/metrics").status == 404


def test_keys(tmp_path: Path) -> None:
    flags = ["--api-key", KEY, "--admin-api-key", "admin-0001", "--enable-metrics"]
    with engine(tmp_path, *flags) as one:
        bearer = {"Authorization": f"Bearer {KEY}"}
        assert one.ask("/model_info").json() == {"error": "Unauthorized"}
        assert one.ask("/server_info", headers=bearer).json()["api_key"] == KEY
        assert one.ask("/generate", {"text": "a"}, {"Authorization": "Bearer x"}).status == 401
        assert one.ask("/generate", {"text": "a"}, bearer).status == 200
        assert one.ask("/flush_cache", {}, bearer).status == 401
        assert one.ask("/flush_cache", {}, {"Authorization": "Bearer admin-0001"}).status == 200
        assert one.ask("/metrics").status == 200
        assert KEY not in one.log


@pytest.mark.parametrize("place", ["inside", "beside", "told"])
def test_golden_prompts_answer_as_recorded(tmp_path: Path, place: str) -> None:
    prompt = {"id": "p1", "text": "known", "input_ids": [11, 12], "output_ids": [99, 2, 55, 7]}
    golden = {"schema": "ddops.golden/1", "prompts": [{**prompt, "min_gap": 0.5}]}
    models = tmp_path / "models"
    (models / "tiny").mkdir(parents=True)
    at = {"inside": models / "tiny", "beside": models, "told": tmp_path}[place] / "golden.json"
    at.write_text(json.dumps(golden))
    with engine(tmp_path, sim=f"golden={at}" if place == "told" else "") as one:
        params = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}
        answer = one.ask("/generate", {"input_ids": [11, 12], "sampling_params": params}).json()
        assert answer["output_ids"][:4] == prompt["output_ids"]
        by_text = one.generate("known", 6, sampling={"ignore_eos": True})
        assert by_text["output_ids"] == answer["output_ids"]
        assert by_text["meta_info"]["prompt_tokens"] == 2
        one.script(garbage=True)
        assert one.generate("known", 4)["output_ids"] != prompt["output_ids"]


def test_keep_alive_and_pipelined_requests(sim: Sim) -> None:
    client = http.client.HTTPConnection("127.0.0.1", sim.port, timeout=5)
    try:
        client.connect()
        first = client.sock
        for _ in range(3):
            client.request("GET", "/health")
            assert client.getresponse().read() == b""
        assert client.sock is first
        first.sendall(b"GET /health HTTP/1.1\r\n\r\n" * 2)
        data = b""
        while data.count(b"200 OK") < 2:
            data += first.recv(4096)
        first.sendall(b"nonsense\r\n\r\n")
        assert b"400 Bad Request" in first.recv(4096)
    finally:
        client.close()


def test_chunked_request_body(sim: Sim) -> None:
    client = http.client.HTTPConnection("127.0.0.1", sim.port, timeout=5)
    try:
        parts = iter([b'{"text": "a", ', b'"sampling_params": {"max_new_tokens": 2}}'])
        client.request("POST", "/generate", parts, {"Content-Type": "application/json"})
        assert len(json.loads(client.getresponse().read())["output_ids"]) == 2
    finally:
        client.close()


def test_many_streams_side_by_side(tmp_path: Path) -> None:
    with engine(tmp_path, "--enable-metrics", sim="step_ms=5") as one:
        began = time.monotonic()

        def stream(number: int) -> int:
            params = {"temperature": 0, "max_new_tokens": 20}
            body = {"text": f"n{number}", "stream": True, "sampling_params": params}
            return len(one.ask("/generate", body, timeout=10).events())

        with ThreadPoolExecutor(80) as pool:
            assert set(pool.map(stream, range(80))) == {21}
        assert time.monotonic() - began < 5


def test_queue_beyond_max_running_requests(tmp_path: Path) -> None:
    flags = ["--max-running-requests", "1", "--enable-metrics"]
    with engine(tmp_path, *flags, sim="step_ms=20") as one:
        threads = [threading.Thread(target=one.generate, args=(f"q{i}", 10)) for i in range(3)]
        for thread in threads:
            thread.start()
        queued = re.compile(rb"num_queue_reqs\{[^}]*} 2.0")
        wait_for(lambda: queued.search(one.ask("/metrics").body))
        for thread in threads:
            thread.join()


def test_a_client_that_leaves_frees_its_place(tmp_path: Path) -> None:
    with engine(tmp_path, "--enable-metrics", sim="step_ms=10") as one:
        client = http.client.HTTPConnection("127.0.0.1", one.port, timeout=5)
        params = {"temperature": 0, "max_new_tokens": 4000, "ignore_eos": True}
        body = json.dumps({"text": "gone", "stream": True, "sampling_params": params})
        client.request("POST", "/generate", body, {"Content-Type": "application/json"})
        client.getresponse().read(100)
        client.close()
        aborted = re.compile(rb"num_aborted_requests_total\{[^}]*} 1.0")
        wait_for(lambda: aborted.search(one.ask("/metrics").body))
        assert re.search(rb"num_running_reqs\{[^}]*} 0.0", one.ask("/metrics").body)


def test_term_drains_and_ends_with_0(tmp_path: Path) -> None:
    with engine(tmp_path, sim="step_ms=10") as one, ThreadPoolExecutor(1) as pool:
        running = pool.submit(one.generate, "drain", 30)
        time.sleep(0.1)
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(5) == 0
        assert len(running.result()["output_ids"]) == 30


def test_ranks_wait_for_each_other_and_others_than_0_answer_health_only(tmp_path: Path) -> None:
    flags = ["--nnodes", "2", "--dist-init-addr", f"127.0.0.1:{free_port()}", "--node-rank"]
    for name in ("zero", "one"):
        (tmp_path / name).mkdir()
    with engine(tmp_path / "zero", *flags, "0", ready=False) as zero:
        wait_for(lambda: zero.health() == 503)
        with engine(tmp_path / "one", *flags, "1") as one:
            zero.wait_ready()
            assert one.ask("/server_info").status == 404
            assert zero.ask("/server_info").status == 200
            one.process.kill()
            # A collective does not end without a rank, and the others give up.
            assert zero.process.wait(20) == 1
