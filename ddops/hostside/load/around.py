"""What stands around a run: who answers, is it idle, is the machine quiet, what did it count."""

from __future__ import annotations

import http.client
import json
import os
import platform
import re
import shutil
import subprocess
import time

INFO = (
    "version", "ddops_simulated", "device", "dtype", "attention_backend", "tp_size", "pp_size",
    "ep_size", "dp_size", "speculative_algorithm", "speculative_num_draft_tokens",
    "speculative_num_steps", "speculative_eagle_topk", "disable_cuda_graph", "disable_radix_cache",
    "disable_overlap_schedule", "stream_interval", "max_running_requests", "random_seed",
    "max_total_num_tokens", "kv_cache_dtype", "quantization", "cuda_graph_max_bs",
    "incremental_streaming_output", "enable_deterministic_inference",
)  # fmt: skip
#: Variables that make an engine commit drafts nobody verified: no number under them counts.
SIMULATED_ACCEPTANCE = "SGLANG_SIMULATE_ACC"
ENVIRONMENT = ("SGLANG_", "NCCL_", "CUDA_", "DDTREE_", "OMP_", "TORCH_")
#: Counters of `/metrics` that are read before and after.
COUNTERS = {
    "cached_tokens": "sglang:cached_tokens_total",
    "prompt_tokens": "sglang:prompt_tokens_total",
    "generation_tokens": "sglang:generation_tokens_total",
    "requests": "sglang:num_requests_total",
    "running": "sglang:num_running_reqs",
    "queued": "sglang:num_queue_reqs",
    "retracted": "sglang:num_retracted_reqs",
    "verify_calls": "sglang:spec_verify_calls_total",
}
_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{[^}]*\})?\s+([-+0-9.eE]+)", re.MULTILINE)


class Server:
    """Short questions to the engine, one connection each."""

    def __init__(self, host, port, key, timeout=10.0):
        self.host, self.port, self.timeout = host, port, timeout
        self.headers = {"Authorization": "Bearer " + key} if key else {}

    def ask(self, path, method="GET", limit=1 << 22):
        """Status and body; status None and the reason when nobody answers."""
        client = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        try:
            client.request(method, path, headers=self.headers)
            answer = client.getresponse()
            return answer.status, answer.read(limit)
        except (OSError, http.client.HTTPException) as error:
            return None, ("%s: %s" % (type(error).__name__, error)).encode()
        finally:
            client.close()

    def json(self, path):
        status, body = self.ask(path)
        try:
            value = json.loads(body) if status == 200 else None
        except ValueError:
            value = None
        return value if isinstance(value, dict) else {}

    def identity(self):
        """What `/model_info` and `/server_info` say now, by allow-list."""
        model, info = self.json("/model_info"), self.json("/server_info")
        states = [s for s in info.get("internal_states") or [] if isinstance(s, dict)]
        limits = [s.get("effective_max_running_requests_per_dp") for s in states]
        limits = [n for n in limits if isinstance(n, int)]
        return {
            "weight_version": model.get("weight_version"),
            "info": {k: info[k] for k in INFO if k in info},
            "running_limit": sum(limits) if limits else info.get("max_running_requests"),
        }

    def counters(self):
        """Sums over labels, by our names; None when there is no `/metrics`."""
        status, body = self.ask("/metrics")
        if status != 200:
            return None
        return read_counters(body.decode("utf-8", "replace"))

    def flush(self):
        """Whether the engine says that it flushed its cache: it does so only when idle."""
        status, _ = self.ask("/flush_cache", "POST")
        return status == 200


def read_counters(text):
    names = {v: k for k, v in COUNTERS.items()}
    out: dict[str, float] = {}
    for name, value in _LINE.findall(text):
        if name in names:
            out[names[name]] = out.get(names[name], 0.0) + float(value)
    return out


def machine():
    """What this host is made of, in the words of its kernel and driver."""
    out: dict[str, object] = {"cpu": platform.machine(), "kernel": platform.release()}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as f:
            for line in f:
                if line.startswith("model name"):
                    out["cpu"] = line.partition(":")[2].strip()
                    break
    except OSError:
        pass  # not Linux: what `platform` says has to do
    out["cores"] = os.cpu_count()
    smi = shutil.which("nvidia-smi")
    words = ["--query-gpu=name,uuid,driver_version,power.limit,mig.mode.current,ecc.mode.current"]
    try:
        done = subprocess.run(
            [smi or "nvidia-smi", *words, "--format=csv,noheader"],
            capture_output=True, text=True, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return {**out, "gpus": []}
    rows = done.stdout.splitlines() if done.returncode == 0 else []
    return {**out, "gpus": [[c.strip() for c in r.split(",")] for r in rows if r.strip()]}


def wait_idle(server, quiet_s, budget_s):
    """Until nothing has run or waited for `quiet_s`. False past the budget, None if unknown."""
    began, since = time.monotonic(), None
    while time.monotonic() - began < budget_s:
        seen = server.counters()
        if seen is None or "running" not in seen:
            return None
        now = time.monotonic()
        if seen["running"] or seen.get("queued", 0):
            since = None
        elif since is None:
            since = now
        elif now - since >= quiet_s:
            return True
        time.sleep(0.1)
    return False


def stall_fraction(seconds):
    """Part of the wall time in which a spinning thread did not run: others took the core."""
    gap = 100000
    lost, worst = 0, 0
    began = last = time.monotonic_ns()
    end = began + int(seconds * 1e9)
    while last < end:
        now = time.monotonic_ns()
        if now - last > gap:
            lost += now - last
            worst = max(worst, now - last)
        last = now
    return {"fraction": lost / max(1, last - began), "worst_ms": worst / 1e6}


def engine_environment(pid):
    """Variables of the engine's process that change what is measured; values of secrets never."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as f:
            items = f.read().decode("utf-8", "replace").split("\0")
    except (OSError, TypeError):
        return None
    pairs = (item.partition("=") for item in items)
    secret = re.compile("KEY|TOKEN|SECRET|PASS", re.IGNORECASE)
    return {k: v for k, _, v in pairs if k.startswith(ENVIRONMENT) and not secret.search(k)}


def process_of(service_dir):
    """pid and start tick of the engine that the guard's launch record names."""
    try:
        with open(os.path.join(service_dir, "run", "launch.json"), encoding="utf-8") as f:
            launch = json.load(f)
        with open("/proc/%d/stat" % launch["pid"], encoding="utf-8", errors="replace") as f:
            ticks = int(f.read().rpartition(") ")[2].split()[19])
    except (OSError, ValueError, KeyError, IndexError):
        return None
    return {
        "pid": launch["pid"],
        "start_ticks": ticks,
        "same": ticks == launch["start_ticks"],
        "weight_version": launch["weight_version"],
        "nonce": launch["nonce"],
    }
