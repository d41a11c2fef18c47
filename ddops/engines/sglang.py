"""SGLang: how a profile and a service become its command line.

Option names in profiles are SGLang's own without the dashes; the ones that a service or the
`[spec]` table decides are rendered here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddops.engines.spec import LaunchSpec
from ddops.errors import ConfigError, Problem
from ddops.inventory.model import Profile, Service

#: Algorithms of the dflash family draft one block and verify it in one pass.
_BLOCK_DRAFTERS = ("DFLASH", "DDTREE")
#: What SGLang and its native threads print when nothing can save the start.
FATAL_LINES = (
    "CUDA out of memory",
    "torch.OutOfMemoryError",
    "Not enough memory",
    "no kernel image is available",
    "unrecognized arguments",
    "ambiguous option",
    "error: argument",
    "is not compatible with the current PyTorch installation",
    "CUDA error:",
    "Address already in use",
)


#: The managed source tree, as profiles name it in PYTHONPATH.
MANAGED = "${engine_dir}/tree"

#: Words of a launch before the engine's own options: its interpreter, -m and the module.
LAUNCHER_WORDS = 3


def launch_spec(
    service: Service, profile: Profile, env_dir: str, code_dir: str | None = None
) -> LaunchSpec:
    """argv and environment of a release. The folders may hold `${engine_dir}`.

    `code_dir` is patched engine code, found before the environment's own.
    """
    argv = [f"{env_dir}/bin/python", "-m", "sglang.launch_server"]
    for name, value in _options(service, profile):
        if value is True:
            argv.append(f"--{name}")
        elif value is False:
            continue
        elif isinstance(value, tuple):
            argv += [f"--{name}", *(str(v) for v in value)]
        else:
            argv += [f"--{name}", str(value)]
    env: dict[str, str] = {}
    secret_env: dict[str, str] = {}
    for name, text in {**profile.env, **service.env, **_tree_env(profile)}.items():
        (secret_env if _is_reference(text) else env)[name] = text
    if code_dir is not None:
        env["PYTHONPATH"] = ":".join(p for p in (code_dir, env.get("PYTHONPATH")) if p)
    return LaunchSpec(
        tuple(argv),
        tuple(sorted(env.items())),
        tuple(sorted(secret_env.items())),
        service.api_key,
    )


def from_tree(service: Service, profile: Profile) -> bool:
    """Whether the engine runs from the host's managed tree rather than from an environment."""
    path = {**profile.env, **service.env}.get("PYTHONPATH", "")
    return any(p == MANAGED or p.startswith(f"{MANAGED}/") for p in path.split(":"))


def server_identity(service: Service, profile: Profile) -> dict[str, object]:
    """What `/server_info` must say of a server that was started from this profile."""
    out: dict[str, object] = {}
    for option, field in (("tp-size", "tp_size"), ("pp-size", "pp_size"), ("dtype", "dtype"),
                          ("attention-backend", "attention_backend")):  # fmt: skip
        if option in profile.launch:
            out[field] = profile.launch[option]
    out["speculative_algorithm"] = (
        None if profile.spec.algorithm == "none" else profile.spec.algorithm
    )
    if profile.spec.algorithm in _BLOCK_DRAFTERS and (tokens := draft_tokens(profile)):
        out["speculative_num_draft_tokens"] = tokens
    return out


def draft_tokens(profile: Profile) -> int | None:
    """Width of a verify pass: tokens per request, the root included.

    A tree of `budget` nodes needs budget+1; CUDA graphs and masks are sized by this number, so
    it is never smaller than the drafter's block.
    """
    spec = profile.spec
    if spec.algorithm == "DDTREE" and spec.budget is not None:
        return max(spec.budget + 1, spec.block or 0)
    return spec.block


def _options(service: Service, profile: Profile) -> Iterator[tuple[str, object]]:
    yield "model-path", service.model_path or service.model
    if service.revision and not service.revision.startswith("sha256:"):
        yield "revision", service.revision
    if service.served_model_name:
        yield "served-model-name", service.served_model_name
    yield "host", service.listen
    yield "port", "${port}"
    if service.nnodes > 1:
        yield "nnodes", service.nnodes
        yield "node-rank", "${rank}"
        yield "dist-init-addr", "${dist_addr}"
    yield from sorted(profile.launch.items())
    spec = profile.spec
    if spec.algorithm == "none":
        return
    yield "speculative-algorithm", spec.algorithm
    if spec.algorithm in (*_BLOCK_DRAFTERS, "EAGLE3"):
        if not (service.draft_path or service.draft):
            raise ConfigError(
                [Problem("service", 0, "draft_path", f"{spec.algorithm} needs a draft model")],
                next="set draft and draft_path in the service's file",
            )
        yield "speculative-draft-model-path", service.draft_path or service.draft
        if service.draft_revision and not service.draft_revision.startswith("sha256:"):
            yield "speculative-draft-model-revision", service.draft_revision
    tokens = draft_tokens(profile)
    if tokens is not None:
        yield "speculative-num-draft-tokens", tokens
    if spec.algorithm == "DDTREE":
        # The engine picks backends by topk before a plugin is asked, so it is an option too.
        yield "speculative-eagle-topk", spec.topk
        if spec.block is not None:
            yield "speculative-dflash-block-size", spec.block


def _tree_env(profile: Profile) -> dict[str, str]:
    spec = profile.spec
    if spec.algorithm != "DDTREE":
        return {}
    return {"DDTREE_BUDGET": str(spec.budget), "DDTREE_TOPK": str(spec.topk)}


def _is_reference(text: str) -> bool:
    return text.startswith(("env:", "file:", "cmd:"))
