"""`python -m sglang.launch_server ...`: starts the stand-in with the real engine's argv."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from types import FrameType

from sglang._sim_api import Api
from sglang._sim_args import ServerArgs, resolve_server_args
from sglang._sim_engine import Engine
from sglang._sim_faults import Faults
from sglang._sim_http import Server
from sglang._sim_log import log, write
from sglang._sim_text import find_golden
from sglang.version import __version__

TICK_S = 0.1
DRAIN_S = 5.0  # how long a stop waits for answers under way


def main(argv: Sequence[str]) -> int:
    """Runs until told to stop. 0 after a clean stop, 1 on a failed start, 2 on bad usage."""
    log(f"ddops sim engine: stands in for sglang {__version__}, no model runs")
    try:
        args = resolve_server_args(argv, os.environ)
    except (OSError, ValueError):
        write(2, traceback.format_exc())
        return 1
    try:
        faults = Faults(os.environ)
        golden = find_golden(str(args["model_path"]), faults.now().word("golden"))
    except (OSError, ValueError, KeyError) as error:
        write(2, f"sim: DDOPS_SIM or its files: {error}\n")
        return 2
    threading.stack_size(1 << 19)  # a thread a connection; the default 8 MiB adds up
    return Runner(args, Engine(args, faults, golden)).run()


class Runner:
    """Starts, watches and stops one server."""

    def __init__(self, args: ServerArgs, engine: Engine) -> None:
        self.args = args
        self.engine = engine
        self._api = Api(engine)
        self._stop = threading.Event()
        self._server: Server | None = None
        self._leaked = False

    def run(self) -> int:
        """The process's exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._say_arguments()
        if not self._begin():
            return 1
        while not self._stop.wait(TICK_S):
            self._watch()
        self._end()
        return 0

    def _begin(self) -> bool:
        script = self.engine.faults.now()
        threading.Thread(target=self.engine.load, daemon=True, name="load").start()
        if self._stop.wait(script.number("port_late_s")):
            return True
        while script.word("listen") == "loaded" and not self.engine.ready.wait(TICK_S):
            if self._stop.is_set():
                return True
        host, port = str(self.args["host"]), int(self.args["port"])
        quiet = tuple(self.args["uvicorn_access_log_exclude_prefixes"] or ())
        try:
            self._server = Server(host, port, self._api, quiet)
        except (OSError, OverflowError) as error:
            log(f"ERROR:    error while attempting to bind on address ('{host}', {port}): {error}")
            return False
        self._server.start()
        log(f"INFO:     Uvicorn running on http://{host}:{port} (sim, press CTRL+C to quit)")
        return True

    def _watch(self) -> None:
        engine = self.engine
        script = engine.faults.now()
        if not engine.ready.is_set():
            return
        if script.on("leak_child") and not self._leaked:
            self._leaked = True
            engine.leak(script.word("leak_child"))
        up = time.monotonic() - engine.ready_at
        if script.on("die_after_s") and up >= script.number("die_after_s"):
            engine.die("RuntimeError: NCCL error: unhandled system error (sim)", "event_loop")

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if number == signal.SIGTERM and self.engine.faults.now().on("ignore_sigterm"):
            log(f"{name} received and ignored")
            return
        log(f"{name} received. Draining requests and shutting down...")
        self.engine.stopping.set()
        self._stop.set()

    def _end(self) -> None:
        script = self.engine.faults.now()
        time.sleep(script.number("slow_stop_s"))
        latest = time.monotonic() + script.number("drain_s", DRAIN_S)
        while self.engine.stats.running and time.monotonic() < latest:
            time.sleep(0.02)
        if self._server is not None:
            self._server.close()
        log("Gracefully exiting. (sim)")

    def _say_arguments(self) -> None:
        values = dict(self.args.values)
        if not self.engine.faults.now().on("log_secret"):
            for name in ("api_key", "admin_api_key"):
                values[name] = values[name] and "***"
        log(f"server_args={values}")


if __name__ == "__main__":
    # Connections are served by daemon threads; some may hang on purpose, so none is waited for.
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
