"""The `sim` engine: a scripted stand-in for SGLang's server. No model runs here."""

from sglang.version import __version__

__all__ = ["__version__"]
