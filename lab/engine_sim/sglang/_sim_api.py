"""Which path gives which answer, and the faults that stand before it."""

from __future__ import annotations

import json
import time
from typing import Any

from sglang._sim_auth import refusal
from sglang._sim_engine import Engine
from sglang._sim_generate import dumps, generate
from sglang._sim_http import Answer, DropConnection, Reply, Request
from sglang._sim_log import log
from sglang._sim_metrics import KIND, render_metrics
from sglang._sim_openai import complete, problem

HEALTH = ("/health", "/health_generate")
GENERATE = ("/generate", "/v1/completions", "/v1/chat/completions")
INFO = ("/model_info", "/get_model_info", "/server_info", "/get_server_info", "/v1/models")
METHODS = {
    **dict.fromkeys((*HEALTH, *INFO, "/ready", "/metrics", "/metrics/"), ("GET",)),
    **dict.fromkeys(("/v1/completions", "/v1/chat/completions"), ("POST",)),
    "/generate": ("POST", "PUT"),
    "/flush_cache": ("GET", "POST"),
}
FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)
TEXT = "text/plain; charset=utf-8"
POLL_S = 0.05


class Api:
    """The handler that the server calls, from many threads."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        args = engine.args
        self._follower = int(args["node_rank"]) > 0
        self._metrics = bool(args["enable_metrics"])

    def __call__(self, request: Request) -> Answer:
        """One answer. DropConnection when the connection is to be closed instead."""
        path, args = request.path, self.engine.args
        header = request.headers.get("authorization", "")
        if refusal(path, header, args["api_key"], args["admin_api_key"]):
            return Reply(401, dumps({"error": "Unauthorized"}))
        known = self._methods(path)
        if known is None:
            return Reply(404, dumps({"detail": "Not Found"}))
        if request.method not in known:
            allow = {"allow": ", ".join(known)}
            return Reply(405, dumps({"detail": "Method Not Allowed"}), headers=allow)
        if path in HEALTH:
            return self._health(request)
        if path in GENERATE:
            return self._generate(request)
        return self._other(path)

    def _methods(self, path: str) -> tuple[str, ...] | None:
        if self._follower and path not in HEALTH:
            return None  # upstream's other nodes answer health checks and nothing else
        if path.startswith("/metrics") and not self._metrics:
            return None
        if path.startswith("/v1/models/"):
            return ("GET",)
        return METHODS.get(path)

    def _health(self, request: Request) -> Reply:
        engine, script = self.engine, self.engine.faults.now()
        if script.hits("hang", "health"):
            self._hang(request)
        if engine.stopping.is_set():
            log("Health check request received during shutdown. Returning 503.")
            return Reply(503)
        if not engine.ready.is_set() or script.hits("status_503", "health"):
            return Reply(503)
        if script.on("health_s"):
            time.sleep(script.number("health_s"))
        return Reply(200)

    def _generate(self, request: Request) -> Answer:
        engine, script = self.engine, self.engine.faults.now()
        if script.hits("hang", "generate"):
            self._hang(request)
        up = engine.ready.is_set() and not engine.stopping.is_set()
        if not up or script.hits("status_503", "generate"):
            return problem("The server is not ready (sim).", 503)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if request.path != "/generate" and kind != "application/json":
            return problem("Unsupported Media Type: Only 'application/json' is allowed")
        try:
            body: Any = json.loads(request.body)
        except ValueError as error:
            return problem(f"JSON decode error: {error}")
        if not isinstance(body, dict):
            return problem("The body must be a JSON object.")
        if request.path == "/generate":
            return generate(engine, request, body)
        return complete(engine, request, body, chat=request.path.endswith("/chat/completions"))

    def _hang(self, request: Request) -> None:
        while not request.gone() and not self.engine.stopping.is_set():
            time.sleep(POLL_S)
        raise DropConnection

    def _other(self, path: str) -> Reply:
        engine = self.engine
        if path == "/ready":
            up = engine.ready.is_set() and not engine.stopping.is_set()
            return Reply(200 if up else 503)
        if path.startswith("/metrics"):
            return Reply(200, render_metrics(engine), KIND)
        if path == "/flush_cache":
            engine.cache.flush()
            return Reply(200, FLUSHED.encode("utf-8"), TEXT)
        if path.startswith("/get_"):
            new = path.replace("get_", "")
            log(f"Endpoint '{path}' is deprecated. Please use '{new}' instead.")
            path = new
        if path == "/server_info":
            return Reply(200, dumps(engine.server_info()))
        if path == "/model_info":
            return Reply(200, dumps(self._model_info()))
        return self._models(path)

    def _model_info(self) -> dict[str, Any]:
        args, model = self.engine.args, self.engine.args.model
        named = (
            "model_path", "served_model_name", "tokenizer_path", "preferred_sampling_params",
            "load_format", "reasoning_parser", "tool_call_parser", "disaggregation_mode",
        )  # fmt: skip
        return {
            **{name: args[name] for name in named},
            "is_generation": True,
            "weight_version": self.engine.identity("info"),
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": model.get("model_type"),
            "architectures": model.get("architectures"),
            "ddops_simulated": True,
        }

    def _models(self, path: str) -> Reply:
        args = self.engine.args
        name = str(args["served_model_name"])
        card = {
            "id": name, "object": "model", "created": int(time.time()), "owned_by": "sglang",
            "root": name, "parent": None, "max_model_len": args["context_length"],
        }  # fmt: skip
        asked = path[len("/v1/models/") :]
        if not asked:
            return Reply(200, dumps({"object": "list", "data": [card]}))
        if asked == name:
            return Reply(200, dumps(card))
        message = f"The model '{asked}' does not exist"
        error = {"message": message, "type": "invalid_request_error", "param": "model",
                 "code": "model_not_found"}  # fmt: skip
        return Reply(404, dumps({"error": error}))
