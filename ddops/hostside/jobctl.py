#!/usr/bin/env python3
"""Drives the Slurm job of a service from a host that may submit. Prints JSON.

    jobctl.py STATE_DIR verify SERVICE DIGEST       would the staged script be taken?
    jobctl.py STATE_DIR status|submit|cancel SERVICE
    jobctl.py STATE_DIR observe SERVICE PORT HTTP_S LOG_BYTES
    jobctl.py STATE_DIR run SERVICE WORD...           runs WORD... on the job's first node

A job is the service's by its name, which holds the service's folder: no record is kept that could
be lost between a submission and its answer. `submit` returns at once. `cancel` tells the engine
first and waits for its grace period, then ends the job; it returns when Slurm has done so.
`observe` looks on every node of the job, inside its allocation; see observe.py.
"""

from __future__ import annotations

import concurrent.futures
import glob
import hashlib
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import time

SCHEMA = "ddops.jobctl/1"
OBSERVATION = "ddops.observation/1"
TOOLS = ("sbatch", "squeue", "scancel", "scontrol", "srun")
#: Slurm's words for a job that is over; any other one holds nodes, or may yet.
OVER = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL",
        "DEADLINE", "OUT_OF_MEMORY", "REVOKED")  # fmt: skip
#: A job that is cancelled while its step is being launched may leave a process that Slurm cannot
#: end; so long the step has to show its record.
LAUNCH_S = 15.0
#: Beyond the engine's own grace period: for Slurm to hear that the step has ended.
ENDED_S = 20.0
KILLED_S = 60.0
#: Slurm's own part of a look; the engine's answers have limits of their own.
STEP_S = 12.0
POLL_S = 0.2


class Refused(Exception):
    """Something that a person has to mend; its text says what."""


def main(argv):
    state_dir, verb, service = argv[:3]
    sys.path.insert(0, os.path.join(state_dir, "hostside"))
    jobs = Jobs(state_dir, service)
    if verb == "run":
        return jobs.run(argv[3:])
    try:
        if verb not in ("verify", "status", "submit", "cancel", "observe"):
            raise Refused("no such verb: " + verb)
        out = getattr(jobs, verb)(*argv[3:])
    except (Refused, OSError, subprocess.SubprocessError) as error:
        out = {"error": str(error)}
    json.dump({"schema": OBSERVATION if verb == "observe" else SCHEMA, **out}, sys.stdout)
    return 0


class Jobs:
    """The jobs of one service, the youngest last; at most one of them is not over."""

    def __init__(self, state_dir, service):
        self.state_dir = state_dir
        self.dir = os.path.join(state_dir, "services", service)
        self.service = service
        self.name = job_name(self.dir, service)

    def known(self):
        """What Slurm knows of them; those that were over long ago it has forgotten."""
        need_tools()
        done = call("squeue", "--json", "--states=all", "--name=" + self.name)
        try:
            jobs = [j for j in json.loads(done.stdout)["jobs"] if self.ours(j)]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refused("squeue --json does not answer: %s" % (said(done) or error)) from error
        return sorted((job_of(j) for j in jobs), key=lambda j: j["id"])

    def ours(self, raw):
        """By name, and by user: anybody may give a job of his that name."""
        user = number(raw.get("user_id"))
        return raw.get("name") == self.name and user in (None, os.getuid())

    def latest(self):
        jobs = self.known()
        alive = [j for j in jobs if j["state"] not in OVER]
        return (alive or jobs or [None])[-1]

    def status(self):
        job = self.latest()
        if job is None:
            return {"state": None, "why": "Slurm knows no job of it"}
        return {"state": job["state"], "why": words(job), "job": job["id"]}

    def verify(self, digest):
        need_tools()
        script = os.path.join(self.dir, "releases", digest, "job.sbatch")
        done = call("sbatch", "--test-only", script)
        text = said(done)
        if done.returncode:
            raise Refused("Slurm does not take the job: " + re.sub(r"(?m)^sbatch: ", "", text))
        return {"state": None, "test": re.sub(r"(?m)^sbatch: ", "", text)}

    def submit(self):
        alive = [j for j in self.known() if j["state"] not in OVER]
        if alive:
            return {"state": alive[-1]["state"], "job": alive[-1]["id"], "started": False}
        forget_starts(self.dir)
        done = call("sbatch", "--parsable", os.path.join(self.dir, "current", "job.sbatch"))
        if done.returncode:
            raise Refused("Slurm does not take the job: " + said(done))
        job = int(done.stdout.decode().strip().split(";")[0])
        return {"state": "PENDING", "job": job, "started": True}

    def cancel(self):
        for job in self.known():
            if job["state"] not in OVER:
                self.end(job["id"])
        return {**self.status(), "left": []}

    def end(self, number):
        """Tell the engine, wait, end the job; returns when it is over, or has not become so."""
        deadline = time.monotonic() + LAUNCH_S
        while time.monotonic() < deadline:
            job = self.one(number)
            if job is None or job["state"] in OVER:
                return
            if job["state"] != "RUNNING" or self.launched(number):
                break
            time.sleep(POLL_S)
        if job["state"] == "RUNNING":
            write_text(os.path.join(self.dir, "run", "cancelled"), str(number))
            call("scancel", "--signal=TERM", str(number))
            if self.over(number, self.grace() + ENDED_S):
                return
        call("scancel", str(number))
        self.over(number, KILLED_S)

    def one(self, number):
        return next((j for j in self.known() if j["id"] == number), None)

    def over(self, number, seconds):
        """Whether the job is over, nodes and all, within so long."""
        deadline = time.monotonic() + seconds
        while True:
            job = self.one(number)
            if job is None or job["state"] in OVER:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)

    def launched(self, number):
        record = read_json(os.path.join(self.dir, "run", "launch.json")) or {}
        return str(record.get("job")) == str(number)

    def grace(self):
        return float((read_json(os.path.join(self.dir, "current", "launch.json")) or {}).get(
            "stop_grace_s", 30))  # fmt: skip

    def observe(self, port, http_s, log_bytes):
        """As observe.py says it of rank 0; `job` says what Slurm does, and tells of all ranks."""
        job = self.latest()
        nodes = hostnames(job["nodes"]) if job and job["state"] == "RUNNING" else []
        if not nodes:
            out = self.unseen(port, log_bytes, "down", words(job))
            return {**out, "job": self.told(job, [])}
        with concurrent.futures.ThreadPoolExecutor(len(nodes)) as pool:
            looks = list(pool.map(
                lambda rank: self.look(job, rank, nodes[rank], port, http_s, log_bytes),
                range(len(nodes)),
            ))  # fmt: skip
        return {**looks[0], "job": self.told(job, [rank_of(n, k) for n, k in zip(nodes, looks)])}

    def look(self, job, rank, node, port, http_s, log_bytes):
        """One rank, seen on its node; unknown where the node does not answer."""
        step = importlib.import_module("jobstep")  # lies beside this file
        where = step.rank_dir(self.dir, rank)
        script = os.path.join(self.state_dir, "hostside", "observe.py")
        argv = [sys.executable, script, where, port, "--http", http_s, "--log-bytes", log_bytes]
        try:
            done = call(*inside(job["id"], node), *argv, limit=STEP_S + 4 * float(http_s))
            if done.returncode == 0:
                return json.loads(done.stdout)
            why = said(done)
        except subprocess.TimeoutExpired:
            why = "no answer within the time for a look"
        except ValueError as error:
            why = "no JSON: %s" % error
        return self.unseen(port, log_bytes, "unknown", "node %s: %s" % (node, why))

    def unseen(self, port, log_bytes, state, why):
        """What the shared disk says alone: of the engine nothing is known, or that it is down."""
        look = importlib.import_module("observe")
        return {
            "schema": OBSERVATION,
            "at": time.time(),
            "current": look.current(self.dir),
            "launch": read_json(os.path.join(self.dir, "run", "launch.json")),
            "engine": {"state": state, "why": why},
            "unit": None,
            "port": {"port": int(port), "listening": False, "owned": False, "owner": None},
            "log": look.log_end(os.path.join(self.dir, "log", "engine.log"), int(log_bytes)),
        }

    def told(self, job, ranks):
        if job is None:
            return None
        proven = read_json(os.path.join(self.dir, "run", "proven.json")) or {}
        return {**job, "why": words(job), "proven": proven.get("nonce"), "ranks": ranks}

    def run(self, argv):
        """On the job's first node; this process becomes the step, so its streams are the step's."""
        try:
            job = self.latest()
        except (Refused, OSError, subprocess.SubprocessError) as error:
            print("error: %s" % error, file=sys.stderr)
            return 254
        if job is None or job["state"] != "RUNNING":
            print("error: " + words(job), file=sys.stderr)
            return 254
        line = [*inside(job["id"], hostnames(job["nodes"])[0]), *argv]
        return os.execvp(line[0], line)


def job_name(folder, service):
    return "ddops-%s-%s" % (service, hashlib.sha256(folder.encode()).hexdigest()[:8])


def inside(number, node):
    """The words before a command that run it beside a job's own step."""
    return ["srun", "--jobid=%d" % number, "--overlap", "--nodes=1", "--ntasks=1", "--mem=0",
            "--nodelist=" + node, "--cpu-bind=none", "--input=0", "--quiet"]  # fmt: skip


def job_of(raw):
    """What is kept of a job. Newer versions wrap numbers, and list a job's states."""
    state = raw.get("job_state")
    if isinstance(state, list):
        state = next((s for s in state if s in ("COMPLETING", "CONFIGURING")), state[0])
    return {
        "id": int(raw["job_id"]),
        "state": str(state),
        "reason": str(raw.get("state_reason") or ""),
        "nodes": str(raw.get("nodes") or ""),
        "partition": str(raw.get("partition") or ""),
        "restarts": int(number(raw.get("restart_cnt")) or 0),
        "exit_code": exit_status(raw.get("exit_code")),
    }


def number(value):
    return value.get("number") if isinstance(value, dict) else value


def exit_status(value):
    """A job's status as a shell tells it; 22.05 gives what wait(2) gave."""
    if isinstance(value, dict):
        return number(value.get("return_code"))
    return None if value is None else int(value) >> 8 or int(value)


def words(job):
    """A job's state in a few words."""
    if job is None:
        return "Slurm knows no job of it"
    out = "job %d is %s" % (job["id"], job["state"])
    if job["state"] == "PENDING":
        out += ": %s" % (job["reason"] or "no reason given")
    elif job["state"] in ("FAILED", "NODE_FAIL", "TIMEOUT") or job["exit_code"]:
        out += ", exit status %s" % job["exit_code"]
    if job["restarts"]:
        out += ", requeued %s" % ("once" if job["restarts"] == 1 else "%d times" % job["restarts"])
    return out


def rank_of(node, look):
    """What the gates ask of one rank."""
    health = look.get("health") or {}
    return {
        "node": node,
        "state": look["engine"]["state"],
        "why": look["engine"].get("why", ""),
        "nonce": (look["launch"] or {}).get("nonce"),
        "owned": look["port"]["owned"],
        "health": health.get("status"),
    }


def forget_starts(folder):
    """No record of an earlier start is taken for one of the next job."""
    shutil.rmtree(os.path.join(folder, "nodes"), ignore_errors=True)
    for path in glob.glob(os.path.join(glob.escape(folder), "run", "launch.json*")):
        os.unlink(path)


def hostnames(nodes):
    return importlib.import_module("jobstep").hostnames(nodes) if nodes else []


def need_tools():
    missing = [t for t in TOOLS if not shutil.which(t)]
    if missing:
        raise Refused("Slurm is not installed here: no %s on PATH" % ", ".join(missing))


def call(*argv, limit=30.0):
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit, check=False
    )


def said(done):
    text = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
    return text[-600:] or "exit %d" % done.returncode


def write_text(path, text):
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as f:
        f.write(text)
    os.replace(path + ".new", path)


def read_json(path):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
