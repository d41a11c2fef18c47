"""The board in a real terminal: tmux draws it, and keys go through it.

To see it fail: let the board write something to stdout while it runs.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ddops.board.recording import Recorder
from tests.board.scene import HOSTS, heard
from tests.unit.board.looks import NOW

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
_COLOUR = re.compile(r"\x1b\[[0-9;]*(?:[34][0-8]|9[0-7]|10[0-7])(?:;[0-9;]*)?m")


@dataclass(frozen=True)
class Terminal:
    """A tmux server of its own with one window."""

    socket: Path
    home: Path

    def tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(self.socket), "-f", "/dev/null", *words],
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.home), "LANG": "C.UTF-8"},
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        return done.stdout

    def start(self, size: tuple[int, int], command: list[str], env: dict[str, str]) -> None:
        given = [f"{k}={v}" for k, v in env.items()]
        words = ["env", "-i", *given, *command]
        self.tmux("new-session", "-d", "-s", "t", "-x", str(size[0]), "-y", str(size[1]),
                  "-n", "board", *words)  # fmt: skip
        self.tmux("set-option", "-g", "remain-on-exit", "on")

    def keys(self, *names: str) -> None:
        self.tmux("send-keys", "-t", "t", *names)

    def screen(self, *more: str) -> str:
        return self.tmux("capture-pane", "-t", "t", "-p", *more)

    def until(self, right: Callable[[str], bool]) -> str:
        """The screen once it is right; what it was last when it never is."""
        end = time.monotonic() + LIMIT_S
        while not right(text := self.screen()):
            assert time.monotonic() < end, f"never seen; last:\n{text}"
            time.sleep(0.05)
        return text

    def ended(self) -> str:
        """The screen the program left; tmux's own flag says so, since its line "Pane is dead"
        is drawn only where the child was reaped before the terminal closed."""
        end = time.monotonic() + LIMIT_S
        while self.tmux("display-message", "-p", "-t", "t", "#{pane_dead}").strip() != "1":
            assert time.monotonic() < end, f"still running; last:\n{self.screen()}"
            time.sleep(0.05)
        return self.screen()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        pytest.skip("needs tmux (Debian: tmux)")
    made = Terminal(tmp_path / "s", tmp_path)
    yield made
    made.tmux("kill-server")


def board(terminal: Terminal, size: tuple[int, int], **env: str) -> None:
    """A board of a recording of the still scene."""
    path = terminal.home / "fleet.jsonl"
    recorder = Recorder(path, HOSTS, NOW - 300)
    for one in heard():
        recorder(one)
    recorder.close()
    terminal.start(
        size,
        [sys.executable, "-m", "ddops", "board", "--replay", str(path)],
        {"PATH": "/usr/bin:/bin", "HOME": str(terminal.home), "TERM": "xterm-256color",
         "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT), **env},
    )  # fmt: skip


def test_it_is_driven_by_keys_and_leaves_the_terminal_as_it_was(terminal: Terminal) -> None:
    board(terminal, (80, 24))
    text = terminal.until(lambda t: "spare" in t and "q quit" in t)
    assert re.search(r"^b300-3 .* down +down", text, re.MULTILINE)
    assert re.search(r"^pcie-2 +no answer +\S+ +\? +\?", text, re.MULTILINE)
    assert "replay of fleet.jsonl" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    terminal.keys("j", "j", "Enter")
    terminal.until(lambda t: "the process is gone" in t)
    terminal.keys("Escape")
    terminal.until(lambda t: "Enter open" in t)  # Escape and / at once would be Alt-/
    terminal.keys("/", "o", "l", "d", "Enter")
    terminal.until(lambda t: "pcie-1" in t and "b300-1" not in t)
    terminal.keys("5")
    terminal.until(lambda t: "AGO" in t and "k26 is down" in t)
    terminal.keys("?")
    terminal.until(lambda t: "Keys" in t and "vim" not in t)
    terminal.keys("q")
    terminal.keys("1")
    terminal.tmux("resize-window", "-t", "t", "-x", "50", "-y", "12")
    terminal.until(lambda t: "too small: 50x12" in t)
    terminal.tmux("resize-window", "-t", "t", "-x", "130", "-y", "30")
    terminal.until(lambda t: "COMMIT" in t and "too small" not in t)
    terminal.keys("q")
    text = terminal.ended()
    assert "COMMIT" not in text, "the alternate screen was left"
    assert "Traceback" not in text


def test_no_colour_and_ascii_when_the_terminal_wants_so(terminal: Terminal) -> None:
    board(terminal, (120, 40), NO_COLOR="1", LANG="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    terminal.until(lambda t: "spare" in t)
    assert re.search(r"\x1b\[(?:0;)?7m[^ ]*b300-1", terminal.screen("-e")), "the cursor can be seen"
    terminal.keys("Enter")
    text = terminal.until(lambda t: "GPUs 8x" in t)
    assert text.isascii(), {c for c in text if not c.isascii()}
    coloured = _COLOUR.findall(terminal.screen("-e"))
    assert not coloured, coloured[:5]
