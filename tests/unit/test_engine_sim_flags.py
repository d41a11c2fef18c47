"""The stand-in's command line: SGLang 0.5.23's options, abbreviations and exit statuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_engine_sim_support import (
    KEY,
    argv,
    draft_dir,
    engine,
    environment,
    run_to_end,
)

#: Parses each argv of a JSON list in one process; the status and one value of each.
PARSE = """
import contextlib, io, json, sys
from sglang.srt.server_args import prepare_server_args
rows = []
for argv, name in json.load(sys.stdin):
    err = io.StringIO()
    try:
        with contextlib.redirect_stderr(err):
            args = prepare_server_args(["--model-path", "m", *argv])
        rows.append([0, getattr(args, name)])
    except SystemExit as end:
        rows.append([end.code, err.getvalue()])
print(json.dumps(rows))
"""
GOOD = [
    ("--tp 8", "tp_size", 8),
    ("--tensor-parallel-size 4", "tp_size", 4),
    ("--ep 2", "ep_size", 2),
    ("--served k26", "served_model_name", "k26"),
    ("--cuda-graph-max-bs-d 64", "cuda_graph_max_bs_decode", 64),
    ("--cuda-graph-bs-decode 1 2 4", "cuda_graph_bs_decode", [1, 2, 4]),
    ("--max-total-tokens 4k", "max_total_tokens", 4000),
    ("--context-length 8Ki", "context_length", 8192),
    ("--disable-cuda-graph", "disable_cuda_graph", True),
    ("--speculative-draft-model d", "speculative_draft_model_path", "d"),
    ("--speculative-dflash-block-size 8", "speculative_dflash_block_size", 8),
    ("--kv-cache-dtype fp8_e4m3", "kv_cache_dtype", "fp8_e4m3"),
    ("--attention-backend triton", "attention_backend", "triton"),
    ("--mem-fraction-static 0.85", "mem_fraction_static", 0.85),
    ("--no-lora-strict-loading", "lora_strict_loading", False),
    ("--weight-version abc-1", "weight_version", "abc-1"),
    ('--cuda-graph-config {"decode":{"max_bs":8}}', "cuda_graph_config", {"decode": {"max_bs": 8}}),
]
BAD = [
    ("--cuda-graph-max-bs 64", "ambiguous option: --cuda-graph-max-bs"),
    ("--cuda-graph-bs 1", "ambiguous option: --cuda-graph-bs"),
    ("--pp 2", "ambiguous option: --pp"),
    ("--speculative-ddtree-budget 8", "unrecognized arguments: --speculative-ddtree-budget"),
    ("--speculative-dflash-draft-window-size 8", "unrecognized arguments"),
    ("--tp-size eight", "argument --tp-size/--tensor-parallel-size: invalid int value: 'eight'"),
    ("--attention-backend magic", "invalid choice: 'magic'"),
    ("--max-total-tokens 1.5Ki", "no decimals"),
    ('--cuda-graph-config {"decode":{"oops":8}}', "unknown key 'oops'"),
    ("--port", "expected one argument"),
]


@pytest.fixture(scope="module")
def parsed() -> list[list[object]]:
    cases = [[text.split(" "), name] for text, name, _ in GOOD]
    cases += [[text.split(" "), "port"] for text, _ in BAD]
    done = subprocess.run(
        [sys.executable, "-c", PARSE],
        input=json.dumps(cases).encode(),
        env=environment(Path("/nonexistent")),
        stdout=subprocess.PIPE,
        check=True,
    )
    rows: list[list[object]] = json.loads(done.stdout.splitlines()[-1])
    return rows


@pytest.mark.parametrize("number", range(len(GOOD)), ids=[g[0] for g in GOOD])
def test_option_is_taken(parsed: list[list[object]], number: int) -> None:
    assert parsed[number] == [0, GOOD[number][2]]


@pytest.mark.parametrize("number", range(len(BAD)), ids=[b[0] for b in BAD])
def test_option_is_refused_with_status_2(parsed: list[list[object]], number: int) -> None:
    status, text = parsed[len(GOOD) + number]
    assert status == 2
    assert BAD[number][1] in str(text)


def test_unknown_flag_ends_the_start_with_2(tmp_path: Path) -> None:
    status, text = run_to_end(tmp_path, "--no-such-flag")
    assert status == 2
    assert "sglang serve: error: unrecognized arguments: --no-such-flag" in text


def test_missing_model_ends_with_a_traceback_and_1(tmp_path: Path) -> None:
    status, text = run_to_end(tmp_path, "--model-path", "/nowhere/model")
    assert status == 1
    assert "Traceback (most recent call last)" in text
    assert "OSError: Can't load the configuration of '/nowhere/model'" in text


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("--speculative-algorithm MAGIC", "Unknown speculative algorithm name: MAGIC"),
        ("--speculative-algorithm DFLASH", "requires setting --speculative-draft-model-path"),
        ("--speculative-algorithm DDTREE", "requires setting --speculative-draft-model-path"),
        ("--config nofile.yaml", "Config file not found"),
    ],
)
def test_what_upstream_dies_of_is_1(tmp_path: Path, flags: str, why: str) -> None:
    status, text = run_to_end(tmp_path, *flags.split())
    assert status == 1
    assert f"ValueError: {why}" in text or why in text.splitlines()[-1]


@pytest.mark.parametrize("body", ['{"api-key": "%s", "tp-size": 2}', "api-key: %s\ntp_size: 2\n"])
def test_config_file_comes_before_the_flags(tmp_path: Path, body: str) -> None:
    config = tmp_path / "secret-args.yaml"
    config.write_text((body % KEY).replace("tp_size", "tp-size"))
    with engine(tmp_path, "--config", str(config), "--tp-size", "4") as sim:
        assert sim.ask("/server_info").status == 401
        info = sim.ask("/server_info", headers={"Authorization": f"Bearer {KEY}"}).json()
    assert (info["tp_size"], info["api_key"]) == (4, KEY)


def test_port_taken_is_1(tmp_path: Path) -> None:
    with engine(tmp_path) as sim:
        done = subprocess.run(
            argv(tmp_path, sim.port),
            env=environment(tmp_path),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=10,
            check=False,
        )
    assert done.returncode == 1
    assert b"error while attempting to bind on address" in done.stdout


def test_ddtree_sizes_its_window_from_the_environment(tmp_path: Path) -> None:
    flags = ["--speculative-algorithm", "DDTREE", "--speculative-draft-model-path"]
    env = {"DDTREE_BUDGET": "48", "DDTREE_TOPK": "4"}
    with engine(tmp_path, *flags, str(draft_dir(tmp_path)), env=env) as sim:
        info = sim.ask("/server_info").json()
    assert info["speculative_num_draft_tokens"] == 49
    assert info["speculative_eagle_topk"] == 4
    assert info["max_running_requests"] == 48
