"""Where callers look for SGLang's argument parser. It parses; nothing is launched."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from sglang import _sim_args
from sglang._sim_flags import add_flags

__all__ = ["ServerArgs", "prepare_server_args"]


class ServerArgs(argparse.Namespace):
    """The parsed options as attributes, unresolved until `resolve_once`."""

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        """Adds every option to a parser of the caller's."""
        add_flags(parser)

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> ServerArgs:
        """The same values under this class."""
        return cls(**vars(args))

    def resolve_once(self) -> None:
        """Raises what a start with these options would die of."""
        self.__dict__.update(self.resolved_dict())

    def resolved_dict(self) -> dict[str, Any]:
        """Every field with its effective value."""
        return dict(_sim_args.resolve(dict(vars(self)), (), os.environ).values)


def prepare_server_args(argv: Sequence[str]) -> ServerArgs:
    """Parses as a start would; argparse's own error and exit status 2 on a bad flag."""
    return ServerArgs(**vars(_sim_args.prepare_server_args(argv)))
