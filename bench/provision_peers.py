#!/usr/bin/env python3
"""The same 20 idempotent steps on N loopback hosts: ddops, pyinfra and ansible-core in turn.

    bench/provision_peers.py --hosts 16 --rounds 5 --out bench/provision_peers.md

Four folders, five files, four templates, three lines in a file, two packages that must be present
and two links, on each host, with a real sshd each. A round is: everything removed, a first run, and
a run with nothing to do; the tools take turns within a round. A tool whose first run took more than
75 s has no further round, and the table says its n. What the tools have written is compared at the
end of each first run: unlike trees end the measurement. Times are of the whole command line.

ddops is given its own prepared hosts (environment and scripts are there), and looks at all of that
besides the 20 steps in every run. Peers are installed from the package index of this machine into
an environment of their own, kept in `--venv` for the next time.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from measure import machine

REPO = Path(__file__).resolve().parents[1]
PEERS = ("pyinfra==3.10.0", "ansible-core==2.19.14")
LONG_S = 75.0
LIMIT_S = 900.0
Rows = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class Fleet:
    """The hosts, and everything that the three tools are told about them."""

    folder: Path
    names: tuple[str, ...]
    peers: Path

    def base(self, name: str) -> Path:
        return self.folder / f".ddops/lab/hosts/{name}/home/ddops/prov"

    @property
    def ssh_config(self) -> Path:
        return self.folder / ".ddops/lab/ssh_config"

    def clear(self) -> None:
        for name in self.names:
            shutil.rmtree(self.base(name), ignore_errors=True)

    def digests(self) -> dict[str, str]:
        """Names, modes, links and bytes of what lies on each host, its own name taken out."""
        out = {}
        for name in self.names:
            total = hashlib.sha256()
            base = self.base(name)
            for path in sorted(base.rglob("*")):
                data = (str(path.readlink()) if path.is_symlink() else
                        path.read_text() if path.is_file() else "")  # fmt: skip
                mode = "" if path.is_symlink() else oct(path.lstat().st_mode)
                row = f"{path.relative_to(base)} {mode} {data}\n"
                if path.name == "lines.conf":  # pyinfra begins a new file with an empty line
                    row = row.replace(" \n", " ")
                total.update(row.replace(str(base), "BASE").encode())
            out[name] = total.hexdigest()
        return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tools", default="ddops,pyinfra,ansible")
    parser.add_argument("--venv", type=Path, default=REPO / ".tools/peers")
    parser.add_argument("--out", type=Path, help="Write a page of it there.")
    args = parser.parse_args()
    tools = args.tools.split(",")
    if {"pyinfra", "ansible"} & set(tools):
        install(args.venv)
    folder = Path(tempfile.mkdtemp(prefix="ddops-bench-"))
    try:
        rows, loads = measure(lay_down(folder, args.hosts, args.venv), tools, args.rounds)
    finally:
        call(ddops_words("lab", "down"), folder, {})
        shutil.rmtree(folder)
    text = page(rows, loads, args)
    print(text)
    if args.out:
        args.out.write_text(text)


def measure(fleet: Fleet, tools: Sequence[str], rounds: int) -> tuple[Rows, list[float]]:
    rows: Rows = {tool: {"first": [], "unchanged": []} for tool in tools}
    loads, left, wanted = [], list(tools), ""
    for number in range(rounds):
        for tool in list(left):
            fleet.clear()
            for kind in ("first", "unchanged"):
                loads.append(os.getloadavg()[0])
                took = command(fleet, tool, f"{number}-{kind}")
                rows[tool][kind].append(took)
                print(f"round {number + 1} {tool} {kind} {took:.2f} s, load {loads[-1]:.1f}",
                      file=sys.stderr)  # fmt: skip
            found = set(fleet.digests().values()) if number == 0 else {wanted}
            digest = found.pop()
            if found or digest != (wanted or digest):
                raise SystemExit(f"{tool} has not written what the others have")
            wanted = digest
            if rows[tool]["first"][-1] > LONG_S:
                left.remove(tool)
    return rows, loads


def command(fleet: Fleet, tool: str, run: str) -> float:
    """Seconds of one whole command line."""
    folder, count = fleet.folder, len(fleet.names)
    words = {
        "ddops": ddops_words("provision", "bench", "--yes"),
        "pyinfra": [str(fleet.peers / "bin/pyinfra"), "-y", "inventory.py", "deploy.py"],
        "ansible": [str(fleet.peers / "bin/ansible-playbook"), "-i", "inventory.ini", "-f",
                    str(count), "site.yml"],
    }[tool]  # fmt: skip
    env = {
        "ANSIBLE_LOCAL_TEMP": str(folder / "ansible"), "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(folder / "cp"), "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_REMOTE_TMP": str(folder / "ansible-there"),
        "DDOPS_PARALLEL": str(count), "DDOPS_CONNECTS": str(count),
    }  # fmt: skip
    began = time.perf_counter()
    call(words, folder, env, log=folder / f"{tool}-{run}.log")
    took = time.perf_counter() - began
    shutil.rmtree(folder / "cp", ignore_errors=True)
    return took


def ddops_words(*words: str) -> list[str]:
    return [sys.executable, "-m", "ddops", *words]


def call(
    words: Sequence[str], folder: Path, env: Mapping[str, str], log: Path | None = None
) -> None:
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, **env, "PYTHONPATH": str(REPO)}, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S,
    )  # fmt: skip
    if log:
        log.write_bytes(done.stdout)
    if done.returncode:
        raise SystemExit(f"{words}: {done.returncode}\n{done.stdout.decode()[-2000:]}")


def install(venv: Path) -> None:
    """The peers, once. pyinfra wants another paramiko than ddops: they share nothing."""
    if (venv / "bin/ansible-playbook").exists() and (venv / "bin/pyinfra").exists():
        return
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin/python"), "-m", "pip", "install", "-q", *PEERS]
    subprocess.run(pip, check=True)


def lay_down(folder: Path, hosts: int, peers: Path) -> Fleet:
    """The hosts, and the same 20 steps in three languages."""
    (folder / "ddops.toml").write_text("")
    call(ddops_words("lab", "up", "--engine", "sim", "--hosts", str(hosts)), folder, {})
    names = tuple(f"lab{i}" for i in range(1, hosts + 1))
    fleet = Fleet(folder, names, peers)
    for number in range(1, 6):
        (folder / f"f{number}.bin").write_text(f"{number:03d}\n" * 500)
    sizes = {1: 20, 2: 20, 3: 20, 4: 20}
    for number, size in sizes.items():
        body = "".join(f"k{k}={k * number}\n" for k in range(size))
        for name, start in ((f"t{number}.j2", ""), (f"templates/t{number}.j2", "vars.")):
            (folder / name).parent.mkdir(exist_ok=True)
            head = f"host={{{{ {start}hostname_ }}}}\nport={{{{ {start}port_ }}}}\n"
            (folder / name).write_text(f"{head}idx={number}\n{body}")
    ddops_side(fleet)
    peer_side(fleet)
    fleet.clear()
    # ddops' own part of a host: it is there in every run that is measured.
    call(ddops_words("provision", "bench", "--yes"), folder, {})
    return fleet


def ddops_side(fleet: Fleet) -> None:
    folder = fleet.folder
    hosts = "".join(
        f'[hosts.b{name}]\nssh = "{name}"\nssh_config = "{fleet.ssh_config}"\ngroups = ["bench"]\n'
        f'engine_dir = "{fleet.base(name).parent}"\nclass = "cpu"\nengine_env = "sim"\n'
        f'supervisor = "systemd"\nsetup = "bench"\n'
        f'vars = {{ hostname_ = "host", port_ = 22 }}\n'
        for name in fleet.names
    )
    (folder / "inventory").mkdir()
    (folder / "inventory/hosts.toml").write_text(hosts)
    base = "${engine_dir}/prov"
    out = "".join(f'[[dir]]\npath = "{base}/d{n}"\nmode = "0750"\n' for n in range(1, 5))
    out += "".join(
        f'[[file]]\npath = "{base}/d1/f{n}.bin"\nsource = "f{n}.bin"\n' for n in range(1, 6)
    )
    out += "".join(
        f'[[file]]\npath = "{base}/d2/t{n}.conf"\ntemplate = "t{n}.j2"\n' for n in range(1, 5)
    )
    out += "".join(
        f'[[line]]\npath = "{base}/d3/lines.conf"\nline = "opt{n}=value{n}"\nmatch = "^opt{n}="\n'
        for n in range(1, 4)
    )
    out += '[[package]]\nname = "rsync"\n[[package]]\nname = "git"\n'
    out += "".join(
        f'[[link]]\npath = "{base}/d4/l{n}"\ntarget = "{base}/d1/f{n}.bin"\n' for n in (1, 2)
    )
    (folder / "setup").mkdir()
    (folder / "setup/bench.toml").write_text(out)


def peer_side(fleet: Fleet) -> None:
    folder, config = fleet.folder, fleet.ssh_config
    rows = "".join(
        f"    ('{name}', {{'base': '{fleet.base(name)}', 'ssh_config_file': '{config}',"
        f" 'ssh_strict_host_key_checking': 'yes'}}),\n"
        for name in fleet.names
    )
    (folder / "inventory.py").write_text(f"hosts = [\n{rows}]\n")
    (folder / "inventory.ini").write_text(
        "[all]\n"
        + "".join(f"{name} base={fleet.base(name)}\n" for name in fleet.names)
        + "[all:vars]\nansible_python_interpreter=/usr/bin/python3\n"
        + f"ansible_ssh_common_args=-F {config}\n"
    )
    (folder / "deploy.py").write_text(
        textwrap.dedent("""
        from pyinfra import host
        from pyinfra.operations import apt, files
        base = host.data.base
        for n in range(1, 5):
            files.directory(name=f'mkdir {n}', path=f'{base}/d{n}', mode='750')
        for n in range(1, 6):
            files.put(name=f'put {n}', src=f'f{n}.bin', dest=f'{base}/d1/f{n}.bin', mode='644')
        for n in range(1, 5):
            files.template(name=f'tmpl {n}', src=f't{n}.j2', dest=f'{base}/d2/t{n}.conf',
                           mode='644', hostname_='host', port_=22)
        for n in range(1, 4):
            files.line(name=f'line {n}', path=f'{base}/d3/lines.conf', line=f'^opt{n}=.*',
                       replace=f'opt{n}=value{n}', present=True, ensure_newline=True)
        apt.packages(name='pkg rsync', packages=['rsync'])
        apt.packages(name='pkg git', packages=['git'])
        for n in (1, 2):
            files.link(name=f'link {n}', path=f'{base}/d4/l{n}', target=f'{base}/d1/f{n}.bin')
    """)
    )
    tasks = [_file(f"{{path: '{{{{ base }}}}/d{n}', state: directory, mode: '0750'}}")
             for n in range(1, 5)]  # fmt: skip
    tasks += [f"  - ansible.builtin.copy: {{src: f{n}.bin, dest: '{{{{ base }}}}/d1/f{n}.bin',"
              " mode: '0644'}" for n in range(1, 6)]  # fmt: skip
    tasks += [f"  - ansible.builtin.template: {{src: t{n}.j2, dest: '{{{{ base }}}}/d2/t{n}.conf',"
              " mode: '0644'}" for n in range(1, 5)]  # fmt: skip
    tasks += ["  - ansible.builtin.lineinfile: {path: '{{ base }}/d3/lines.conf',"
              f" line: opt{n}=value{n}, regexp: '^opt{n}=', create: true, mode: '0644'}}"
              for n in range(1, 4)]  # fmt: skip
    tasks += [f"  - ansible.builtin.apt: {{name: {n}, state: present}}" for n in ("rsync", "git")]
    tasks += [_file(f"{{src: '{{{{ base }}}}/d1/f{n}.bin', dest: '{{{{ base }}}}/d4/l{n}',"
                    " state: link}") for n in (1, 2)]  # fmt: skip
    (folder / "site.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  vars: {hostname_: host, port_: 22}\n  tasks:\n"
        + "\n".join(tasks) + "\n"
    )  # fmt: skip


def _file(words: str) -> str:
    return f"  - ansible.builtin.file: {words}"


def page(rows: Rows, loads: Sequence[float], args: argparse.Namespace) -> str:
    where = ", ".join(f"{k} {v}" for k, v in machine().items() if k != "load_1m")
    noise = ": **disturbed by others; compare within a round.**" if max(loads) > 3 else "."
    out = [
        f"# 20 idempotent steps on {args.hosts} hosts",
        "",
        f"Measured by `bench/provision_peers.py` on {where}. Hosts are sshd on loopback of the same"
        " machine, so a tool's figure holds its hosts' work too. Load before the runs:"
        f" {min(loads):.1f} to {max(loads):.1f}{noise} Peers: {', '.join(PEERS)}.",
        "",
        "| tool | run | n | median s | min | max |",
        "|---|---|---|---|---|---|",
    ]
    for tool, kinds in rows.items():
        for kind, values in kinds.items():
            if values:
                out.append(f"| {tool} | {kind} | {len(values)} | {statistics.median(values):.2f} |"
                           f" {min(values):.2f} | {max(values):.2f} |")  # fmt: skip
    out += ["", *ratios(rows), "", "## Raw rows, seconds, in order of the rounds", ""]
    for tool, kinds in rows.items():
        for kind, values in kinds.items():
            out.append(f"- {tool}, {kind}: {' '.join(f'{v:.2f}' for v in values) or 'none'}")
    return "\n".join(out) + "\n"


def ratios(rows: Rows) -> list[str]:
    """Each peer against ddops, paired by round, and whether the goal is met."""
    out = []
    for peer, goal in (("pyinfra", 3.0), ("ansible", 20.0)):
        for kind in ("first", "unchanged"):
            pairs = list(zip(rows.get(peer, {}).get(kind, []), rows.get("ddops", {}).get(kind, []),
                             strict=False))  # fmt: skip
            if not pairs:
                continue
            found = statistics.median(a / b for a, b in pairs)
            words = f"{kind} run: {peer} takes {found:.1f} times as long (n {len(pairs)})"
            if kind == "unchanged":
                words += f"; the goal of {goal:g} is {'met' if found >= goal else 'NOT met'}"
            out.append(f"- {words}")
    return out


if __name__ == "__main__":
    main()
