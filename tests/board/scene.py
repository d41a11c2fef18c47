"""A fleet that stands still: every state a host can be in, at one moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ddops.board.fleet import Heard, Kind
from ddops.board.model import HostSpec, ServiceSpec
from ddops.board.routers import RouterSpec
from tests.unit.board.looks import NOW, RELEASE, down, gpu, launch, look, samples, service

K26 = (ServiceSpec("k26", 30000),)
HOSTS = (
    HostSpec("b300-1", groups=("nvlink",), kind="nvlink", services=K26),
    HostSpec("b300-2", groups=("nvlink",), kind="nvlink", services=K26),
    HostSpec("b300-3", groups=("nvlink",), kind="nvlink", services=K26),
    HostSpec("pcie-1", groups=("old",), kind="pcie", services=K26),
    HostSpec("pcie-2", groups=("old",), kind="pcie", services=K26),
    HostSpec("pcie-3", groups=("old",), kind="pcie", services=K26),
    HostSpec("spare", services=()),
)


def _work(decoded: float, at: float) -> dict[str, Any]:
    values = samples(at=NOW + at, num_running_reqs=4.0, num_queue_reqs=2.0, gen_throughput=800.0,
                     spec_accept_length=4.21, realtime_tokens_total=decoded)  # fmt: skip
    return look(service(metrics=values, log={"size": 1, "inode": 1, "tail": _LOG}), at=NOW + at)


_LOG = "Decode batch, #running-req: 4\n\x1b[31mred and \x07 rude\x1b[0m\n" + "wide " * 60 + "\n"
_HOT = [gpu(n, **{"utilization.gpu": str(12 * n), "clocks_event_reasons.active": hex(4 * (n == 3))})
        for n in range(8)]  # fmt: skip


def _drift(verdict: str) -> dict[str, Any]:
    one = {"service": "k26", "what": "argv", "recorded": "-", "observed": "--by-hand"}
    return {"rows": [{**one, "verdict": verdict}, {**one, "what": "code", "verdict": "same"}]}


def _books() -> dict[str, Any]:
    def gate(name: str, words: str) -> dict[str, Any]:
        return {"name": name, "verdict": "PASS", "message": words, "evidence": {}, "at": NOW - 3500}

    def run(n: int, **more: Any) -> dict[str, Any]:
        return {"id": f"run{n:02}", "at": NOW - 86400 * n, "host": "pcie-1", "release": RELEASE,
                "status": "valid", "counts": True, "device_class": "gpu", "label": f"budget 8 c{n}",
                "family": "f", "suite": "concurrency", "concurrency": n, "output_tps": 90.0 + 9 * n,
                "ttft_ms": 120.0, "commit": 4.4, **more}  # fmt: skip

    def task(n: int, status: str, words: str) -> dict[str, Any]:
        return {"id": n, "run": "ddtree-sweep-7", "content": words, "priority": "high" if n < 3
                else "low", "status": status, "owner": "ann", "evidence": "",
                "at": "2027-01-15T07:00:00+00:00"}  # fmt: skip

    checks = [{"check": "DRV-03", "verdict": "FAIL", "title": "Driver", "refuses": True,
               "seen": "575.57 is older than the toolkit needs"}]  # fmt: skip
    kept = {"snapshot_at": NOW - 7200, "snapshot_copies": "2 of 2 copies verified",
            "drill_at": NOW - 864000, "drill_verdict": "PASS", "facts_at": NOW - 600,
            "simulated": False, "counts": {"PASS": 60, "FAIL": 1}, "findings": checks}  # fmt: skip
    return {
        "hosts": {"b300-1": kept},
        "gates": {launch()["nonce"]: [gate("G0", "pid 42 is stable"),
                                      gate("G4 exactness", "4 prompts, 192 tokens equal")]},
        "runs": [run(1), run(2), run(3, counts=False), run(4, status="invalid", counts=False,
                                                           reason="G4 failed")],
        "tasks": [task(1, "completed", "probe every host"), task(2, "in_progress", "sweep"),
                  task(3, "blocked", "a person has to look"), task(4, "pending", "report")],
        "deployments": [[NOW - 3500, "b300-1", "deploy of k26 abababababab by ann: committed ok"]],
    }  # fmt: skip


def heard() -> list[Heard]:
    """b300-1 works, -2 has a hot GPU and drifted, -3 is down; pcie-1 is silent, -2 was lost long
    ago, -3 never answered; spare is bare."""
    bare = look({}, services={}, provisioned=False, gpus={"rows": None, "why": "no nvidia-smi"})
    refused = {"error": "cannot connect to pcie-3 port 22: no answer in time"}
    rows = [
        (-300, "pcie-2", Kind.LOOK, look()),
        (-290, "pcie-2", Kind.ERROR, {"error": "no login within 20 s"}),
        (-20, "pcie-1", Kind.LOOK, look(service(metrics={"status": 404}, states=[]))),
        (-9, "pcie-3", Kind.ERROR, refused),
        (-7, "b300-1", Kind.LOOK, _work(1000, -7)),
        (-7, "b300-2", Kind.LOOK, look()),
        (-7, "b300-3", Kind.LOOK, look()),
        (-6, "b300-1", Kind.DRIFT, _drift("same")),
        (-6, "b300-2", Kind.DRIFT, _drift("drift")),
        (-4, "", Kind.BOOKS, _books()),
        (-2, "b300-1", Kind.LOOK, _work(5060, -2)),
        (-2, "b300-2", Kind.LOOK, look(gpus={"rows": _HOT, "why": ""})),
        (-2, "b300-3", Kind.LOOK, look(down())),
        (-1, "spare", Kind.LOOK, bare),
    ]
    return [Heard(NOW + t, host, kind, payload) for t, host, kind, payload in rows]


ROUTER = RouterSpec("k26", "spare", "127.0.0.1:30080", replicas=(("b300-1", "http://b300-1:1"),))


def router_look() -> dict[str, Any]:
    replica = {"name": "b300-1", "url": "http://b300-1:1", "health": "left out",
               "release": "ab" * 32, "nonce": "n1", "in_file": False,
               "note": "drained, or never put in"}  # fmt: skip
    return {"schema": "ddops.router-look/1", "state": "DOWN", "replicas": [replica],
            "why": "up with no healthy replica, 0 known"}  # fmt: skip


class Still:
    """A source whose clock stands still. Everything was heard before the first look."""

    def __init__(
        self, hosts: Sequence[HostSpec] = HOSTS, label: str = "", *, routed: bool = False
    ) -> None:
        self.hosts = hosts
        self.routers: Sequence[RouterSpec] = (ROUTER,) if routed else ()
        self.label = label
        self.asked: list[str] = []
        self._news = heard()
        if routed:
            self._news.append(Heard(NOW - 2, ROUTER.key, Kind.LOOK, router_look()))

    def start(self) -> None:
        return None

    def stop(self) -> None:
        return None

    def now(self) -> float:
        return NOW

    def drain(self) -> Iterator[Heard]:
        news, self._news = self._news, []
        return iter(news)

    def look_now(self, host: str) -> None:
        self.asked.append(host)
