#!/usr/bin/env python3
"""What a snapshot costs, side by side with git, rsync and restic on the same tree.

    bench/snapshot_tree.py TREE [-n ROUNDS] [--dir /dev/shm/x] [--restic] [--json FILE]

TREE is a folder, such as an unpacked SGLang wheel; it is copied first. Target is an sshd on
loopback, made here. Every round takes each tool through three states of the same tree: first,
unchanged, one file changed; the tools alternate within a round. Run on tmpfs: disks that throttle
bulk writes measure themselves.

    ddops git copy      from an open connection: capture on the host, pack, store, upload to the
                        bare repository, read back there, publish. No facts, no restic.
    ddops plumbing      the git commands on the host alone (its own clock)
    ddops restic        the restic copy, apart: it runs only when the git copy is new
    git                 git add -A && git commit && git push, over ssh; a clone is not read back
    git status          in a repository of the same tree
    rsync, restic       rsync -a over ssh; restic backup over sftp; neither is read back
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measure import report

from ddops.clock import SystemClock
from ddops.command import Redactor, Secret, cmd
from ddops.errors import DdopsError
from ddops.events import NullReporter
from ddops.inventory.model import Host, Origin
from ddops.ledger import Ledger
from ddops.snapshot import Tools, make
from ddops.snapshot.gitplace import GitPlace
from ddops.snapshot.places import GitCopy
from ddops.snapshot.resticio import Restic
from ddops.snapshot.resticplace import ResticCopy
from ddops.snapshot.store import Store
from ddops.transport import ConnectPolicy, SshTarget
from ddops.transport.ssh import SshTransport
from tests.contract.sshd import Sshd, host_block, keygen, write_config

ALLOW = ("**/test/**",)


def no_facts(*_: object) -> None:
    raise DdopsError("facts are not part of the figure")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", type=Path)
    parser.add_argument("-n", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm"))  # noqa: S108 - tmpfs is meant
    parser.add_argument("--again", type=int, default=3, help="unchanged and one file, a round")
    parser.add_argument("--restic", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    make.collect = no_facts
    base = Path(tempfile.mkdtemp(prefix="ddops-bench-", dir=args.dir))
    server = Sshd(base / "sshd", keygen(base / "key"), extra="Subsystem sftp internal-sftp")
    rows: dict[str, list[float]] = defaultdict(list)
    try:
        server.start()
        known = base / "known_hosts"
        known.write_text(server.known_hosts_line() + "\n")
        config = write_config(base / "config", known, server.client_key,
                              host_block("bench", server.port))  # fmt: skip
        for number in range(args.n):
            work = base / f"round{number}"
            work.mkdir()
            made = Round(work, config, args.tree, rows, restic=args.restic)
            made.again = args.again
            made.run()
            shutil.rmtree(work)
            print(f"round {number + 1} of {args.n}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    finally:
        server.stop()
        shutil.rmtree(base)
    report(f"snapshot of {args.tree.name}", rows, "s", args.json)


class Round:
    """One copy of the tree, every tool on it, each state timed."""

    again = 3

    def __init__(
        self, work: Path, config: Path, tree: Path, rows: dict[str, list[float]], *, restic: bool
    ) -> None:
        self.work, self.config, self.rows, self.with_restic = work, config, rows, restic
        self.tree = work / "tree"
        shutil.copytree(tree, self.tree, symlinks=True)
        self.mirror = work / "mirror"  # the git line's own copy: its .git must not be rsynced
        shutil.copytree(tree, self.mirror, symlinks=True)
        self.edited = sorted(self.tree.rglob("*.py"))[100].relative_to(self.tree)
        self.env = {**os.environ, "GIT_SSH_COMMAND": f"ssh -F {config}", "LC_ALL": "C",
                    "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null",
                    "RESTIC_PASSWORD": "x", "HOME": str(work)}  # fmt: skip
        for who in ("AUTHOR", "COMMITTER"):
            self.env |= {f"GIT_{who}_NAME": "x", f"GIT_{who}_EMAIL": "x@x"}

    def run(self) -> None:
        self.transport = SshTransport(SshTarget("bench", "bench", self.config), ConnectPolicy())
        place = SshTransport(SshTarget("place", "bench", self.config), ConnectPolicy())
        for open_one in (self.transport, place):
            open_one.run(cmd("true"))
        self.tools = Tools(
            store=Store(self.work / "store"),
            places=[GitCopy(GitPlace(place, str(self.work / "place.git")))],
            ledger=lambda: Ledger.open(self.work / "ledger.db", redactor=Redactor()),
            lookup=lambda name: self.work / name, mask=Redactor().tree, clock=SystemClock(),
            report=NullReporter(), allow=ALLOW,
        )  # fmt: skip
        self.host = Host(name="bench", ssh="bench", engine_dir=str(self.work / "engine"),
                         engine_env="sim", python=sys.executable,
                         origin=Origin("project", self.work))  # fmt: skip
        (self.work / "engine").mkdir()
        self._sh("git", "init", "-q", "--bare", str(self.work / "bare.git"))
        self._sh("git", "-C", str(self.mirror), "init", "-q", "-b", "main")
        ssh = f"ssh -F {self.config} bench -s sftp"
        self.restic = ["restic", "-q", "-o", f"sftp.command={ssh}", "-r",
                       f"sftp:bench:{self.work}/restic"]  # fmt: skip
        self._sh(*self.restic, "init")
        self._state("first")
        for _ in range(self.again):
            self._state("unchanged")
            for root in (self.tree, self.mirror):
                with (root / self.edited).open("a") as f:
                    f.write("# one more line\n")
            self._state("one file")
        for one in (self.transport, place):
            one.close()

    def _state(self, state: str) -> None:
        self._time(f"{state}: ddops git copy", lambda: self._ddops(state))
        self._time(f"{state}: git add commit push", lambda: self._git(state))
        if state == "unchanged":
            self._time(
                "git status", lambda: self._sh("git", "-C", str(self.mirror), "status", "-s")
            )
        self._time(f"{state}: rsync -a", lambda: self._sh(
            "rsync", "-a", "--delete", "-e", f"ssh -F {self.config}", f"{self.tree}/",
            f"bench:{self.work}/rsynced/"))  # fmt: skip
        self._time(f"{state}: restic backup", lambda: self._sh(*self.restic, "backup",
                                                               str(self.tree)))  # fmt: skip
        if self.with_restic and state != "unchanged":
            restic = Restic(f"sftp:bench:{self.work}/restic2", Secret("x"), self.config)
            made = self.tools.store.manifests()[0]
            self._time(f"{state}: ddops restic copy, apart",
                       lambda: ResticCopy(restic).keep(self.tools.store, made))  # fmt: skip

    def _ddops(self, state: str) -> None:
        made = make.snapshot_host(self.transport, self.host, None, str(self.tree), self.tools)
        assert set(made.copies.values()) == {"verified"}
        assert made.fresh is (state != "unchanged")
        self.rows[f"{state}: ddops plumbing on the host"].append(made.took["plumbing"])
        for part in ("look", "capture", "store", "git"):
            self.rows[f"{state}: of it, {part}"].append(made.took[part])

    def _git(self, state: str) -> None:
        at = ("git", "-C", str(self.mirror))
        self._sh(*at, "add", "-A", "-f")
        self._sh(*at, "commit", "-q", "--allow-empty", "-m", state)
        self._sh(*at, "push", "-q", f"ssh://bench{self.work}/bare.git", "main")

    def _time(self, name: str, work: Callable[[], object]) -> None:
        began = time.perf_counter()
        work()
        self.rows[name].append(time.perf_counter() - began)

    def _sh(self, *words: str) -> None:
        done = subprocess.run(words, env=self.env, stdin=subprocess.DEVNULL, capture_output=True,
                              check=False)  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{words}: {done.stderr.decode()[-800:]}")


if __name__ == "__main__":
    main()
