"""RUN-*: this launch line, on this release, for this model, on these GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddops.compat import tables
from ddops.compat.fit import Split, fit
from ddops.compat.model import Look, Outcome, fail, ok, skip, unknown, warn
from ddops.compat.options import lint, values_of
from ddops.probe.version import older

_ATTENTION = ("attention-backend", "decode-attention-backend", "prefill-attention-backend")
_OF = "ddops check HOST --for SERVICE"


def _no_launch(look: Look) -> Outcome | None:
    return None if look.launch is not None else skip(f"no launch is judged; {_OF}")


def _values(look: Look) -> Mapping[str, str]:
    return values_of(look.launch) if look.launch else {}


def _data() -> Mapping[str, Any]:
    return tables.table("backends").data


def _families(look: Look) -> set[str] | None:
    return {str(k["family"]) for k in look.kinds} if look.kinds is not None else None


def _kind(look: Look) -> str | None:
    """mla, mha, or None when the model is not in the table."""
    name = look.launch.model.lower() if look.launch else ""
    models = _data()["models"]
    return next((k for k in ("mla", "mha") if any(part in name for part in models[k])), None)


def _for_gpus(look: Look) -> bool:
    """Whether the engine would look for a GPU: it does where it is told no other device."""
    env = look.launch.env if look.launch else {}
    return _values(look).get("device", "cuda") == "cuda" and "SGLANG_USE_CPU_ENGINE" not in env


def _newer(look: Look) -> Outcome | None:
    table, version = tables.table("backends"), look.launch.version if look.launch else ""
    return unknown(table.ends(f"sglang {version}")) if table.beyond(version) else None


def run_01(look: Look) -> Outcome:
    if look.launch is None:
        return skip(f"no launch is judged; {_OF}")
    flags = tables.flags(look.launch.version)
    if flags is None:
        known = tables.flag_versions()
        return unknown(
            f"sglang {look.launch.version}: option tables are of {known[0]} to {known[-1]}"
        )
    faults = lint(look.launch.argv, flags)
    bad = [f"{f.option} {f.what}" for f in faults if f.fatal]
    if bad:
        return fail("; ".join(bad))
    old = [f"{f.option} {f.what}" for f in faults]
    return warn("; ".join(old)) if old else ok(f"every option is one of {flags.version}")


def run_02(look: Look) -> Outcome:
    """The engine's own gate lets trtllm_mla pass on 12.0; its kernels then refuse.

    On a host of class cpu no check of GPUs is asked: this one says that the launch wants some.
    """
    if (early := _no_launch(look)) is not None:
        return early
    if look.subject.host_class == "cpu" and _for_gpus(look):
        count = len(look.facts.gpus or ())
        mend = 'a host of class nvlink or pcie; a launch for CPUs says device = "cpu"'
        if count:
            mend = "set `class` in hosts.toml: without it no GPU is judged"
        return fail(f"the launch is for GPUs, and the host is of class cpu with {count}", mend)
    values, table, kind = _values(look), _data()["attention"], _kind(look)
    asked = {k: values[k] for k in _ATTENTION if k in values}
    if not asked:
        return ok("the engine chooses its own backend")
    if look.subject.host_class == "cpu":
        return skip("a CPU host")
    open_: list[str] = []
    for option, name in asked.items():
        row = table.get(name)
        if row is None:
            open_.append(f"{option} {name} is not in the table")
            continue
        families = _families(look)
        missing = sorted(families - set(row["families"])) if families is not None else []
        if missing:
            return fail(f"{option} {name} has no kernels for GPUs of family {', '.join(missing)}",
                        "triton, or flashinfer for a model without MLA")  # fmt: skip
        if kind is not None and not row[kind]:
            seen = f"{option} {name} does not serve {kind.upper()} models"
            return fail(seen, "triton serves both")
        if kind is None and not (row["mla"] and row["mha"]):
            open_.append(f"{name} serves one kind of attention, and the model's is not known")
        if row.get("decode_only") and option == "prefill-attention-backend":
            return fail(f"{name} decodes only")
        if families is None:
            open_.append(look.unknown_kind)
    if (newer := _newer(look)) is not None:
        return newer
    words = ", ".join(sorted(set(asked.values())))
    return unknown("; ".join(open_)) if open_ else ok(f"{words} runs on these GPUs")


def run_03(look: Look) -> Outcome:
    if (early := _no_launch(look)) is not None:
        return early
    name = _values(look).get("moe-runner-backend", "auto")
    row, families = _data()["moe"].get(name), _families(look)
    if look.subject.host_class == "cpu":
        return skip("a CPU host")
    if families is None:
        return unknown(look.unknown_kind)
    if row is None:
        return unknown(f"MoE backend {name} is not in the table")
    missing = sorted(families - set(row["families"]))
    if missing:
        return fail(f"MoE backend {name} has no kernels for GPUs of family {', '.join(missing)}")
    least, have = row.get("deep_gemm_min_12x"), look.chain.package("sgl-deep-gemm", "deep-gemm")
    uses = name == "deep_gemm" or _values(look).get("fp8-gemm-backend") == "deep_gemm"
    least = least or _data()["moe"]["deep_gemm"]["deep_gemm_min_12x"]
    if uses and "12x" in families:
        if have is None:
            return unknown("DeepGEMM's version is not known; 12.x needs sgl-deep-gemm 0.1.5")
        if older(have, str(least)):
            return fail(f"sgl-deep-gemm {have} has no kernels for 12.x; {least} is the first")
    fp4 = "fp4" in _values(look).get("quantization", "")
    if (
        fp4
        and families & set(_data()["moe"]["flashinfer_cutlass"]["fp4_race"])
        and name in ("auto", "flashinfer_cutlass")
    ):
        return warn("CUTLASS FP4 kernels are reported to race on 12.x",
                    "--fp4-gemm-backend of cuDNN, and clear FlashInfer's JIT cache")  # fmt: skip
    return _newer(look) or ok(f"MoE backend {name}")


def run_04(look: Look) -> Outcome:
    if (early := _no_launch(look)) is not None:
        return early
    values, families = _values(look), _families(look)
    dtype = values.get("kv-cache-dtype", "auto")
    if look.subject.host_class == "cpu":
        return skip("a CPU host")
    for option in _ATTENTION:
        row = _data()["attention"].get(values.get(option, ""), {})
        name = values.get(option)
        if row.get("kv_required") and dtype not in row["kv_required"]:
            return fail(f"{name} takes {' or '.join(row['kv_required'])} KV, not {dtype}",
                        f"--kv-cache-dtype {row['kv_required'][0]}")  # fmt: skip
        pages = row.get("page_sizes")
        size = values.get("page-size")
        if pages and size and size.isdigit() and int(size) not in pages:
            return fail(f"{name} takes pages of {' or '.join(map(str, pages))} tokens, not {size}")
        if families and "12x" in families and dtype in row.get("kv_refused_12x", ()):
            return fail(f"{name} refuses {dtype} KV on 12.x")
        mla = _kind(look) == "mla"
        if families and "12x" in families and mla and dtype in row.get("kv_refused_mla_12x", ()):
            return fail(f"{name} with {dtype} KV gives wrong text for MLA models on 12.x",
                        "bf16 KV, or --attention-backend triton")  # fmt: skip
    if families is None:
        return unknown(look.unknown_kind)
    return _newer(look) or ok(f"KV type {dtype}")


def run_05(look: Look) -> Outcome:
    """Kernels tuned for 228 KB a block die on GPUs with 99 KB."""
    if (early := _no_launch(look)) is not None:
        return early
    log = str((look.chain.proved or {}).get("log", {}).get("text", ""))
    if "out of resource: shared memory" in log:
        return fail("a kernel asked for more shared memory than the GPU has")
    if look.subject.host_class == "cpu":
        return skip("a CPU host")
    if look.kinds is None:
        return unknown(look.unknown_kind)
    limits = [k.get("smem_optin") for k in look.kinds]
    if not all(isinstance(x, int) for x in limits):
        return unknown("the shared-memory limit of these GPUs is not in the table")
    limit, values = min(int(str(x)) for x in limits), _values(look)
    for row in _data()["shared_memory"]:
        if values.get(row["option"]) != row["value"] or (row.get("mla") and _kind(look) != "mla"):
            continue
        before = row.get("before")
        if before and not older(look.launch.version if look.launch else "", before):
            continue
        if row["bytes"] > limit:
            return fail(f"{row['what']}; the limit here is {limit}")
    return ok(f"no kernel known to need more than {limit} bytes a block")


def run_06(look: Look) -> Outcome:
    if (early := _no_launch(look)) is not None:
        return early
    assert look.launch is not None  # noqa: S101 - asked above
    values, data = _values(look), _data()["speculative"]
    name = values.get("speculative-algorithm", "none").upper()
    if name == "NONE":
        return ok("no speculative decoding")
    version = look.launch.version
    if name in data["plugin"] or name not in data["known"]:
        if name not in look.launch.plugins:
            return fail(f"{name} is in no SGLang release up to {tables.table('backends').end}",
                        "DFLASH, or declare the plugin or fork that adds it")  # fmt: skip
        if older(version, str(data["plugin_from"])):
            return fail(
                f"sglang {version} takes no plugin algorithms; {data['plugin_from']} is the first"
            )
    if name == "DFLASH" and older(version, str(data["dflash_from"])):
        return fail(f"sglang {version} has no DFLASH; {data['dflash_from']} is the first")
    if name in ("DFLASH", "DDTREE") and (bad := _block_rules(name, values, data)):
        return fail(bad)
    if (tree := _tree(look, name, values)) is not None:
        return tree
    families = _families(look)
    if name == "NGRAM" and families and families & set(data["ngram_suspect"]):
        return warn("NGRAM is reported to die with an illegal memory access on 12.x")
    draft = values.get("speculative-draft-attention-backend")
    if name == "DFLASH" and draft and draft not in data["dflash_draft_backends"]:
        return warn(f"draft backend {draft} is not taken; the engine falls back to flashinfer")
    forced = [
        k for k in ("speculative-num-steps", "speculative-eagle-topk") if values.get(k, "1") != "1"
    ]
    if name == "DFLASH" and forced:
        return warn(f"DFLASH forces {', '.join(forced)} to 1")
    return _newer(look) or ok(f"{name}: its rules hold")


def _block_rules(name: str, values: Mapping[str, str], data: Mapping[str, Any]) -> str:
    """What ends the start of a block drafter."""
    block, tokens = (
        values.get(f"speculative-{k}") for k in ("dflash-block-size", "num-draft-tokens")
    )
    window = values.get(
        "speculative-draft-window-size", values.get("speculative-dflash-draft-window-size")
    )
    dp = values.get("enable-dp-attention") == "true" or values.get("attn-dp-size", "1") != "1"
    if "speculative-draft-model-path" not in values:
        return f"{name} needs --speculative-draft-model-path"
    if values.get("pp-size", "1") != "1":
        return f"{name} does not run with a pipeline: --pp-size is {values['pp-size']}"
    if name == "DFLASH" and block and tokens and block != tokens:
        return f"--speculative-num-draft-tokens {tokens} is not the block size {block}"
    if block and window and block.isdigit() and window.isdigit() and int(window) < int(block):
        return f"the draft window {window} is smaller than the block {block}"
    if dp and values.get("enable-dp-lm-head") != "true":
        return f"{name} with data-parallel attention needs --enable-dp-lm-head"
    if values.get("disaggregation-mode", "null") not in ("null", "none"):
        return f"{name} does not work with prefill/decode disaggregation"
    if values.get("kv-cache-dtype") == "nvfp4":
        return f"{name} does not work with an NVFP4 KV cache"
    return ""


def _tree(look: Look, name: str, values: Mapping[str, str]) -> Outcome | None:
    """A backend that drops the tree's mask gives plausible, wrong text."""
    topk = values.get("speculative-eagle-topk", "1")
    if not (name == "DDTREE" or (name.startswith("EAGLE") and topk not in ("1", "true"))):
        return None
    # A verify pass runs on the prefill backend, unless it is told to run on the other one.
    half = values.get("speculative-attention-mode", "prefill")
    backend = values.get(f"{half}-attention-backend", values.get("attention-backend"))
    kind, families = _kind(look), _families(look)
    if look.subject.host_class == "cpu":
        return None
    if backend is None:
        if families == {"12x"}:
            return None  # the engine takes triton for MLA and flashinfer for MHA: both apply trees
        return unknown("a tree, and no attention backend named", "--attention-backend triton")
    row = _data()["attention"].get(backend)
    if row is None:
        return unknown(f"whether {backend} applies a tree mask is not in the table")
    if kind is None and set(row["tree"]) != {"mla", "mha"}:
        if not row["tree"]:
            return fail(
                f"{backend} applies no tree mask: silently wrong text",
                "--attention-backend triton",
            )
        return unknown(f"whether {backend} applies a tree mask depends on the model's attention")
    fits = (
        {kind, *(f"{kind}@{f}" for f in families or ())} & set(row["tree"])
        if kind
        else set(row["tree"])
    )
    if not fits:
        return fail(f"{backend} applies no tree mask to {str(kind).upper()} models: wrong text",
                    "--attention-backend triton")  # fmt: skip
    return None


def run_07(look: Look) -> Outcome:
    """A launch that cannot fit fails after minutes of loading, and the old service is gone."""
    if (early := _no_launch(look)) is not None:
        return early
    values = _values(look)
    numbers = [values.get(k, "1") for k in ("tp-size", "pp-size", "nnodes")]
    if not all(n.isdigit() and int(n) for n in numbers):
        return unknown(f"sizes are not numbers: {', '.join(numbers)}")
    tp, pp, nodes = map(int, numbers)
    need = -(-tp * pp // nodes)
    have = len(look.facts.gpus or ())
    if look.subject.host_class == "cpu":
        return skip("a CPU host")
    if look.facts.gpus is None:
        return unknown("the GPUs are not known")
    if need > have:
        return fail(f"the launch needs {need} GPUs on this host, {have} are there")
    fraction = values.get("mem-fraction-static", "1")
    try:
        share = float(fraction)
    except ValueError:
        return fail(f"--mem-fraction-static {fraction} is no number")
    if not 0 < share <= 1:
        return fail(f"--mem-fraction-static {fraction} is no share of the memory")
    return _memory(look, values, Split(tp, pp, _kv_bytes(values)), share)


def _kv_bytes(values: Mapping[str, str]) -> int:
    return 1 if values.get("kv-cache-dtype", "auto").startswith("fp8") else 2


def _memory(look: Look, values: Mapping[str, str], split: Split, share: float) -> Outcome:
    """Weights that lie on the host against the memory of its smallest GPU."""
    gpus = split.tensor * split.pipeline
    memory = [g.memory_mib for g in look.facts.gpus or ()]
    known = [m for m in memory if m is not None]
    if not known or len(known) != len(memory):
        return unknown("the memory of the GPUs is not known")
    models = look.chain.models or {}
    target = models.get(values.get("model-path", ""))
    draft = models.get(values.get("speculative-draft-model-path", ""))
    if target is None or target.bytes is None:
        return unknown(
            f"{gpus} GPUs are there; the weights are not on the host yet, so nothing is estimated",
            "ddops provision HOST",
        )
    extra = draft.bytes or 0 if draft is not None else 0
    found = fit(target.bytes, extra, min(known), share, target.sizes, split)
    if found.room <= 0:
        return fail(f"the weights alone do not fit: {found.words}")
    if found.tokens is None:
        return unknown(f"{found.words}; config.json does not size the KV cache")
    wanted = values.get("max-total-tokens", "1")
    if wanted.isdigit() and found.tokens < int(wanted):
        return fail(f"--max-total-tokens {wanted} does not fit: {found.words}")
    return ok(found.words)


def run_08(look: Look) -> Outcome:
    if (early := _no_launch(look)) is not None:
        return early
    assert look.launch is not None  # noqa: S101 - asked above
    env = {**(look.chain.environ or {}), **look.launch.env}
    dead = [
        f"{row['name']} (nothing reads it since {row['since']})"
        for row in _data()["obsolete_env"]
        if row["name"] in env and older(look.launch.version, row["since"]) is False
    ]
    return (
        warn(f"without effect: {', '.join(dead)}") if dead else ok("no variable known to be dead")
    )


def run_09(look: Look) -> Outcome:
    """Only a started engine can answer: the golden gate of a deploy, or a recorded proof."""
    if (early := _no_launch(look)) is not None:
        return early
    proof = (look.chain.proved or {}).get("canary")
    if proof is None:
        return unknown(
            "only a started engine can answer: the golden gate of a deploy asks it", "ddops deploy"
        )
    if proof.get("ok") is True:
        return ok("answers are sane")
    return fail(f"answers are not sane: {str(proof.get('error') or 'no reason given')[:160]}")
