"""What a schema cannot say: rules between the keys of one file, and of a service and its profile.

Pure. Each rule yields `Fault`s with the path inside the table it was given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from ddops.config.schema import Fault
from ddops.config.secrets import is_secret_ref, secret_ref_fault
from ddops.config.words import quote, unknown
from ddops.inventory.model import HostTable, ProfileTable, ServiceTable, Spec

#: A verify pass wider than this was never seen to pay, and masks are sized by its square.
MAX_BUDGET = 512
MAX_TOPK = 64

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*\Z")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_OPTION = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*\Z")
_LABEL = re.compile(r"(?=.{1,63}\Z)[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?\Z")
_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?\Z")
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|API_KEY|ACCESS_KEY)(?:_|$)", re.I
)
_GATE = re.compile(r"([a-z_]+)(?:\s*(>=|<=)\s*([0-9]+(?:\.[0-9]+)?))?\Z")
#: Gates a service may ask for, and the bound that is part of one, as an example.
GATES = {
    "exactness": "",
    "prefix": ">=16",
    "margin": "<=0.05",
    "commit_length": ">=2.0",
    "canary": "",
    "degeneration": "",
    "sampled": "",
}
#: Options that something else decides, and what that is.
_TAKEN = {
    "model-path": "the service's model_path or model",
    "model": "the service's model_path or model",
    "revision": "the service's revision",
    "served-model-name": "the service's served_model_name",
    "host": "the service's listen",
    "port": "the service's port",
    "nnodes": "the service's nnodes",
    "node-rank": "the place of a host in its service",
    "dist-init-addr": "the first host of a service on several nodes",
    "nccl-init-addr": "the first host of a service on several nodes",
    "api-key": "the service's api_key",
    "admin-api-key": "nothing: it would show in the host's process list",
    "weight-version": "each start, with the release and its nonce",
    "speculative-algorithm": "[spec] algorithm",
    "speculative-num-draft-tokens": "[spec] budget and block",
    "speculative-dflash-block-size": "[spec] block",
    "speculative-eagle-topk": "[spec] topk",
    "speculative-num-steps": "[spec]",
    "speculative-draft-model-path": "the service's draft",
    "speculative-draft-model": "the service's draft",
    "speculative-draft-model-revision": "the service's draft_revision",
}
_TAKEN_ENV = {"DDTREE_BUDGET": "[spec] budget", "DDTREE_TOPK": "[spec] topk"}
#: Attention that ignores a tree's mask: the text looks right and is not.
_MASKLESS = ("trtllm_mla", "cutedsl_mla", "tokenspeed_mla", "flashmla")
_BACKENDS = ("attention-backend", "decode-attention-backend", "prefill-attention-backend")
_PIPELINE = ("pp-size", "pipeline-parallel-size")


@dataclass(frozen=True, slots=True)
class GateRule:
    """A gate a service asks for. `bound` only where the gate has one."""

    name: str
    bound: float | None = None


def parse_gate(text: str) -> GateRule | str:
    """`exactness` or `commit_length>=2.0`; a text says what is wrong."""
    match = _GATE.match(text.strip())
    if match is None:
        return f"not a gate: {quote(text)}; write a name, or name>=number"
    name, sign, number = match.groups()
    if name not in GATES:
        return unknown(name, GATES, "gate")
    wanted = GATES[name]
    if wanted and (number is None or sign != wanted[:2]):
        return f"`{name}` needs its bound, as in {quote(name + wanted)}"
    if not wanted and number is not None:
        return f"`{name}` has no bound; write {quote(name)}"
    if name == "prefix" and "." in number:
        return f"`prefix` counts tokens: a whole number, not {number}"
    return GateRule(name, float(number) if number else None)


def name_fault(name: str, what: str) -> str:
    """Names are typed in shells and become files: small letters, digits, `.`, `_`, `-`."""
    if _NAME.match(name) and len(name) <= 64:
        return ""
    return (
        f"not a {what}'s name: {quote(name)}; it starts with a small letter or a digit, goes on"
        " with those, '.', '_' and '-', and has at most 64 of them"
    )


def label_fault(key: str, value: str) -> str:
    """What keeps the two from being a node's label; empty when nothing does."""
    prefix, slash, name = key.rpartition("/")
    if not _LABEL.match(name) or (slash and not (_DOMAIN.match(prefix) and len(prefix) <= 253)):
        return f"not a label's name: {quote(key)}; write NAME or domain/NAME"
    if value and not _LABEL.match(value):
        return (
            f"not a label's value: {quote(value)}; letters, digits, '-', '_' and '.', at most 63,"
            " a letter or a digit first and last"
        )
    return ""


def host_faults(host: HostTable) -> Iterator[Fault]:
    for i, group in enumerate(host.groups):
        if wrong := name_fault(group, "group"):
            yield Fault(("groups", i), wrong)
    if host.engine_dir.rstrip("/") == "" or ".." in host.engine_dir.split("/"):
        yield Fault(("engine_dir",), "must be a folder of its own below /, without '..'")
    for key in ("ssh", "engine_dir", "wheelhouse", "pip_index", "python", "ssh_config"):
        yield from _one_line(key, getattr(host, key))
    if host.kubernetes is not None:
        for key, value in host.kubernetes.node_selector.items():
            if wrong := label_fault(key, value):
                yield Fault(("kubernetes", "node_selector", key), wrong)
    if host.pip_index and re.search(r"//[^/@]*:[^/@]+@", host.pip_index):
        yield Fault(("pip_index",), "holds a password; put it into the host's ~/.netrc instead")


def service_faults(service: ServiceTable, raw: Mapping[str, object]) -> Iterator[Fault]:
    """`raw` is the table as written: it may hold `x-public = true`."""
    for i, gate in enumerate(service.gates):
        if isinstance(wrong := parse_gate(gate), str):
            yield Fault(("gates", i), wrong)
    if service.api_key is not None and (wrong := secret_ref_fault(service.api_key)):
        yield Fault(("api_key",), wrong)
    closed = is_loopback(service.listen) or raw.get("x-public") is True
    if service.api_key is None and not closed:
        yield Fault(
            ("listen",),
            f"listens on {quote(service.listen)} and has no api_key, so anybody who reaches the"
            " host can use it; set api_key, or x-public = true if that is meant",
        )
    yield from _router_faults(service, raw)
    for draft in ("draft_revision", "draft_path", "draft_source"):
        if getattr(service, draft) is not None and service.draft is None:
            yield Fault((draft,), f"`{draft}` without `draft`: name the draft model")
    for source, path in (("model_source", "model_path"), ("draft_source", "draft_path")):
        if getattr(service, source) is not None and getattr(service, path) is None:
            yield Fault((source,), f"`{source}` needs `{path}`: where on the host it goes")
    for path in ("model_path", "draft_path"):
        value = getattr(service, path)
        if value is not None and not value.startswith(("/", "${engine_dir}/")):
            yield Fault((path,), f"expected /... or ${{engine_dir}}/..., got {quote(value)}")
    for key in ("model", "revision", "model_path", "draft", "draft_path", "served_model_name"):
        yield from _one_line(key, getattr(service, key))
    yield from _env_faults(service.env)


def _router_faults(service: ServiceTable, raw: Mapping[str, object]) -> Iterator[Fault]:
    router = service.router
    if router is None:
        return
    yield from _one_line_at(("router", "host"), router.host)
    if service.nnodes > 1:
        yield Fault(("router",), "a replica is one host; leave out `nnodes` or [router]")
    if service.engine in ("slurm", "kubernetes"):
        yield Fault(("router",), f"{service.engine} picks its hosts itself; no [router] there")
    if service.served_model_name is None:
        yield Fault(
            ("router",),
            "needs `served_model_name`: without it a replica names its model by its own folder, and"
            " a router sends a request only to replicas of the model that it names",
        )
    if router.port == router.metrics_port:
        yield Fault(("router", "metrics_port"), "is the router's port; give it another")
    closed = is_loopback(router.listen) or raw.get("x-public") is True
    if service.api_key is None and not closed:
        yield Fault(
            ("router", "listen"),
            f"listens on {quote(router.listen)} and the service has no api_key, so anybody who"
            " reaches the host can use it; set api_key, or x-public = true if that is meant",
        )


def profile_faults(profile: ProfileTable) -> Iterator[Fault]:
    for key, value in profile.launch.items():
        if wrong := _option_fault(key):
            yield Fault(("launch", key), wrong)
        words = value if isinstance(value, tuple) else (value,)
        if any(isinstance(w, str) and ("\n" in w or not w) for w in words):
            yield Fault(("launch", key), "an empty word, or one with a line break")
    for key, message in _spec_faults(profile.spec):
        yield Fault(("spec", key), message)
    if profile.spec.algorithm != "none":
        for key in _PIPELINE:
            stages = profile.launch.get(key, 1)
            if isinstance(stages, int | float) and stages > 1:
                yield Fault(
                    ("launch", key),
                    f"{profile.spec.algorithm} runs with one pipeline stage only, got {stages};"
                    ' use tp-size, or algorithm = "none"',
                )
    for key in _BACKENDS:
        if profile.spec.algorithm == "DDTREE" and profile.launch.get(key) in _MASKLESS:
            yield Fault(
                ("launch", key),
                f"{profile.launch[key]} takes no tree mask, so a tree's text would be silently"
                ' wrong; use "triton"',
            )
    yield from _env_faults(profile.env)
    evidence = profile.evidence
    if evidence.status == "measured" and not evidence.runs:
        yield Fault(("evidence", "runs"), "`measured` needs the ledger ids of its runs")
    if evidence.status == "reported" and not evidence.source:
        yield Fault(("evidence", "source"), "`reported` needs its source")


def pair_faults(service: ServiceTable, profile: ProfileTable) -> Iterator[str]:
    """What is wrong with running a service by a profile."""
    algorithm = profile.spec.algorithm
    if algorithm in ("DFLASH", "DDTREE", "EAGLE3") and not (service.draft or service.draft_path):
        yield f"{algorithm} needs a draft model, and the service names none"


def _spec_faults(spec: Spec) -> Iterator[tuple[str, str]]:
    algorithm = spec.algorithm
    if algorithm == "DDTREE":
        for key, value, most in (
            ("budget", spec.budget, MAX_BUDGET),
            ("topk", spec.topk, MAX_TOPK),
        ):
            if value is None:
                yield key, f"DDTREE needs `{key}`"
            elif value > most:
                yield key, f"expected 1 to {most}, got {value}"
        return
    for key, value in (("budget", spec.budget), ("topk", spec.topk)):
        if value is not None:
            yield key, f"`{key}` belongs to algorithm DDTREE; {algorithm} has none"
    if spec.block is not None and algorithm == "none":
        yield "block", "`block` without speculative decoding; set algorithm"
    if spec.block is not None and algorithm == "EAGLE3":
        yield "block", "EAGLE3 takes steps, topk and tokens together or none; leave `block` out"


def _option_fault(key: str) -> str:
    plain = key.lstrip("-").replace("_", "-")
    for option, owner in _TAKEN.items():
        # An engine that takes unique beginnings for the whole would let `model-p` win.
        if plain == option or (len(plain) > 2 and option.startswith(plain)):
            return f"`{key}` is decided by {owner}; remove it here"
    if not _OPTION.match(key):
        hint = f"; write `{plain}`" if _OPTION.match(plain) else ""
        return f"not an option's name without its dashes{hint}"
    return ""


def _env_faults(env: Mapping[str, str]) -> Iterator[Fault]:
    for name, value in env.items():
        at = ("env", name)
        if not _ENV_NAME.match(name):
            yield Fault(at, f"not a variable's name: {quote(name)}")
        elif name in _TAKEN_ENV:
            yield Fault(at, f"`{name}` is rendered from {_TAKEN_ENV[name]}; set it there")
        elif is_secret_ref(value):
            if wrong := secret_ref_fault(value):
                yield Fault(at, wrong)
        elif _SECRET_NAME.search(name) and value:
            yield Fault(at, secret_ref_fault(value))
        elif "\n" in value:
            yield Fault(at, "holds a line break")


def _one_line(key: str, value: str | None) -> Iterator[Fault]:
    yield from _one_line_at((key,), value)


def _one_line_at(at: tuple[str | int, ...], value: str | None) -> Iterator[Fault]:
    if value is not None and "\n" in value:
        yield Fault(at, "holds a line break")


def is_loopback(listen: str) -> bool:
    try:
        return ip_address(listen.strip("[]")).is_loopback
    except ValueError:
        return listen == "localhost"
