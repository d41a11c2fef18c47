"""The same pair at the cost of a large model: wider, deeper, and the same function.

    python bench/gpu/widen_pair.py .gpu /dev/shm/wide        # reads target/ and draft/

What a large target costs decides whether drafting pays, and a small one is bound by the host. So
the hidden size is padded with zeros (16 times: a norm's mean falls by 16, its output rises by 4,
and a quarter of its weight puts that right, exactly), the MLP gets random columns whose outputs are
multiplied by zero, and the target gets layers that add nothing. Logits stay the same up to
rounding; what is timed is labelled "widened", never as a trained model of that size.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

#: Times the hidden size. Norm weights are divided by its root, which must be a power of two.
FACTOR = 16


class Widener:
    """Maps the tensors of one checkpoint; `hidden` and `inner` are the new sizes."""

    def __init__(self, config: dict[str, Any], inner: int, device: str) -> None:
        self.old_hidden, self.old_inner = config["hidden_size"], config["intermediate_size"]
        self.hidden, self.inner = self.old_hidden * FACTOR, inner
        self.device = device

    def place(self, weight: Tensor, rows: int, columns: int, *, noise: bool = False) -> Tensor:
        """The weight in the upper left of a larger one; the rest zero, or small random numbers."""
        shape = (rows, columns)
        out = torch.zeros(shape, dtype=weight.dtype, device=self.device)
        if noise:
            out.normal_(std=0.02)
        out[: weight.shape[0], : weight.shape[1]] = weight.to(self.device)
        return out

    def norm(self, weight: Tensor) -> Tensor:
        out = torch.zeros(self.hidden, dtype=weight.dtype, device=self.device)
        out[: self.old_hidden] = weight.to(self.device) / FACTOR**0.5
        return out

    def features(self, weight: Tensor) -> Tensor:
        """The drafter's entrance, [H, n * H]: each captured layer keeps its own stretch."""
        parts = weight.split(self.old_hidden, 1)
        return torch.cat([self.place(p, self.hidden, self.hidden) for p in parts], 1)

    def tensor(self, name: str, weight: Tensor) -> Tensor:
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            return weight.to(self.device)
        if weight.dim() == 1:
            return self.norm(weight)
        if name == "fc.weight":
            return self.features(weight)
        if re.search(r"(embed_tokens|lm_head|[qkv]_proj)\.weight$", name):
            return self.place(weight, weight.shape[0], self.hidden)
        if name.endswith("o_proj.weight"):
            return self.place(weight, self.hidden, weight.shape[1])
        if name.endswith(("gate_proj.weight", "up_proj.weight")):
            return self.place(weight, self.inner, self.hidden, noise=True)
        if name.endswith("down_proj.weight"):
            return self.place(weight, self.hidden, self.inner)
        raise SystemExit(f"no rule for {name} {tuple(weight.shape)}")


def widen(source: Path, out: Path, inner: int, layers: int | None, device: str) -> int:
    """Write the widened checkpoint; returns how many weights it has."""
    config = json.loads((source / "config.json").read_text())
    wider = Widener(config, inner, device)
    old = load_file(source / "model.safetensors")
    new = {name: wider.tensor(name, weight) for name, weight in old.items()}
    have = config["num_hidden_layers"]
    layers = layers or have
    for extra in range(have, layers):
        for name in [n for n in old if f"layers.{have - 1}." in n]:
            weight = new[name]
            adds = name.endswith(("o_proj.weight", "down_proj.weight"))
            copy = name.replace(f"layers.{have - 1}.", f"layers.{extra}.")
            new[copy] = torch.zeros_like(weight) if adds else weight.clone()
    out.mkdir(parents=True, exist_ok=True)
    save_file({k: v.cpu().contiguous() for k, v in new.items()}, out / "model.safetensors",
              metadata={"format": "pt"})  # fmt: skip
    for file in source.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            shutil.copy(file, out / file.name)
    kind = config.get("layer_types", ["full_attention"])[0]
    config |= {
        "hidden_size": wider.hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "rms_norm_eps": config["rms_norm_eps"] / FACTOR, "layer_types": [kind] * layers,
        "max_window_layers": layers,
    }  # fmt: skip
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return sum(t.numel() for t in new.values())


def widen_pair(source: Path, out: Path, inner: int, layers: int, device: str) -> dict[str, int]:
    sizes = {
        "target": widen(source / "target", out / "target", inner, layers, device),
        "draft": widen(source / "draft", out / "draft", inner, None, device),
    }
    config = json.loads((out / "draft/config.json").read_text())
    config["num_target_layers"] = layers
    (out / "draft/config.json").write_text(json.dumps(config, indent=1) + "\n")
    return sizes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--inner", type=int, default=12288)
    parser.add_argument("--layers", type=int, default=24)
    given = parser.parse_args()
    where = "cuda" if torch.cuda.is_available() else "cpu"
    print(json.dumps(widen_pair(given.source, given.out, given.inner, given.layers, where)))
