"""Other tools' results: taken as what they are, never as valid numbers.

The records have the fields that sglang 0.5.23 (`sglang.benchmark.serving`) and aiperf 0.13.0
(`MetricRecordInfo`) write; their numbers are made up.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddops.bench.importers import Source, parse
from ddops.errors import UsageError
from ddops.ledger import Status
from tests.unit.cli_support import runner

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
SGLANG: dict[str, object] = {
    "tag": None,
    "backend": "sglang-oai-chat",
    "dataset_name": "random",
    "request_rate": float("inf"),
    "max_concurrency": 16,
    "random_input_len": 128,
    "server_info": {"version": "0.5.23", "tp_size": 8, "api_key": "sk-1234567890abcdefgh"},
    "duration": 20.0,
    "completed": 3,
    "total_output_tokens": 600,
    "output_throughput": 30.0,
    "request_throughput": 0.15,
    "median_ttft_ms": 55.5,
    "p99_ttft_ms": 80.0,
    "median_tpot_ms": 9.5,
    "p99_tpot_ms": 12.0,
    "concurrency": 15.5,
    "accept_length": 3.3,
    "input_lens": [128, 128, 128, 128],
    "output_lens": [200, 200, 200, 0],
    "ttfts": [0.05, 0.0, 0.06, 0.0],
    "itls": [[0.01, 0.01], [0.01], [], []],
    "errors": ["", "", "", "Connection reset"],
}


def aiperf(n: int, phase: str = "profiling", **more: object) -> dict[str, object]:
    start = 1_772_366_400_000_000_000 + n * 1_000_000_000
    metrics = {
        "time_to_first_token": {"value": 50.0 + n, "unit": "ms"},
        "request_latency": {"value": 900.0, "unit": "ms"},
        "output_sequence_length": {"value": 100, "unit": "tokens"},
        "input_sequence_length": {"value": 20, "unit": "tokens"},
    }
    meta = {
        "session_num": n,
        "conversation_id": f"c{n % 4}",
        "request_start_ns": start,
        "request_end_ns": start + 900_000_000,
        "credit_issued_ns": start - 1_000,
        "benchmark_phase": phase,
        "was_cancelled": False,
    }
    return {"metadata": meta, "metrics": metrics, "error": None, **more}


def lines(*records: object) -> str:
    return "".join(json.dumps(r) + "\n" for r in records)


def test_sglang_lines_are_runs() -> None:
    one, two = parse(Source.SGLANG, lines(SGLANG, {**SGLANG, "backend": "sglang"}), "r.jsonl", AT)
    run = one.run
    assert (run.status, run.launch, run.ended) == (Status.UNBOUND, None, AT)
    assert (run.requests, run.failed, run.output_tokens, run.window_ms) == (4, 1, 600, 20_000.0)
    assert (run.output_tps, run.ttft_p50_ms, run.c_eff) == (30.0, 55.5, 15.5)
    assert run.ttft_p99_ms is None, "three requests carry no p99, whatever the tool printed"
    assert "may be too high" in str(run.metrics["tokens_from"]), "the tool may assume lengths"
    assert "own count" in str(two.run.metrics["tokens_from"])
    assert "commit_tokens" not in run.metrics and run.commit_tokens is None
    assert one.sha != two.sha


def test_of_server_info_only_named_entries_are_kept() -> None:
    [one] = parse(Source.SGLANG, lines(SGLANG), "r.jsonl", AT)
    assert one.cell.vary["server"] == {"version": "0.5.23", "tp_size": 8}
    assert "sk-1234" not in repr(one)


def test_sglang_zero_ttft_is_not_measured() -> None:
    """0.0 stands for "unmeasured" in that file."""
    [one] = parse(Source.SGLANG, lines(SGLANG), "r.jsonl", AT)
    assert [s.outcome for s in one.samples] == ["ok", "ok", "ok", "failed"]
    assert [(s.detail or {}).get("ttft_ms") for s in one.samples] == [50.0, None, 60.0, None]


def test_aiperf_records_are_one_run() -> None:
    records = [aiperf(0, "warmup"), *(aiperf(n) for n in range(1, 9))]
    records.append(aiperf(9, error={"code": 503, "message": "busy"}, metrics={}))
    [one] = parse(Source.AIPERF, lines(*records), "profile_export.jsonl", AT)
    run = one.run
    assert (run.status, run.requests, run.failed, run.output_tokens) == (Status.UNBOUND, 9, 1, 800)
    assert run.ttft_p50_ms == pytest.approx(54.5) and run.ttft_p99_ms is None
    assert run.window_ms == pytest.approx(8900)
    assert run.output_tps == pytest.approx(800 / 8.9)
    first = one.samples[0]
    assert (first.phase, first.sent_ns, first.scheduled_ns) == ("warmup", 0, -1000)
    assert first.first_token_ns == 50_000_000
    assert one.samples[-1].outcome == "failed" and "busy" in one.samples[-1].reason


@pytest.mark.parametrize("source", list(Source))
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("{", "f:1 is not JSON"),
        ("[]", "no JSON object"),
        ("[" * 100_000, "f:1"),
        ('{"a": 1}', "f:1"),
        ('{"duration": "x", "metadata": 3}', "f:1"),
        ('{"duration": -1, "metadata": {}, "metrics": {}}', "f:1"),
        ('{"duration": NaN, "metadata": {"request_start_ns": NaN}}', "f:1"),
    ],
)
def test_bad_files_are_named_with_their_line(source: Source, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse(source, text, "f", AT)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(max_size=5), x, max_size=4),
    max_leaves=12,
)


SLOW = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)  # a busy machine


@SLOW
@given(st.dictionaries(st.sampled_from(sorted(SGLANG)), JSON))
def test_any_json_is_a_run_or_a_usage_error(changes: dict[str, object]) -> None:
    try:
        [one] = parse(Source.SGLANG, json.dumps({**SGLANG, **changes}), "f", AT)
    except UsageError:
        return
    assert one.run.status is Status.UNBOUND


@SLOW
@given(st.dictionaries(st.sampled_from(["metadata", "metrics", "error"]), JSON), JSON)
def test_any_json_is_an_aiperf_run_or_a_usage_error(
    changes: dict[str, object], value: object
) -> None:
    record = aiperf(1)
    metrics = record["metrics"]
    assert isinstance(metrics, dict)
    metrics["time_to_first_token"] = value
    try:
        [one] = parse(Source.AIPERF, json.dumps({**record, **changes}), "f", AT)
    except UsageError:
        return
    assert one.run.status is Status.UNBOUND


def test_import_as_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    go = runner(tmp_path, monkeypatch, capfd)
    assert go("init").code == 0
    Path("r.jsonl").write_text(lines(SGLANG))
    Path("a.jsonl").write_text(lines(*(aiperf(n) for n in range(9))))
    done = go("ledger", "import", "sglang", "r.jsonl", "--json").document["data"]
    assert done[0]["samples"] == 4 and done[0]["run"]
    again = go("ledger", "import", "sglang", "r.jsonl")
    assert again.code == 0 and "already there" in again.out
    assert go("ledger", "import", "aiperf", "a.jsonl").code == 0
    shown = go("ledger", "show", done[0]["run"], "--json").document["data"]
    assert shown["valid"] is False and shown["status"] == "unbound"
    assert go("ledger", "query", "SELECT * FROM valid_run").out == ""
    assert go("ledger", "verify").code == 0
    Path("b.jsonl").write_bytes(b"\xff\xfe")
    for wrong in ("b.jsonl", "missing.jsonl", "."):
        assert go("ledger", "import", "sglang", wrong).code == 2
    # One bad line: nothing of the file, nor of the others of the call, is taken.
    rows = go("ledger", "query", "SELECT count(*) AS n FROM run", "--json").document["data"]
    Path("c.jsonl").write_text(lines({**SGLANG, "tag": "new"}) + "{")
    assert go("ledger", "import", "sglang", "c.jsonl").code == 2
    now = go("ledger", "query", "SELECT count(*) AS n FROM run", "--json").document["data"]
    assert now == rows == [{"n": 2}]
