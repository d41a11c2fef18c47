"""From argv to the effective server arguments: `--config`, parse, resolve."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang._sim_flags import add_flags, load_table

ALGORITHMS = (
    "DFLASH", "UNO", "DSPARK", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "STANDALONE", "NGRAM", "DDTREE",
)  # fmt: skip
BLOCK = 8  # the drafter's block when neither a flag nor the draft's config.json says


@dataclass(frozen=True)
class ServerArgs:
    """`values` holds every field, resolved; `argv` is what was asked for, config file merged."""

    values: Mapping[str, Any]
    argv: tuple[str, ...]
    model: Mapping[str, Any]
    block: int = BLOCK  # the drafter's, which bounds what one step can commit

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def launch_command(self) -> str:
        """As upstream reports it: secrets included."""
        return " ".join(self.argv)

    @property
    def speculative(self) -> bool:
        return self.values["speculative_algorithm"] is not None


def prepare_server_args(argv: Sequence[str]) -> argparse.Namespace:
    """Parses as upstream does. Argparse's own error and exit status 2 on a bad flag."""
    return _parse(argv)[0]


def resolve_server_args(argv: Sequence[str], environ: Mapping[str, str]) -> ServerArgs:
    """Parses and resolves. ValueError or OSError where upstream dies while it starts."""
    namespace, merged, fields = _parse(argv)
    return resolve({**fields, **vars(namespace)}, merged, environ)


def resolve(values: dict[str, Any], argv: Sequence[str], environ: Mapping[str, str]) -> ServerArgs:
    """Fills in what was left open. The effective values are what `/server_info` reports."""
    values.pop("config", None)
    model = _read_config(values["model_path"])
    block = _resolve_speculative(values, environ)
    values["tokenizer_path"] = values["tokenizer_path"] or values["model_path"]
    values["served_model_name"] = values["served_model_name"] or values["model_path"]
    values["device"] = values["device"] or "sim"
    if values["random_seed"] is None:
        values["random_seed"] = 42
    if values["max_running_requests"] is None:
        values["max_running_requests"] = 48 if values["speculative_algorithm"] else 256
    if values["context_length"] is None:
        values["context_length"] = int(model.get("max_position_embeddings", 32768))
    if values["max_total_tokens"] is None:
        values["max_total_tokens"] = 1 << 20
    return ServerArgs(values, tuple(argv), model, block)


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str], dict[str, Any]]:
    table = load_table()
    parser = argparse.ArgumentParser(prog="sglang serve")
    add_flags(parser, table)
    merged = merge_config(parser, list(argv))
    return parser.parse_args(merged), merged, table["fields"]


def merge_config(parser: argparse.ArgumentParser, argv: list[str]) -> list[str]:
    """Puts the options of `--config FILE` before the others, so that the others win."""
    at = [i for i, word in enumerate(argv) if word == "--config"]
    if not at:
        return argv
    if len(at) > 1:
        raise ValueError("Multiple config files specified! Only one allowed.")
    if at[0] == len(argv) - 1:
        raise ValueError("No config file specified after --config flag!")
    path = Path(argv[at[0] + 1])
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise ValueError(f"Config file must be YAML format, got: {path.suffix}")
    if not path.exists():
        raise ValueError(f"Config file not found: {path}")
    flags = {
        key
        for action in parser._actions
        if isinstance(action, argparse._StoreTrueAction)
        for key in [action.dest, *(o[2:].replace("-", "_") for o in action.option_strings)]
    }
    merged: list[str] = []
    for key, value in read_yaml(path.read_text(encoding="utf-8")).items():
        if isinstance(value, bool) and key.replace("-", "_") in flags:
            merged += [f"--{key}"] if value else []
        elif isinstance(value, bool):
            merged += [f"--{key}", str(value).lower()]
        elif isinstance(value, list):
            merged += [f"--{key}", *map(str, value)] if value else []
        else:
            merged += [f"--{key}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return merged + argv[: at[0]] + argv[at[0] + 2 :]


def read_yaml(text: str) -> dict[str, Any]:
    """JSON (which is YAML), or lines of `key: value`; no YAML library comes with the stand-in."""
    if not text.strip():
        return {}
    if text.lstrip().startswith("{"):
        value = json.loads(text)
        return dict(value)
    out: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.split(" #")[0].rstrip()
        if not line or line.startswith("#") or line == "---":
            continue
        key, colon, rest = line.partition(":")
        if not colon or line[0].isspace() or line[0] == "-":
            raise ValueError(f"line {number}: the sim engine reads JSON or flat `key: value` only")
        out[key.strip().strip("'\"")] = _scalar(rest.strip())
    return out


def _scalar(text: str) -> Any:
    words = {"true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    if text.startswith(("[", "{", '"')):
        return json.loads(text)
    return text.strip("'")


def _read_config(model_path: str) -> dict[str, Any]:
    """The model's config.json, or nothing when the folder has none. OSError: no such path."""
    if not Path(model_path).exists():
        raise OSError(
            f"Can't load the configuration of '{model_path}'. Make sure '{model_path}' is the "
            "correct path to a directory containing a config.json file"
        )
    config = Path(model_path, "config.json")
    if not config.is_file():
        return {}
    value: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
    return value


def _resolve_speculative(values: dict[str, Any], environ: Mapping[str, str]) -> int:
    name = values["speculative_algorithm"]
    if name is None:
        return BLOCK
    name = "EAGLE" if name.upper() == "NEXTN" else name.upper()
    if name not in ALGORITHMS:
        raise ValueError(f"Unknown speculative algorithm name: {values['speculative_algorithm']}")
    values["speculative_algorithm"] = name
    draft = values["speculative_draft_model_path"]
    if draft is None and name in ("DFLASH", "DDTREE"):
        raise ValueError(
            f"{name} speculative decoding requires setting --speculative-draft-model-path."
        )
    config = _read_config(draft) if draft is not None else {}
    block = int(values["speculative_dflash_block_size"] or config.get("block_size", BLOCK))
    if values["speculative_num_draft_tokens"] is None:
        budget = ddtree_setting(environ, "DDTREE_BUDGET")
        tree = budget + 1 if name == "DDTREE" and budget is not None else 0
        values["speculative_num_draft_tokens"] = max(block, tree)
    values["speculative_num_steps"] = values["speculative_num_steps"] or 1
    if values["speculative_eagle_topk"] is None:
        topk = ddtree_setting(environ, "DDTREE_TOPK") if name == "DDTREE" else None
        values["speculative_eagle_topk"] = topk or 1
    return block


def ddtree_setting(environ: Mapping[str, str], name: str) -> int | None:
    """A whole number from the environment, or None when it is unset. ValueError otherwise."""
    text = environ.get(name, "")
    if not text:
        return None
    if not text.isdigit():
        raise ValueError(f"{name} must be a whole number, not {text!r}")
    return int(text)


def home() -> Path:
    """`$HOME`, else the folder the process stands in."""
    return Path(os.environ.get("HOME") or ".")
