"""The stand-in's engine: it loads, it admits requests, it steps them in time."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from sglang._sim_args import ServerArgs
from sglang._sim_faults import Faults
from sglang._sim_log import fatal, log, write
from sglang._sim_nodes import join
from sglang._sim_sequence import Drafting, Sampling, Sequence
from sglang._sim_stats import PrefixCache, Stats
from sglang._sim_text import Golden, mix

DEATHS = {
    "oom": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
        "total capacity of 94.97 GiB of which 1.12 GiB is free. (sim)"
    ),
    "arch": (
        "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the "
        "device (sim)"
    ),
    "flag": "ValueError: this combination of server arguments is not supported (sim)",
}
TICK_S = 0.02
LOG_EVERY = 40  # steps between two lines on a decode batch, upstream's default
LOOK_EVERY = 32  # steps between two looks whether the client is still there
LEAK_LIFE_S = 900  # a forgotten test leaves nothing behind for good


@dataclass(frozen=True)
class Step:
    """One answer of a batch after a step, and whether it is new enough to be streamed."""

    index: int
    sequence: Sequence
    started: float
    first: float


class Engine:
    """State shared by all connections."""

    def __init__(self, args: ServerArgs, faults: Faults, golden: Golden) -> None:
        self.args = args
        self.faults = faults
        self.golden = golden
        self.stats = Stats()
        self.cache = PrefixCache(int(args["page_size"] or 1))
        self.vocab = max(64, min(int(args.model.get("vocab_size", 1024)), 1024))
        self.ready = threading.Event()
        self.stopping = threading.Event()
        self.ready_at = 0.0
        self.born = time.time()
        self._slots = threading.Condition()
        self._admitted = 0
        self._asked = 0

    # ---- the start

    def load(self) -> None:
        """Prints upstream's lines while `load_s` passes; ends the process when told to."""
        log("Load weight begin. avail mem=0.00 GB")
        began, shown = time.monotonic(), 0
        while not self.stopping.is_set():
            script, spent = self.faults.now(), time.monotonic() - began
            whole, shards = script.number("load_s"), max(1, script.count("shards", 4))
            done = shards if spent >= whole else int(shards * spent / whole)
            for shard in range(shown + 1, done + 1):
                self._show_shard(shard, shards, spent)
            shown = max(shown, done)
            if script.on("die_loading") and spent >= whole / 2:
                self.die(DEATHS[script.word("die_loading")], "load_model")
            if spent >= whole and not script.on("never_ready"):
                break
            time.sleep(min(TICK_S, max(whole - spent, 0.001)))
        join(self.args, self.stopping, lambda: self.die(
            "RuntimeError: NCCL error: remote process exited (sim)", "event_loop"))  # fmt: skip
        log(f"Load weight end. elapsed={time.monotonic() - began:.2f} s, type=Sim, mem usage=0 GB.")
        log(f"max_total_num_tokens={self.args['max_total_tokens']}, "
            f"max_running_requests={self.args['max_running_requests']}")  # fmt: skip
        self.ready_at = time.monotonic()
        self.ready.set()
        log("The server is fired up and ready to roll!")

    def _show_shard(self, shard: int, shards: int, spent: float) -> None:
        write(2, f"Loading safetensors checkpoint shards: {100 * shard // shards:3d}% Completed | "
                 f"{shard}/{shards} [{spent:.2f}s, sim]\n")  # fmt: skip

    def die(self, error: str, where: str) -> NoReturn:
        """Ends the process at once, as a killed worker tree does."""
        fatal(error, where)
        os._exit(1)

    def leak(self, pid_file: str) -> None:
        """A child in a session of its own: it outlives this process however that ends."""
        import subprocess  # only for this fault: it costs start-up time

        child = subprocess.Popen(
            [sys.executable, "-S", "-c", f"import time; time.sleep({LEAK_LIFE_S})",
             "sglang::scheduler_sim"],
            start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        path = Path(pid_file) if pid_file else self.faults.path.with_suffix(".leak.pid")
        path.write_text(f"{child.pid}\n", encoding="ascii")
        log(f"left a child behind: pid {child.pid}")

    # ---- requests

    def admit(self) -> None:
        """Counts one request; `die_on_request=N` ends the process at the N-th."""
        with self._slots:
            self._asked += 1
            asked = self._asked
        fatal_at = self.faults.now().count("die_on_request")
        if fatal_at and asked >= fatal_at:
            self.die("RuntimeError: CUDA error: an illegal memory access was encountered (sim)",
                     "event_loop_normal")  # fmt: skip

    def sequences(self, rid: str, ids: list[int], sampling: Sampling) -> list[Sequence]:
        """The `n` answers to one prompt. Answers to a temperature above 0 follow the seed."""
        script = self.faults.now()
        drafting = Drafting.of(self.args, script)
        room = max(0, int(self.args["context_length"]) - len(ids))
        if sampling.max_new_tokens > room:
            sampling = Sampling(**{**vars(sampling), "max_new_tokens": room})
        cached = 0 if self.args["disable_radix_cache"] else self.cache.match(ids)
        out = []
        for i in range(sampling.n):
            salt = 0
            if sampling.temperature > 0:
                seed = self.args["random_seed"] if sampling.seed is None else sampling.seed
                salt = mix(mix(int(seed)) ^ int(sampling.temperature * 1e6) ^ i << 32)
            one = Sequence(rid if i == 0 else f"{rid}-{i}", ids, sampling, self.golden.answer(ids),
                           self.vocab, salt, script, drafting)  # fmt: skip
            one.cached = cached
            out.append(one)
        return out

    def run(self, batch: list[Sequence], gone: Callable[[], bool]) -> Generator[Step, None, None]:
        """Steps all answers together until each has finished; yields those that moved."""
        started, first, size = time.perf_counter(), 0.0, len(batch)
        held = self._enter(min(size, int(self.args["max_running_requests"])), size, gone)
        try:
            live = [i for i in range(size) if batch[i].finish is None]
            steps = 0
            while live:
                steps += 1
                if steps % LOOK_EVERY == 0 and gone():
                    raise ConnectionAbortedError("the client left")
                self._pause(batch[live[0]].output == [], batch[live[0]].drafting)
                moved = [(i, batch[i].step()) for i in live]
                self._count(batch, moved)
                first = first or time.perf_counter()
                for i in live:
                    yield Step(i, batch[i], started, first)
                live = [i for i in live if batch[i].finish is None]
        finally:
            self._leave(held)

    def _enter(self, want: int, size: int, gone: Callable[[], bool]) -> int:
        most = int(self.args["max_running_requests"])
        with self._slots:
            self.stats.queued += size
            try:
                while self._admitted + want > most:
                    self._slots.wait(0.5)
                    if gone():
                        raise ConnectionAbortedError("the client left while it was queued")
            finally:
                self.stats.queued -= size
            self._admitted += want
            self.stats.running += want
        return want

    def _leave(self, held: int) -> None:
        with self._slots:
            self._admitted -= held
            self.stats.running -= held
            self._slots.notify_all()

    def _pause(self, prefill: bool, drafting: Drafting | None) -> None:
        """Lets a step's time pass; verifying a window costs every running request its width."""
        script = self.faults.now()
        width = drafting.window if drafting is not None and not prefill else 1
        spent_ms = script.number("step_ms") + script.number("batch_ms") * self.stats.running * width
        if prefill:
            spent_ms += script.number("prefill_ms")
        if spent_ms > 0:
            time.sleep(spent_ms / 1000)

    def _count(self, batch: list[Sequence], moved: list[tuple[int, int]]) -> None:
        made = sum(n for _, n in moved)
        verified = [n for i, n in moved if batch[i].verify_ct]
        stats = self.stats
        with stats.lock:
            stats.tokens(made)
            stats.verify_calls += len(verified)
            stats.verify_tokens += sum(verified)
            stats.correct_drafts += sum(verified) - len(verified)
            stats.steps += 1
            if stats.steps % LOG_EVERY:
                return
            line = (f"Decode batch, #running-req: {stats.running}, #token: {made}, "
                    f"gen throughput (token/s): {stats.throughput():.2f}, "
                    f"#queue-req: {stats.queued}")  # fmt: skip
            if verified:
                line += f", accept len: {stats.accept_length():.2f}"
        log(line)

    # ---- what is told about it

    def identity(self, part: str) -> str:
        """The weight version that `info` or `meta` gives; two faults make it another one."""
        asked = str(self.args["weight_version"])
        script = self.faults.now()
        if script.on("stale_identity"):
            earlier = f"{asked.partition('-')[0]}-000000000000"
            return script.word("stale_identity") or earlier
        return "000000000000-wrong" if script.hits("wrong_identity", part) else asked

    def server_info(self) -> dict[str, Any]:
        """Effective arguments, state, and the mark that no model is behind them."""
        values = {**self.args.values, "weight_version": self.identity("info")}
        state: dict[str, Any] = {
            **values,
            "effective_max_running_requests_per_dp": self.args["max_running_requests"],
            "memory_usage": {"weight": 0.0, "kvcache": 0.0, "graph": 0.0,
                             "token_capacity": self.args["max_total_tokens"]},
        }  # fmt: skip
        with self.stats.lock:
            state["last_gen_throughput"] = self.stats.throughput()
            if self.args.speculative and self.stats.verify_calls:
                state["avg_spec_accept_length"] = self.stats.accept_length()
        return {
            **values,
            "launch_command": self.args.launch_command,
            "status": "ready",
            "max_total_num_tokens": self.args["max_total_tokens"],
            "max_req_input_len": self.args["context_length"] - 6,
            "startup_time": {"total": max(0.0, self.ready_at and time.time() - self.born)},
            "kv_events": None,
            "internal_states": [state],
            "version": "0.5.23",
            "frontend": "python",
            "ddops_simulated": True,
        }
