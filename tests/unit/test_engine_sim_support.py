"""Starts the `sim` engine as a lab host does, and asks it over loopback. No tests in here."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENGINE = Path(__file__).parents[2] / "lab" / "engine_sim"
JSON = {"Content-Type": "application/json"}
KEY = "made-up-key-0001"


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """The objects of a stream; the end mark becomes the word DONE."""
        lines = [e.removeprefix("data: ") for e in self.body.decode().split("\n\n") if e]
        return ["DONE" if line == "[DONE]" else json.loads(line) for line in lines]


@dataclass(frozen=True)
class Sim:
    """One running engine. `log` grows while it runs."""

    process: subprocess.Popen[bytes]
    port: int
    home: Path

    @property
    def log(self) -> str:
        return (self.home / "engine.log").read_text(encoding="utf-8")

    def script(self, **faults: Any) -> None:
        """Puts faults into force, or with none takes all of the file's away."""
        path = self.home / ".ddops-sim.json"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(faults), encoding="utf-8")
        fresh.replace(path)

    def ask(
        self,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        timeout: float = 5.0,
        method: str | None = None,
    ) -> Answer:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = None if body is None else json.dumps(body)
            verb = method or ("GET" if body is None else "POST")
            client.request(verb, path, data, {**JSON, **(headers or {})})
            answer = client.getresponse()
            return Answer(answer.status, answer.read())
        finally:
            client.close()

    def generate(self, text: str = "a prompt", tokens: int = 8, **more: Any) -> Any:
        """The native answer to a greedy request."""
        params = {"temperature": 0, "max_new_tokens": tokens, **more.pop("sampling", {})}
        answer = self.ask("/generate", {"text": text, "sampling_params": params, **more})
        assert answer.status == 200, answer.body
        return answer.json()

    def wait_ready(self, limit: float = 5.0) -> None:
        wait_for(lambda: self.health() == 200, limit)

    def health(self) -> int:
        """The status, or 0 while nobody listens."""
        try:
            return self.ask("/health").status
        except ConnectionRefusedError:
            return 0


def wait_for(condition: Any, limit: float = 5.0) -> None:
    latest = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < latest, "waited too long"
        time.sleep(0.005)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def environment(home: Path, sim: str = "", **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DDOPS_", "DDTREE_"))}
    paths = {"PYTHONPATH": str(ENGINE), "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    return {**kept, **paths, "DDOPS_SIM": sim, **more}


def model_dir(home: Path) -> Path:
    path = home / "models" / "tiny"
    path.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 1020}
    (path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    return path


def draft_dir(home: Path) -> Path:
    path = home / "models" / "draft"
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({"block_size": 8}))
    return path


def argv(home: Path, port: int, *flags: str) -> list[str]:
    fixed = ["--model-path", str(model_dir(home)), "--host", "127.0.0.1", "--port", str(port)]
    return [sys.executable, "-m", "sglang.launch_server", *fixed, *flags]


@contextlib.contextmanager
def engine(
    home: Path, *flags: str, sim: str = "", ready: bool = True, env: Mapping[str, str] | None = None
) -> Iterator[Sim]:
    """A running engine; killed on the way out if it still runs."""
    port = free_port()
    with (
        (home / "engine.log").open("wb") as log,
        subprocess.Popen(
            argv(home, port, *flags),
            env=environment(home, sim, **(env or {})),
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        ) as process,
    ):
        try:
            one = Sim(process, port, home)
            if ready:
                one.wait_ready()
            yield one
        finally:
            process.kill()


def run_to_end(
    home: Path, *flags: str, sim: str = "", env: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Exit status and everything printed, of a start that ends by itself."""
    done = subprocess.run(
        argv(home, free_port(), *flags),
        env=environment(home, sim, **(env or {})),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        timeout=10,
        check=False,
    )
    return done.returncode, done.stdout.decode()
