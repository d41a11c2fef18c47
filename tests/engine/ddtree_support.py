"""Servers of the lab's model, started straight from its shipped profiles, and their answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from ddops.config import find_project
from ddops.engines import launch_spec
from ddops.inventory import load
from tests.lab.looking import unheld_ports

REPO = Path(__file__).resolve().parents[2]
#: Three busy cores of CI: a start imports the engine in three processes.
READY_LIMIT_S = 300
#: Where the reference's two best tokens are this near, either may win.
NEAR_TIE = 1e-4
#: Tokens of an answer, and prompts.
TOKENS, PROMPTS = 48, 56

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. `steps` is what DDTREE committed, step by step."""

    url: str
    log: Path
    step_log: Path

    def post(self, path: str, body: object, timeout: float = 180) -> Any:
        request = urllib.request.Request(
            f"{self.url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.loads(answer.read() or b"null")

    def forget(self) -> None:
        """Empty the cache: what it held is not reused. The engine answers in words."""
        request = urllib.request.Request(f"{self.url}/flush_cache", b"")
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.read().startswith(b"Cache flushed")

    def batch(self, prompts: Sequence[object], tokens: Sequence[int]) -> list[Answer]:
        """Greedy answers of one batch, of which each request may have another length."""
        key = "text" if isinstance(prompts[0], str) else "input_ids"
        sampling = [{"temperature": 0, "max_new_tokens": n, "ignore_eos": True} for n in tokens]
        done: list[Answer] = self.post(
            "/generate",
            {key: list(prompts), "sampling_params": sampling, "return_logprob": True,
             "top_logprobs_num": 2},
        )  # fmt: skip
        return done

    def steps(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.step_log.read_text().splitlines()]


@contextmanager
def serving(
    python: Path,
    folder: Path,
    profile: str,
    *,
    budget: int | None = None,
    model: str = "tiny-qwen3",
    launch: Mapping[str, str | int] | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """A server of service `tiny` by a shipped profile, ended with its children at the end.

    `model` is another target of lab/models, with its drafter beside it.
    """
    inventory = load(find_project(folder))
    place = f"${{engine_dir}}/models/{model}"
    service = structs.replace(
        inventory.services["tiny"], model_path=place, draft_path=f"{place}-dflash"
    )
    base = inventory.profiles[profile]
    spec = base.spec if budget is None else structs.replace(base.spec, budget=budget)
    # An idle scheduler polls without a pause, and would take a core from the next server.
    room = {"max-total-tokens": 32768, "max-running-requests": 8, "sleep-on-idle": True}
    shaped = structs.replace(base, spec=spec, launch={**base.launch, **room, **dict(launch or {})})
    (port,) = unheld_ports(1)
    spec_of = launch_spec(service, shaped, "unused")
    argv, variables = spec_of.expand({"engine_dir": str(REPO / "lab"), "port": str(port)})
    server = Server(f"http://127.0.0.1:{port}", folder / f"{port}.log", folder / f"{port}.steps")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DDTREE_", "SGLANG_"))}
    environ = {**clean, **variables, "DDTREE_STEP_LOG": str(server.step_log), **(env or {})}
    with server.log.open("wb") as log:
        process = subprocess.Popen(
            [str(python), *argv[1:]], stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, env=environ, cwd=folder, start_new_session=True,
        )  # fmt: skip
    try:
        _wait(server, process)
        yield server
    finally:
        _end(process)


def _wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < until:
        if process.poll() is not None:
            raise AssertionError(f"the server ended with {process.returncode}:\n{tail(server.log)}")
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=5):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.5)
    raise AssertionError(f"not ready in {READY_LIMIT_S} s:\n{tail(server.log)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the session that was started here; what is left of it is killed."""
    for sign, patience in ((signal.SIGTERM, 20), (signal.SIGKILL, 10)):
        if process.poll() is None:
            os.killpg(process.pid, sign)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
        break
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def tail(log: Path) -> str:
    """The last lines of a log, without the one that holds all arguments."""
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(line[:400] for line in lines if "server_args=" not in line)[-4000:]


@dataclass(frozen=True, slots=True)
class Compared:
    """Where two answers part: `wrong` outside near-ties, `ties` where the reference was unsure."""

    wrong: list[str]
    ties: list[str]


def compare(name: str, got: Answer, reference: Answer, skip: int = 0) -> Compared:
    """Token for token; the reference is read from its token `skip` on."""
    wanted = reference["output_ids"][skip : skip + len(got["output_ids"])]
    for index, (one, two) in enumerate(zip(got["output_ids"], wanted, strict=True)):
        if one == two:
            continue
        best, second = reference["meta_info"]["output_top_logprobs"][skip + index][:2]
        said = f"{name}: token {index} is {one}, not {two}; the reference's gap is "
        said += f"{best[0] - second[0]:.2e}"
        near = best[0] - second[0] < NEAR_TIE
        return Compared([], [said]) if near else Compared([said], [])
    return Compared([], [])


def judge(what: str, found: list[Compared]) -> None:
    """No token is wrong; near-ties are counted."""
    wrong = [line for one in found for line in one.wrong]
    ties = [line for one in found for line in one.ties]
    print(f"{what}: {len(found)} answers, {len(wrong)} wrong, {len(ties)} at near-ties")
    assert not wrong, wrong[:5]
    assert len(ties) <= len(found) // 10, ties


def texts() -> list[str]:
    """Pieces of the library's source, which the model was trained on, of 20 to 320 characters."""
    source = Path(json.decoder.__file__).read_text() + Path(json.encoder.__file__).read_text()
    return [source[i * 211 :][: 20 + (i * 67) % 300] for i in range(PROMPTS)]


def waves(first: int, prompts: int = PROMPTS) -> Iterator[list[int]]:
    """The prompts in batches of 1 to 8, beginning with `first`."""
    at, size = 0, first
    while at < prompts:
        yield list(range(at, min(at + size, prompts)))
        at, size = at + size, size % 8 + 1


_FAULT = '''
import dataclasses
from pathlib import Path

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

HERE = Path(__file__).parent


def causal(original, tree, *rest, **options):
    """The tree's mask is replaced by a chain's: siblings see each other."""
    if (HERE / "mask").exists():
        tree = dataclasses.replace(tree, mask=torch.ones_like(tree.mask).tril())
    return original(tree, *rest, **options)


def left_behind(original, *args):
    """The latent rows of an accepted path stay where the tree wrote them."""
    if not (HERE / "move").exists():
        original(*args)


def register():
    HookRegistry.register("sglang_ddtree.verify.mask_of", causal, HookType.AROUND)
    pool = "sglang.srt.mem_cache.memory_pool.MLATokenToKVPool"
    HookRegistry.register(f"{pool}.move_kv_cache", left_behind, HookType.AROUND)
'''


def faults(folder: Path) -> Path:
    """A plugin for PYTHONPATH that puts faults back: plausible text, wrong tokens.

    Answers its folder; a file `mask` or `move` in it turns a fault on while it is there.
    """
    info = folder / "ddtree_fault-1.dist-info"
    info.mkdir(parents=True)
    (folder / "ddtree_fault.py").write_text(_FAULT)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ddtree_fault\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\nddtree_fault = ddtree_fault:register\n"
    )
    return folder
