"""Sampled verification on a CPU, where SGLang has no kernel and would answer greedily."""

from __future__ import annotations


def install() -> None:
    """To be written below."""
