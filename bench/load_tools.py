"""How each load generator is called, and from where its numbers are read. Used by load_peers.py.

All stream chat answers from the mock at a fixed concurrency, twice as many requests as streams.
`cpu_of` says what `cpu_s` covers: the load alone, the run without imports, or the whole program.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from load_accuracy import SIDE, plan_for

from ddops.bench.answer import parse_load
from ddops.bench.figures import ttft_ns
from ddops.bench.stats import percentile

#: `ttfts`: of each request, ms, as the tool published it.
Report = dict[str, Any]
Tool = Callable[[int], Report]
LIMIT_S = 120

#: sglang takes 8 s to import. So one process imports it, and each run is a fork of that one.
PRELOAD = """
import json, os, runpy, signal, sys
import sglang.benchmark.serving
for line in sys.stdin:
    log, limit, argv = json.loads(line)
    child = os.fork()
    if child == 0:
        signal.alarm(limit)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(out, 1), os.dup2(out, 2)
        sys.argv = ["serving", *argv]
        runpy.run_module("sglang.benchmark.serving", run_name="__main__", alter_sys=True)
        sys.stdout.flush()
        os._exit(0)
    _, status, used = os.wait4(child, 0)
    print("\\ndone " + json.dumps([status, used.ru_utime + used.ru_stime]), flush=True)
"""


@dataclass
class Setting:
    """What all tools share."""

    port: int
    tokens: int
    pin: bool
    tokenizer: str
    sglang: str | None = None
    sglang_env: dict[str, str] = field(default_factory=dict)
    aiperf: str | None = None
    guidellm: str | None = None
    _preloaded: subprocess.Popen[str] | None = None

    def words(self, *words: str) -> list[str]:
        core = str(min(os.sched_getaffinity(0)))
        return ["taskset", "-c", core, *words] if self.pin else [*words]

    def run(self, *words: str, env: dict[str, str] | None = None, stdin: bytes = b"") -> bytes:
        """What it wrote. Past the limit it ends with all processes it started."""
        child = subprocess.Popen(
            self.words(*words), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True, env={**os.environ, **(env or {})},
        )  # fmt: skip
        try:
            out, err = child.communicate(stdin, LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            raise
        if child.returncode:
            raise RuntimeError((err or out).decode("utf-8", "replace")[-400:])
        return out

    def serving(self, argv: list[str], log: Path) -> float:
        """One run of sglang's client in a fork of the process that has imported it; CPU seconds."""
        if self._preloaded is None or self._preloaded.poll() is not None:
            assert self.sglang is not None
            self._preloaded = subprocess.Popen(
                self.words(self.sglang, "-c", PRELOAD), stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                env={**os.environ, **self.sglang_env},
            )  # fmt: skip
        talk: tuple[IO[str] | None, IO[str] | None]
        talk = self._preloaded.stdin, self._preloaded.stdout
        assert talk[0] is not None and talk[1] is not None
        print(json.dumps([str(log), LIMIT_S, argv]), file=talk[0], flush=True)
        for line in talk[1]:
            if line.startswith("done "):
                status, cpu_s = json.loads(line[5:])
                if status:
                    raise RuntimeError(f"status {status}: " + log.read_text()[-400:])
                return float(cpu_s)
        self._preloaded.wait(10)
        raise RuntimeError(f"{self.sglang} ended; does it import sglang with --sglang-env?")

    def close(self) -> None:
        if self._preloaded is not None:
            self._preloaded.terminate()
            self._preloaded.wait(10)


def children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def ours(setting: Setting, streams: int, connections: str) -> Report:
    """From each sample's `first_token - sent`; the percentile is linear, as numpy's."""
    plan = plan_for(setting.port, streams, connections=connections, noise_s=0.0)
    out = setting.run(
        sys.executable, "-m", "load", env={"PYTHONPATH": str(SIDE)}, stdin=plan.dump()
    )
    load = parse_load(out)
    values = [t / 1e6 for s in load.samples if (t := ttft_ns(s)) is not None]
    if len(values) != 2 * streams:
        raise RuntimeError(f"{len(values)} of {2 * streams} requests were answered")
    tokens = sum(s.tokens or 0 for s in load.samples)
    return {
        "ttft_p50": percentile(values, 0.5), "ttft_p99": percentile(values, 0.99),
        "tokens": float(tokens), "tps": tokens / (load.end / 1e9),
        "cpu_s": load.client["cpu_s"], "cpu_of": "load", "ttfts": values,
    }  # fmt: skip


def sglang(setting: Setting, streams: int, *more: str) -> Report:
    """From its result line: `ttfts`, `median_ttft_ms`, `p99_ttft_ms`, `output_throughput`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.jsonl"
        cpu_s = setting.serving([
            "--backend", "sglang-oai-chat", "--host", "127.0.0.1", "--port", str(setting.port),
            "--model", "mock", "--tokenizer", setting.tokenizer, "--dataset-name", "random-ids",
            "--random-input-len", "8", "--random-output-len", str(setting.tokens),
            "--random-range-ratio", "1", "--num-prompts", str(2 * streams),
            "--max-concurrency", str(streams), "--output-file", str(out), "--disable-tqdm",
            "--output-details", *more,
        ], Path(folder) / "log")  # fmt: skip
        found = json.loads(out.read_text().splitlines()[-1])
    return {
        "ttft_p50": found["median_ttft_ms"], "ttft_p99": found["p99_ttft_ms"],
        "tokens": float(found["total_output_tokens"]), "tps": found["output_throughput"],
        "cpu_s": cpu_s, "cpu_of": "run", "ttfts": [1e3 * t for t in found["ttfts"]],
    }  # fmt: skip


def aiperf(setting: Setting, streams: int, *more: str) -> Report:
    """From profile_export_aiperf.json and, for each request, profile_export.jsonl."""
    assert setting.aiperf is not None
    before = children_s()
    with tempfile.TemporaryDirectory() as folder:
        setting.run(
            setting.aiperf, "profile", "--model", "mock",
            "--url", f"http://127.0.0.1:{setting.port}", "--endpoint-type", "chat", "--streaming",
            "--concurrency", str(streams), "--request-count", str(2 * streams),
            "--tokenizer", setting.tokenizer, "--isl", "8", "--osl", str(setting.tokens),
            "--use-server-token-count", "--artifact-dir", folder, "--ui", "none", *more,
        )  # fmt: skip
        found = json.loads(next(Path(folder).rglob("profile_export_aiperf.json")).read_text())
        lines = next(Path(folder).rglob("profile_export.jsonl")).read_text().splitlines()
    each = [json.loads(line) for line in lines]
    ttft, tokens = found["time_to_first_token"], found.get("output_sequence_length", {})
    return {
        "ttft_p50": ttft["p50"], "ttft_p99": ttft["p99"],
        "tokens": float(tokens.get("avg", 0.0)) * 2 * streams,
        "tps": found["output_token_throughput"]["avg"],
        "cpu_s": children_s() - before, "cpu_of": "whole",
        "ttfts": [x["metrics"]["time_to_first_token"]["value"] for x in each
                  if x["metadata"]["benchmark_phase"] == "profiling"],
    }  # fmt: skip


def guidellm(setting: Setting, streams: int, env: dict[str, str] | None = None) -> Report:
    """From its JSON report: `time_to_first_token_ms` of the successful requests, all and each."""
    assert setting.guidellm is not None
    before = children_s()
    with tempfile.TemporaryDirectory() as folder:
        setting.run(
            setting.guidellm, "run",
            "--backend", f"kind=openai_http,target=http://127.0.0.1:{setting.port},model=mock",
            "--profile", f"kind=concurrent,streams={streams}",
            "--constraint", f"kind=max_requests,count={2 * streams}",
            "--tokenizer", f"kind=hf_auto,model={setting.tokenizer}",
            "--data", f"kind=synthetic_text,prompt_tokens=8,output_tokens={setting.tokens}",
            "--output", f"kind=json,path={folder}/out.json", "--disable-console",
            env={"HF_HUB_OFFLINE": "1", **(env or {})},
        )  # fmt: skip
        found = json.loads((Path(folder) / "out.json").read_text())["benchmarks"][0]
    ttft = found["metrics"]["time_to_first_token_ms"]["successful"]
    tokens = found["metrics"]["output_token_count"]["successful"]["total_sum"]
    return {
        "ttft_p50": ttft["percentiles"]["p50"], "ttft_p99": ttft["percentiles"]["p99"],
        "tokens": float(tokens), "tps": tokens / found["duration"],
        "cpu_s": children_s() - before, "cpu_of": "whole",
        "ttfts": [x["time_to_first_token_ms"] for x in found["requests"]["successful"]],
    }  # fmt: skip


def tools(setting: Setting) -> dict[str, Tool]:
    """By name. Those of a program that was not named are left out."""
    out: dict[str, Tool] = {
        "ddops warm": lambda n: ours(setting, n, "warm"),
        "ddops cold": lambda n: ours(setting, n, "cold"),
    }
    if setting.sglang:
        out["sglang rust"] = lambda n: sglang(setting, n, "--rust-client")
        out["sglang rust/warm"] = lambda n: sglang(
            setting, n, "--rust-client", "--warmup-requests", str(n)
        )
        out["sglang python"] = lambda n: sglang(setting, n)
    if setting.aiperf:
        out["aiperf"] = lambda n: aiperf(setting, n)
        out["aiperf/1"] = lambda n: aiperf(
            setting, n, "--workers-max", "1", "--record-processor-service-count", "1",
            "--warmup-request-count", str(n),
        )  # fmt: skip
    if setting.guidellm:
        out["guidellm"] = lambda n: guidellm(setting, n)
        out["guidellm/1"] = lambda n: guidellm(setting, n, {"GUIDELLM__MAX_WORKER_PROCESSES": "1"})
    return out
