#!/usr/bin/env python3
"""`ddops status` of N loopback hosts beside a bare OpenSSH fan-out of `true`; a warm command.

    bench/status_fanout.py --hosts 64 --rounds 5 --out bench/status_fanout.md

Both are whole command lines, with as many hosts side by side, on hosts that are provisioned and
serve nothing; each has its own sshd with a strict key. `true` does nothing on the host, status runs
our observer there. Most of OpenSSH's time is its post-quantum key exchange, which paramiko does not
have; so the fan-out runs once more with curve25519, which is what status uses. The warm command is
`true` over one connection that is open, ours and OpenSSH's with ControlMaster (a process of its own
each), to a plain sshd. Rounds are interleaved.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from measure import machine

from ddops.command import cmd
from ddops.lab.host import find_sshd, free_port
from ddops.transport import ConnectPolicy, SshTarget
from ddops.transport.ssh import SshTransport

REPO = Path(__file__).resolve().parents[1]
GOAL_WARM_MS = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--parallel", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", type=int, default=100)
    parser.add_argument("--out", type=Path, help="Write a page of it there.")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ddops-bench-"))
    (folder / "ddops.toml").write_text("")
    try:
        words = ("--engine", "sim", "--hosts", str(args.hosts))
        ddops(folder, args, "lab", "up", *words)
        ddops(folder, args, "provision", "lab")
        rows, loads = measure(folder, args)
        with plain_sshd(folder):
            warm = {
                "ddops": warm_ours(folder, args),
                "OpenSSH, ControlMaster": warm_ssh(folder, args),
            }
    finally:
        ddops(folder, args, "lab", "down")
        shutil.rmtree(folder)
    text = page(rows, warm, loads, args)
    print(text)
    if args.out:
        args.out.write_text(text)


def measure(
    folder: Path, args: argparse.Namespace
) -> tuple[dict[str, list[float]], list[float]]:  # fmt: skip
    runs: dict[str, Callable[[], None]] = {
        "ddops status": lambda: ddops(folder, args, "status", "lab"),
        "ssh true": lambda: ssh_all(folder, args),
        "ssh true, curve25519": lambda: ssh_all(folder, args, "-oKexAlgorithms=curve25519-sha256"),
    }
    rows: dict[str, list[float]] = {name: [] for name in runs}
    loads = []
    for number in range(args.rounds + 1):
        for name, run in runs.items():
            load, began = os.getloadavg()[0], time.perf_counter()
            run()
            if number:  # the first round warms what both read
                rows[name].append(time.perf_counter() - began)
                loads.append(load)
    return rows, loads


def ddops(folder: Path, args: argparse.Namespace, *words: str) -> None:
    env = {"PYTHONPATH": str(REPO), "DDOPS_PARALLEL": str(args.parallel),
           "DDOPS_CONNECTS": str(args.parallel)}  # fmt: skip
    call([sys.executable, "-m", "ddops", *words], folder, env)


def ssh_all(folder: Path, args: argparse.Namespace, *options: str) -> None:
    names = "\n".join(f"lab{i}" for i in range(1, args.hosts + 1))
    config = str(folder / ".ddops/lab/ssh_config")
    call(["xargs", f"-P{args.parallel}", "-I{}", "ssh", "-F", config, *options, "{}",
          "true"], folder, {},
         names.encode())  # fmt: skip


def call(words: list[str], folder: Path, env: dict[str, str], stdin: bytes = b"") -> None:
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, **env}, input=stdin, check=False, timeout=900,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{words}: {done.returncode}\n{done.stdout.decode()[-2000:]}")


@contextmanager
def plain_sshd(folder: Path) -> Iterator[None]:
    """`lab1` once more as `plain`, without the lab's login: that starts four programs a command."""
    host = folder / ".ddops/lab/hosts/lab1"
    lines = (host / "sshd_config").read_text().splitlines()
    address = next(line.split()[1].split(":")[0] for line in lines if line.startswith("Listen"))
    port = free_port(address)
    changed = {"ListenAddress": f"{address}:{port}", "PidFile": str(folder / "plain.pid")}
    kept = [line for line in lines if not line.startswith(("ForceCommand", *changed))]
    config = folder / "plain_sshd_config"
    config.write_text("\n".join([*kept, *(f"{k} {v}" for k, v in changed.items()), ""]))
    key = (host / "hostkey.pub").read_text()
    (folder / "plain_known").write_text(f"[{address}]:{port} {key}")
    (folder / "plain_ssh_config").write_text(
        f"Host plain\n HostName {address}\n Port {port}\n UserKnownHostsFile"
        f" {folder / 'plain_known'}\n IdentityFile {folder / '.ddops/lab/id_ed25519'}\n"
        " IdentitiesOnly yes\n StrictHostKeyChecking yes\n"
    )
    sshd = subprocess.Popen(
        [find_sshd(), "-D", "-f", str(config), "-E", str(folder / "plain.log")]
    )  # fmt: skip
    try:
        time.sleep(0.5)
        yield
    finally:
        sshd.terminate()
        sshd.wait(10)


def warm_ours(folder: Path, args: argparse.Namespace) -> list[float]:
    target = SshTarget("plain", "plain", folder / "plain_ssh_config", None)
    out = []
    with SshTransport(target, ConnectPolicy()) as transport:
        transport.run(cmd("true"))
        for _ in range(args.warm):
            began = time.perf_counter()
            assert transport.run(cmd("true")).ok
            out.append((time.perf_counter() - began) * 1000)
    return out


def warm_ssh(folder: Path, args: argparse.Namespace) -> list[float]:
    config, socket = str(folder / "plain_ssh_config"), str(folder / "s")
    shared = ["ssh", "-F", config, "-S", socket]
    call([*shared, "-M", "-f", "-N", "-o", "ControlPersist=60", "plain"], folder, {})
    out = []
    for _ in range(args.warm):
        began = time.perf_counter()
        call([*shared, "plain", "true"], folder, {})
        out.append((time.perf_counter() - began) * 1000)
    call([*shared, "-O", "exit", "plain"], folder, {})
    return out


def page(
    rows: dict[str, list[float]], warm: dict[str, list[float]], loads: list[float],
    args: argparse.Namespace,
) -> str:  # fmt: skip
    where = ", ".join(f"{k} {v}" for k, v in machine().items() if k != "load_1m")
    noise = ": **disturbed by others; compare within a round.**" if max(loads) > 3 else "."
    ours, theirs = rows["ddops status"], rows["ssh true"]
    found = statistics.median(a / b for a, b in zip(theirs, ours, strict=True))
    plain = rows["ssh true, curve25519"]
    bare = statistics.median(a / b for a, b in zip(plain, ours, strict=True))
    best = statistics.median(warm["ddops"])
    out = [
        f"# `ddops status` of {args.hosts} hosts",
        "",
        f"Measured by `bench/status_fanout.py` on {where}; {args.parallel} hosts side by side."
        " Hosts are sshd on loopback of the same machine, so each figure holds the hosts' work too."
        f" Load before the runs: {min(loads):.1f} to {max(loads):.1f}{noise}",
        "",
        "| what | n | median | min | max |",
        "|---|---|---|---|---|",
    ]
    for name, values in rows.items():
        out.append(f"| {name} | {len(values)} | {statistics.median(values):.2f} s |"
                   f" {min(values):.2f} | {max(values):.2f} |")  # fmt: skip
    for name, values in warm.items():
        out.append(f"| a warm `true`, {name} | {len(values)} | {statistics.median(values):.2f} ms |"
                   f" {min(values):.2f} | {max(values):.2f} |")  # fmt: skip
    out += [
        "",
        f"- The fan-out of `true` takes {found:.2f} times as long as `ddops status`, paired by"
        f" round; the goal, more than 1, is {'met' if found > 1 else 'NOT met'}.",
        f"- With curve25519 it takes {bare:.2f} times as long: that is what a look costs more than"
        " nothing, mostly the start of Python on each host.",
        f"- A warm command takes {best:.2f} ms; the goal of at most {GOAL_WARM_MS:g} is"
        f" {'met' if best <= GOAL_WARM_MS else 'NOT met'}.",
        "",
        "## Raw rows, seconds, in order of the rounds",
        "",
    ]
    out += [f"- {name}: {' '.join(f'{v:.2f}' for v in values)}" for name, values in rows.items()]
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    main()
