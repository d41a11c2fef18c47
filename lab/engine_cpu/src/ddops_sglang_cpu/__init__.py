"""What unmodified SGLang lacks on a CPU: import stand-ins, a few kernels, one plugin.

Importing this package imports nothing else: the .pth file does so at the start of every Python
process.
"""

__version__ = "0.1.0"

SGLANG_VERSION = "0.5.23"
"""The one SGLang version whose private functions the plugin knows."""
