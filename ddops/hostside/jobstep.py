#!/usr/bin/env python3
"""What a Slurm job of a service runs on its nodes: looks first, then the guard.

    jobstep.py condition SERVICE_DIR        once, before the step: may `current` start?
    jobstep.py run SERVICE_DIR DIST_PORT    one task a node: the engine's rank of it
    jobstep.py again SERVICE_DIR            once, behind the step: is a requeue in order?

SERVICE_DIR lies on a disk that all nodes share. Rank 0 keeps its record there, every other rank
below `nodes/RANK/`. The first submission of a job starts what its deploy chose. A requeue has no
deploy behind it: only a release that once passed its gates may serve, so `current` is put back
to `committed`, as a boot of a host with systemd does.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import threading
import time

#: What a driver and a display keep for themselves, in MiB.
MOST_MIB = 1024
NOT_FREE = 75
#: As the systemd unit has it: a crash loop helps nobody.
MOST_RESTARTS = 3
#: What ran for so long is in no loop; a time limit of the job ends it too.
LONG_S = 3600
ROTATE_S = 5


def main(argv):
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    verb, service_dir = argv[1], os.path.abspath(argv[2])
    if verb == "condition":
        return condition(service_dir)
    if verb == "again":
        return again(service_dir)
    return run(service_dir, argv[3])


def condition(service_dir):
    """0 where `current` may start; a requeue goes back to what is committed."""
    link = importlib.import_module("notify").link  # lies beside this file
    current = link(service_dir, "current")
    if current is None:
        say("%s/current names no release on this node: is its disk shared?" % service_dir)
        return 1
    if restarts() == 0:
        return 0
    importlib.import_module("jobctl").forget_starts(service_dir)
    committed = link(service_dir, "committed")
    if committed is None:
        say("requeued, and no release of this service has passed its gates: not started")
        return 1
    if current != committed:
        say("requeued while a deploy was not through: back to %s" % committed)
        temp = os.path.join(service_dir, ".current.%d" % os.getpid())
        os.symlink(committed, temp)
        os.replace(temp, os.path.join(service_dir, "current"))
    return 0


def again(service_dir):
    """0 where the end of what passed its gates is worth another start; a crash loop is not."""
    link = importlib.import_module("notify").link
    current = link(service_dir, "current")
    told = read_text(os.path.join(service_dir, "run", "cancelled"))
    if told == os.environ["SLURM_JOB_ID"]:
        return 1
    if current is None or current != link(service_dir, "committed"):
        return 1
    launch = importlib.import_module("jobctl").read_json(
        os.path.join(service_dir, "run", "launch.json")
    )
    lived = time.time() - (launch or {}).get("started", time.time())
    if restarts() >= MOST_RESTARTS and lived < LONG_S:
        say("started %d times by now: it stays down" % (restarts() + 1))
        return 1
    say("the engine ended by itself: the job is requeued")
    return 0


def run(service_dir, dist_port):
    """This node's rank: its memory is free, then the guard until the engine ends."""
    rank = int(os.environ.get("SLURM_PROCID", "0"))
    used = busy_memory()
    if used:
        say("GPU memory is not free on %s: MiB in use %s" % (os.uname().nodename, used))
        return NOT_FREE
    where = rank_dir(service_dir, rank)
    if rank:
        lay_rank(service_dir, where)
    else:
        threading.Thread(target=keep_small, args=(service_dir,), daemon=True).start()
    first = hostnames(os.environ["SLURM_JOB_NODELIST"])[0]
    values = {"rank": str(rank), "dist_addr": "%s:%s" % (address(first), dist_port)}
    about = {
        "job": os.environ["SLURM_JOB_ID"], "restarts": restarts(),
        "node": os.environ.get("SLURMD_NODENAME", ""),
    }  # fmt: skip
    guard = importlib.import_module("guard")
    return guard.main(["guard", where], places=values, about=about)


def rank_dir(service_dir, rank):
    return os.path.join(service_dir, "nodes", str(rank)) if rank else service_dir


def lay_rank(service_dir, where):
    """A follower's folder: a record of its own, the release and the operation of all."""
    os.makedirs(os.path.join(where, "run"), mode=0o700, exist_ok=True)
    for name in ("current", os.path.join("run", "op_id")):
        path = os.path.join(where, name)
        if not os.path.islink(path):
            os.symlink(os.path.join(service_dir, name), path)


def restarts():
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0)


def hostnames(nodes):
    """Slurm's short form of several nodes, one by one."""
    done = subprocess.run(
        ["scontrol", "show", "hostnames", nodes], capture_output=True, timeout=20, check=True
    )
    return done.stdout.decode("utf-8", "replace").split()


def address(node):
    """Where other nodes reach this one: Slurm's own word for it."""
    done = subprocess.run(
        ["scontrol", "show", "node", node], capture_output=True, timeout=20, check=True
    )
    words = done.stdout.decode("utf-8", "replace").split()
    found = [w.partition("=")[2] for w in words if w.startswith("NodeAddr=")]
    return found[0] if found else node


def busy_memory():
    """MiB in use of the GPUs that this job was given, where one is not free; else nothing."""
    if not shutil.which("nvidia-smi"):
        return []
    words = ["nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits"]
    ours = os.environ.get("CUDA_VISIBLE_DEVICES")
    if ours:
        words.insert(1, "--id=" + ours)
    done = subprocess.run(words, capture_output=True, timeout=60, check=False)
    rows = [r.split(",") for r in done.stdout.decode("utf-8", "replace").splitlines() if r.strip()]
    used = [r[1].strip() for r in rows if len(r) == 2]
    if done.returncode or not used or any(not u.isdigit() for u in used):
        return ["unknown: " + done.stderr.decode("utf-8", "replace").strip()[-200:]]
    return used if any(int(u) >= MOST_MIB for u in used) else []


def keep_small(service_dir):
    """The job's output is the engine's log; Slurm appends to it for as long as the job runs."""
    rotate = importlib.import_module("notify").rotate
    while True:
        time.sleep(ROTATE_S)
        rotate(os.path.join(service_dir, "log", "engine.log"))


def read_text(path):
    try:
        with open(path, encoding="utf-8") as f:
            return f.read().strip()
    except OSError:
        return ""


def say(text):
    print("ddops job: " + text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
