"""Servers of one machine, started side by side, each with its own probe folder (probe/)."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Answer = dict[str, Any]
#: Batch sizes with a graph of their own; every concurrency that is measured is one of them.
GRAPHS = ("1", "2", "4", "8", "16", "32")
GPU_FLAGS = (
    "--attention-backend", "triton", "--sampling-backend", "pytorch",
    # Of what is free when the server starts; `--max-total-tokens` is what bounds its cache.
    "--mem-fraction-static", "0.8", "--max-total-tokens", "65536",
    "--max-running-requests", "32", "--chunked-prefill-size", "2048",
    "--cuda-graph-bs-decode", *GRAPHS, "--disable-prefill-cuda-graph",
)  # fmt: skip
CPU_FLAGS = (
    "--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32",
    "--max-total-tokens", "8192", "--max-running-requests", "8",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spec:
    """One server: which models, which algorithm, what is unusual about it."""

    name: str
    models: Path  # a folder with target/ and draft/
    algorithm: str = ""
    budget: int = 0
    topk: int = 4
    block: int = 8
    flags: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)

    def argv(self, port: int, cpu: bool) -> list[str]:
        words = ["python3", "-m", "sglang.launch_server", "--host", "127.0.0.1"]
        # Chosen here: servers that start side by side would look for a free one at the same time.
        words += ["--port", str(port), "--nccl-port", str(port + 7)]
        words += ["--model-path", str(self.models / "target")]
        words += [*(CPU_FLAGS if cpu else GPU_FLAGS), "--skip-server-warmup", "--sleep-on-idle"]
        if self.algorithm:
            words += ["--speculative-algorithm", self.algorithm]
            words += ["--speculative-draft-model-path", str(self.models / "draft")]
        if self.algorithm == "DDTREE":
            words += ["--speculative-num-draft-tokens", str(max(self.budget + 1, self.block))]
            words += ["--speculative-eagle-topk", str(self.topk)]
            words += ["--speculative-dflash-block-size", str(self.block)]
        return words + list(self.flags)

    def environ(self, probe: Path) -> dict[str, str]:
        tree = {"DDTREE_BUDGET": str(self.budget)} if self.algorithm == "DDTREE" else {}
        return {
            **os.environ, **tree, "DDTREE_PROBE": str(probe),
            "DDTREE_STEP_LOG": str(probe / "steps.jsonl"), **self.env,
        }  # fmt: skip


class Server:
    """A server of a fleet; its switches and reports are those of probe/ddtree_probe.py."""

    def __init__(self, spec: Spec, port: int, folder: Path, *, cpu: bool, python: str) -> None:
        self.spec, self.port, self.probe = spec, port, folder / spec.name
        self.probe.mkdir(parents=True, exist_ok=True)
        self.log = folder / f"{spec.name}.log"
        self.began = time.monotonic()
        self.ready_after = 0.0
        self.patience = 120.0
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [python, *spec.argv(port, cpu)[1:]], stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, env=spec.environ(self.probe), start_new_session=True,
            )  # fmt: skip

    def call(self, method: str, path: str, body: object = None, timeout: float = 0) -> Any:
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=timeout or self.patience
        )
        try:
            connection.request(
                method, path, None if body is None else json.dumps(body),
                {"Content-Type": "application/json"},
            )  # fmt: skip
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{self.spec.name} {path}: {answer.status} {data[:300]!r}")
        return json.loads(data) if data[:1] in (b"{", b"[") else data.decode()

    def come_up(self, until: float) -> str:
        """Wait until it has answered a first request; what went wrong, or nothing.

        The first request compiles what the start left out, and the probe starts with it.
        """
        while True:
            if self.dead():
                return f"ended with {self.process.returncode}"
            if time.monotonic() > until:
                return "late"
            try:
                self.call("GET", "/health", timeout=5)
                break
            except (OSError, RuntimeError, http.client.HTTPException):
                time.sleep(0.5)
        # A pass that hangs does not show in /health, whose one token ends in the prefill.
        left = max(5.0, until - time.monotonic())
        try:
            self.generate(range(60, 84), {"temperature": 0, "max_new_tokens": 8}, timeout=left)
        except (OSError, RuntimeError, http.client.HTTPException) as error:
            return f"no first answer: {type(error).__name__}: {error}"
        self.ready_after = time.monotonic() - self.began
        return ""

    def dead(self) -> bool:
        return self.process.poll() is not None

    def generate(
        self, ids: Sequence[int], sampling: dict[str, Any], timeout: float = 0, **extra: Any
    ) -> Any:
        body = {"input_ids": list(ids), "sampling_params": sampling, **extra}
        return self.call("POST", "/generate", body, timeout)

    def ask(
        self, prompts: Sequence[Sequence[int]], sampling: dict[str, Any], at_once: int, **extra: Any
    ) -> list[Answer]:
        """One answer a prompt, `at_once` of them in flight; order as asked."""
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda ids: self.generate(ids, sampling, **extra), prompts))

    def switch(self, name: str, on: bool) -> None:
        (self.probe / name).touch() if on else (self.probe / name).unlink(missing_ok=True)
        time.sleep(0.06)  # the probe looks every 20 ms

    def report(self) -> tuple[dict[str, int], list[dict[str, Any]]]:
        """Counts since the start, and the parts of steps timed since the last report."""
        (self.probe / "report").touch()
        until = time.monotonic() + 10
        while (self.probe / "report").exists():
            if time.monotonic() > until:
                raise RuntimeError(f"{self.spec.name}: the probe did not answer in 10 s")
            time.sleep(0.02)
        return tuple(
            json.loads((self.probe / f"{n}.json").read_text()) for n in ("counts", "times")
        )  # type: ignore[return-value]

    def tail(self, size: int = 3000) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(line[:500] for line in lines if "server_args=" not in line)[-size:]

    def end(self) -> None:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, sign)
            except ProcessLookupError:
                return
            try:
                self.process.wait(4)
            except subprocess.TimeoutExpired:
                continue


class Fleet:
    """Servers by name. Ports count up from one that this process chose; none is used twice.

    A fleet that was killed may have left servers behind: they must not answer for these.
    """

    def __init__(self, folder: Path, *, cpu: bool = False, python: str = "python3") -> None:
        self.folder, self.cpu, self.python = folder, cpu, python
        self.servers: dict[str, Server] = {}
        self._port = 20000 + os.getpid() % 40 * 300

    def __getitem__(self, name: str) -> Server:
        return self.servers[name]

    def start(self, *specs: Spec) -> None:
        for spec in specs:
            self.servers[spec.name] = Server(
                spec, self._port, self.folder, cpu=self.cpu, python=self.python
            )
            self._port += 20

    def wait(self, names: Sequence[str], until: float) -> dict[str, str]:
        """Why each server that is not ready by `until` is not; empty when all are."""
        with ThreadPoolExecutor(max(1, len(names))) as pool:
            whys = list(pool.map(lambda n: self[n].come_up(until), names))
        return {n: f"{why}\n{self[n].tail()}" for n, why in zip(names, whys, strict=True) if why}

    def be_patient(self, seconds: float) -> None:
        """How long an answer may take from now on."""
        for server in self.servers.values():
            server.patience = seconds

    def end_all(self, names: Iterable[str]) -> None:
        names = list(names)
        with ThreadPoolExecutor(max(1, len(names))) as pool:
            list(pool.map(lambda n: self.servers.pop(n).end(), names))
