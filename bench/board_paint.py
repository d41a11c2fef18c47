#!/usr/bin/env python3
"""The board in a pseudo-terminal: first paint, key to repaint, and what 64 hosts cost it.

First paint is of the recorded fleet (`--demo`): from the start of the process until the last host
that fits the screen is written. Keys and cost are of a live board that polls 64 hosts every 5 s
over real SSH: connections to sshd on loopback, where a shell script answers with a look that was
recorded, so that what is measured is the board and not the hosts. CPU is user and system time of
the board's process alone.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]
from measure import report  # noqa: E402

from ddops.board.fleet import Kind  # noqa: E402
from ddops.board.recording import read_recording  # noqa: E402
from tests.contract.sshd import Sshd, keygen, public  # noqa: E402

HOSTS, SERVERS, SIZE = 64, 4, (120, 40)
LIMIT_S = 60.0


class Screen:
    """A process on a pseudo-terminal; what it writes is read as it comes."""

    def __init__(self, argv: list[str], env: dict[str, str], cwd: Path) -> None:
        self.began = time.perf_counter()
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))
        self.process = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, env=env, cwd=cwd, start_new_session=True
        )
        os.close(slave)
        self.fd = master
        self.text = b""

    def until(self, word: bytes, limit_s: float = LIMIT_S) -> float:
        """Seconds since the start when `word` had been written."""
        end = time.perf_counter() + limit_s
        while not re.search(word, self.text):
            if time.perf_counter() > end:
                raise TimeoutError(f"{word!r} never came; last: {self.text[-300:]!r}")
            if select.select([self.fd], [], [], 0.5)[0]:
                self._read()
        return time.perf_counter() - self.began

    def rest(self, seconds: float) -> None:
        """Read on, so that the board is never held up by a full terminal."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            if select.select([self.fd], [], [], left)[0]:
                self._read()

    def _read(self) -> None:
        try:
            self.text += os.read(self.fd, 1 << 16)
        except OSError:  # the board has ended
            raise RuntimeError(self.text[-2000:].decode("utf-8", "replace")) from None

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        os.write(self.fd, b"q")
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.fd)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=10, help="paints")
    parser.add_argument("--keys", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=30, help="of measuring the cost")
    parser.add_argument("--json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ddops-board-") as folder:
        place = Path(folder)
        env = {"PATH": "/usr/bin:/bin", "HOME": folder, "TERM": "xterm-256color",
               "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}  # fmt: skip
        board = [sys.executable, "-m", "ddops", "board"]
        paints, cpu = zip(*(first_paint(board, env, place) for _ in range(args.n)), strict=True)
        keys, shares = live(board, env, place, args.keys, args.seconds)
    report("first paint of 64 recorded hosts", {"first paint": paints, "CPU time": cpu}, "s", None)
    report("key to repaint while polling 64 hosts", {"key to repaint": keys}, "ms", None)
    report("cost of polling 64 hosts", {"of one core": shares}, "%", None)
    if args.json:
        rows = {"first_paint_s": paints, "key_ms": keys, "core_pct": shares}
        Path(args.json).write_text(json.dumps(rows, indent=1))


def first_paint(board: list[str], env: dict[str, str], place: Path) -> tuple[float, float]:
    """Seconds until the screen is full, and of the processor's time until then."""
    screen = Screen([*board, "--demo"], env, place)
    try:
        return screen.until(rb"b300-37 "), screen.cpu_s()
    finally:
        screen.end()


def live(
    board: list[str], env: dict[str, str], place: Path, presses: int, seconds: float
) -> tuple[list[float], list[float]]:
    servers = fleet(place)
    screen = Screen([*board], env, place)
    try:
        screen.until(rb"64 up")
        screen.rest(10)  # the first looks, the first drift
        shares = []
        for _ in range(3):
            before, began = screen.cpu_s(), time.perf_counter()
            screen.rest(seconds / 3)
            shares.append(100 * (screen.cpu_s() - before) / (time.perf_counter() - began))
        times = [press(screen, n) for n in range(presses)]
        return times, shares
    finally:
        screen.end()
        for server in servers:
            server.stop()


def press(screen: Screen, n: int) -> float:
    """Milliseconds from a key to the line that the cursor went to; down and up in turn."""
    screen.rest(0.2 + 0.017 * (n % 11))  # not in step with the board's own seconds
    screen.text = b""
    began = time.perf_counter()
    os.write(screen.fd, b"j" if n % 2 == 0 else b"k")
    screen.until(rb"h02" if n % 2 == 0 else rb"h01", 5)
    return 1e3 * (time.perf_counter() - began)


def fleet(place: Path) -> list[Sshd]:
    """64 hosts that are connections to a few sshd, answering with one recorded look."""
    recording = read_recording(ROOT / "lab/hosts/demo-fleet.jsonl.gz")
    seen = next(h.payload for h in recording.heard if h.kind is Kind.LOOK and h.host == "b300-5")
    (place / "look.json").write_text(json.dumps(seen))
    script = place / "answer"
    script.write_text(f"#!/bin/sh\ncat >/dev/null\nexec cat {place}/look.json\n")
    script.chmod(0o755)
    key = keygen(place / "id")
    servers = [Sshd(place / f"sshd{n}", key).start() for n in range(SERVERS)]
    known = place / "known_hosts"
    lines = [f"[127.0.0.1]:{s.port} {' '.join(public(s.host_key))}\n" for s in servers]
    known.write_text("".join(lines))
    hosts, config = [], []
    for n in range(1, HOSTS + 1):
        server = servers[n % SERVERS]
        config.append(
            f"Host h{n:02}\n HostName 127.0.0.1\n Port {server.port}\n IdentityFile {key}\n"
            f" IdentitiesOnly yes\n UserKnownHostsFile {known}\n"
        )
        hosts.append(f'[hosts.h{n:02}]\nssh = "h{n:02}"\nssh_config = "{place}/ssh_config"\n'
                     f'engine_env = "sim"\npython = "{script}"\n')  # fmt: skip
    (place / "ssh_config").write_text("".join(config))
    (place / "inventory").mkdir()
    (place / "inventory/hosts.toml").write_text("".join(hosts))
    (place / "inventory/services").mkdir()
    names = ", ".join(f'"h{n:02}"' for n in range(1, HOSTS + 1))
    text = (ROOT / "inventory/services/k26-b300.toml").read_text(encoding="utf-8")
    served = text.replace('hosts = ["b300"]', f"hosts = [{names}]")
    (place / "inventory/services/k26-b300.toml").write_text(served)
    (place / "ddops.toml").write_text("")
    return servers


if __name__ == "__main__":
    main()
