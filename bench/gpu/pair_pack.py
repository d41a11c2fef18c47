"""A trained pair in one byte a weight, so that it travels with the working tree.

    python bench/gpu/pair_pack.py unpack .gpu/pair.tar .gpu   # makes .gpu/target, .gpu/draft

Weights are put on an int8 grid, one scale a row, *before* the drafter is trained and before
anything is measured: what is unpacked is bit for bit the pair that was measured.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path

import torch
from safetensors.torch import load, load_file, save, save_file
from torch import Tensor

#: Written beside the weights as they are.
FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """int8 values and one scale a row of a matrix: the least power of two that fits the row.

    A power of two keeps seven bits of a weight exact in bf16, so doing it twice changes nothing.
    """
    part, power = torch.frexp(weight.float().abs().amax(1, keepdim=True).clamp(min=1e-30) / 127)
    scale = torch.ldexp(torch.ones_like(part), torch.where(part > 0.5, power, power - 1))
    return (weight.float() / scale).round().clamp(-127, 127).to(torch.int8), scale


def restore(values: Tensor, scale: Tensor) -> Tensor:
    return (values.float() * scale).to(torch.bfloat16)


def on_grid(weight: Tensor) -> Tensor:
    """The bf16 values a weight has after packing and unpacking; vectors are only rounded."""
    if weight.dim() != 2:
        return weight.to(torch.bfloat16)
    return restore(*quantise(weight))


def pack(folders: dict[str, Path], out: Path) -> None:
    """`folders` maps the names in the archive to checkpoint folders."""
    with tarfile.open(out, "w") as tar:
        for name, folder in folders.items():
            small: dict[str, Tensor] = {}
            for key, weight in load_file(folder / "model.safetensors").items():
                if weight.dim() != 2:
                    small[key] = weight
                    continue
                values, scale = quantise(weight)
                # What lies on the grid comes back as it is, or the archive is another model.
                if not torch.equal(restore(values, scale), weight):
                    raise SystemExit(f"{folder}: {key} does not lie on the int8 grid")
                small[key], small[key + ".scale"] = values, scale
            _add(tar, f"{name}/weights", save(small))
            said = json.loads((folder / "config.json").read_text()).get("dtype")
            if said != "bfloat16":
                raise SystemExit(f"{folder}/config.json says dtype {said}. next: bfloat16")
            for file in FILES:
                if (folder / file).exists():
                    _add(tar, f"{name}/{file}", (folder / file).read_bytes())


def unpack(archive: Path, into: Path) -> None:
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            folder, file = member.name.split("/")
            handle = tar.extractfile(member)
            if handle is None or folder not in ("target", "draft"):
                raise SystemExit(f"{archive}: unexpected member {member.name}")
            (into / folder).mkdir(parents=True, exist_ok=True)
            if file != "weights":
                (into / folder / file).write_bytes(handle.read())
                continue
            small = load(handle.read())
            full = {
                key: restore(weight, small[key + ".scale"])
                if weight.dtype == torch.int8
                else weight
                for key, weight in small.items()
                if not key.endswith(".scale")
            }
            save_file(full, into / folder / "model.safetensors", metadata={"format": "pt"})


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] != "unpack":
        raise SystemExit(__doc__)
    unpack(Path(sys.argv[2]), Path(sys.argv[3]))
