#!/usr/bin/env python3
"""One look at a whole host, as one JSON object. Changes nothing; joined behind `observe`.

    board.py SPEC     {"engine_dir": DIR, "services": {NAME: PORT}, "http_s": 6, "log_bytes": 2000}

What `observe` sees of each service, what its engine says of its load, the GPUs, the host's lock.
Services and GPUs are looked at side by side, each with time limits of its own. Null is "not seen".
As in `observe`, modules are loaded where a look needs them.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time

from ddops.hostside.observe import (
    MODEL_INFO,
    SERVER_INFO,
    Http,
    api_key,
    observe,
    read_json,
)

BOARD_SCHEMA = "ddops.look/1"
SMI_LIMIT_S = 8.0
#: Below what the controller waits for a whole look.
JOB_LIMIT_S = 22.0
#: A driver that refuses one of them refuses the whole query: it is left out and the rest asked.
SMI_FIELDS = (
    "index", "name", "utilization.gpu", "memory.used", "memory.total", "power.draw",
    "power.limit", "temperature.gpu", "clocks_event_reasons.active",
)  # fmt: skip
#: What one state of `/server_info` may tell; the rest holds arguments, keys among them.
STATE = ("last_gen_throughput", "avg_spec_accept_length", "effective_max_running_requests_per_dp")
GAUGES = (
    "num_running_reqs", "num_queue_reqs", "gen_throughput", "spec_accept_length", "token_usage",
    "realtime_tokens_total",
)  # fmt: skip
LABELS = ("dp_rank", "tp_rank", "pp_rank", "mode")
LOG_READ = 64000
LOOKS = r'"GET /(health|model_info|server_info|metrics)[ ?/]'
SAMPLE = r"(?m)^sglang:(\w+)\{([^}]*)\} (\S+)$"
LABEL = r'(\w+)="((?:[^"\\]|\\.)*)"'


def main(argv):
    spec = json.loads(argv[0])
    sys.stdout.write(json.dumps(look(spec)))
    return 0


def look(spec):
    state = os.path.join(spec["engine_dir"], ".ddops")
    jobs = {
        name: (service, os.path.join(state, "services", name), port, spec)
        for name, port in spec["services"].items()
    }
    seen = beside({"": (gpus,), **jobs} if on_path("nvidia-smi") else jobs)
    return {
        "schema": BOARD_SCHEMA,
        "at": time.time(),
        "provisioned": os.path.exists(os.path.join(state, "hostside", "observe.py")),
        "load_1m": os.getloadavg()[0],
        "lock": held(os.path.join(state, "lock")),
        "gpus": seen.pop("", {"rows": None, "why": "no nvidia-smi on PATH"}),
        "services": seen,
    }


def beside(jobs):
    """What each job, a function and its arguments, returns; side by side."""
    if len(jobs) < 2:
        return {name: work(*args) for name, (work, *args) in jobs.items()}
    import concurrent.futures

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        begun = {name: pool.submit(*job) for name, job in jobs.items()}
        return {name: future.result() for name, future in begun.items()}


def on_path(program):
    return any(os.access(os.path.join(p, program), os.X_OK) for p in os.get_exec_path())


def service(where, port, spec):
    if text_of(os.path.join(where, "run", "engine")) == "slurm":
        return in_job(where, port, spec)
    out = observe(where, port, http_s=0.0, log_bytes=LOG_READ)
    out["log"]["tail"] = without_looks(out["log"]["tail"], spec["log_bytes"])
    out["committed"] = link(os.path.join(where, "committed"))
    if not out["port"]["owned"]:
        return out
    client = Http(port, spec["http_s"], api_key(where))
    out["health"] = client.get("/health")
    if out["health"]["status"] is None:
        return out  # an engine that hangs would hang the other questions too, one after another
    out["model_info"] = client.get_json("/model_info", MODEL_INFO)
    info = client.get_json("/server_info", (*SERVER_INFO, "internal_states"))
    values = info.get("values", {})
    states = values.pop("internal_states", None) or []
    out["server_info"] = info
    out["states"] = [{k: s.get(k) for k in STATE} for s in states if isinstance(s, dict)]
    out["metrics"] = dict(metrics(client.get("/metrics", limit=4 << 20)), at=time.time())
    return out


def in_job(where, port, spec):
    """A service that is a Slurm job, as jobctl.py sees it on the job's nodes."""
    import subprocess

    state = os.path.dirname(os.path.dirname(where))
    words = [os.path.basename(where), str(port), str(spec["http_s"]), str(LOG_READ)]
    try:
        done = subprocess.run(
            [sys.executable, os.path.join(state, "hostside", "jobctl.py"), state, "observe",
             *words],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=JOB_LIMIT_S, check=True,
        )  # fmt: skip
        out = json.loads(done.stdout)
        why = out.get("error", "")
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        why = str(error)[:300]
    if why:
        out = observe(where, port, http_s=0.0, log_bytes=0)
        out["engine"] = {"state": "unknown", "why": why}
    out["log"]["tail"] = without_looks(out["log"]["tail"], spec["log_bytes"])
    out["committed"] = link(os.path.join(where, "committed"))
    return out


def without_looks(text, most):
    """The log's end without the lines that being looked at leaves there; whole lines only."""
    kept: list[str] = []
    size = 0
    for line in reversed(text.splitlines(keepends=True)):
        if re.search(LOOKS, line):
            continue
        size += len(line)
        if size > most:
            break
        kept.insert(0, line)
    return "".join(kept)


def metrics(answer):
    """The few families that the board shows, with the labels that tell ranks apart."""
    if answer["status"] != 200:
        return {"status": answer["status"], "samples": []}
    samples = []
    for name, labels, value in re.findall(SAMPLE, answer.get("body", "")):
        if name in GAUGES:
            kept = {k: v for k, v in re.findall(LABEL, labels) if k in LABELS}
            try:
                samples.append([name, kept, float(value)])
            except ValueError:
                continue  # no number: not one to show
    return {"status": 200, "samples": samples}


def text_of(path):
    try:
        with open(path, encoding="utf-8") as f:
            return f.read().strip()
    except OSError:
        return ""


def link(path):
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return None


def held(folder):
    """Who is at work here; the lock's token stays on the host."""
    if not os.path.isdir(folder):
        return None
    owner = read_json(os.path.join(folder, "owner.json")) or {}
    try:
        age = time.time() - os.stat(os.path.join(folder, "heartbeat")).st_mtime
    except OSError:
        age = None
    kept = {k: owner.get(k) for k in ("who", "where", "pid", "purpose", "at")}
    return {"owner": kept if owner else None, "age_s": age}


def gpus():
    """Rows of nvidia-smi by field; `why` says what kept them from being seen."""
    import csv
    import io
    import subprocess

    fields = list(SMI_FIELDS)
    until = time.monotonic() + SMI_LIMIT_S
    while fields:
        words = ["--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(
                ["nvidia-smi", *words], capture_output=True, stdin=subprocess.DEVNULL,
                timeout=max(0.1, until - time.monotonic()), check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"rows": None, "why": "nvidia-smi gives no answer within %g s" % SMI_LIMIT_S}
        except OSError as error:
            return {"rows": None, "why": error.strerror or str(error)}
        text = done.stdout.decode("utf-8", "replace")
        said = text + done.stderr.decode("utf-8", "replace")
        refused = re.search(r'Field "([^"]+)" is not a valid field', said)
        if refused and refused.group(1) in fields:
            fields.remove(refused.group(1))
            continue
        if done.returncode:
            return {"rows": None, "why": said.strip()[:200] or "ended with %d" % done.returncode}
        found = [r for r in csv.reader(io.StringIO(text), skipinitialspace=True) if r]
        if any(len(r) != len(fields) for r in found):
            return {"rows": None, "why": "unexpected line from nvidia-smi"}
        return {"rows": [dict(zip(fields, r)) for r in found], "why": ""}
    return {"rows": None, "why": "nvidia-smi knows none of the fields"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
