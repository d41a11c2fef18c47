"""The part of triton that runs while SGLang's modules are imported.

Decorating a kernel works, launching one raises: SGLang has about a thousand `@triton.jit` functions
at module level and takes other paths on a CPU, so a launch means that such a path is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from ddops_sglang_cpu.placeholders import refuse


class Kernel:
    """A decorated triton function. `kernel[grid](...)` and `kernel(...)` raise."""

    def __init__(self, fn: Callable[..., object]) -> None:
        self.fn = fn
        self.__name__ = fn.__name__
        self.__qualname__ = fn.__qualname__
        self.__module__ = fn.__module__
        self.__doc__ = fn.__doc__

    def __getitem__(self, grid: object) -> Callable[..., NoReturn]:
        return self.__call__

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        refuse(f"triton kernel {self.__module__}.{self.__qualname__}")

    def run(self, *args: object, **kwargs: object) -> NoReturn:
        self(*args, **kwargs)

    warmup = run


KernelDecorator = Callable[[Callable[..., object] | Kernel], Kernel]


def _decorate(fn: Callable[..., object] | Kernel) -> Kernel:
    return fn if isinstance(fn, Kernel) else Kernel(fn)


def jit(fn: Callable[..., object] | None = None, **options: object) -> Kernel | KernelDecorator:
    """`@triton.jit` and `@triton.jit(option=...)`."""
    return _decorate if fn is None else _decorate(fn)


def configured(*args: object, **kwargs: object) -> KernelDecorator:
    """`@triton.autotune(...)` and `@triton.heuristics(...)`, whose arguments matter at launch."""
    return _decorate


class Config:
    """`triton.Config`, built in decorator arguments at import; holds what it was given."""

    def __init__(self, kwargs: dict[str, object], **options: object) -> None:
        self.kwargs = kwargs
        self.options = options


class Constexpr:
    """`tl.constexpr`, an annotation and a wrapper of module-level constants."""

    def __init__(self, value: object = None) -> None:
        self.value = value


def cdiv(a: int, b: int) -> int:
    """Ceiling of a / b; host-side arithmetic, so it is real."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """Smallest power of two that is at least n (n >= 1); host-side arithmetic, so it is real."""
    if n < 1:
        raise ValueError(f"next_power_of_2 needs n >= 1, got {n}")
    return 1 << (n - 1).bit_length()


MODULE_ATTRIBUTES: dict[str, dict[str, object]] = {
    "triton": {
        "__version__": "3.0.0",  # read and compared at import
        "Config": Config,
        "autotune": configured,
        "cdiv": cdiv,
        "constexpr_function": jit,
        "heuristics": configured,
        "jit": jit,
        "next_power_of_2": next_power_of_2,
    },
    "triton.experimental.gluon": {"jit": jit},
    "triton.language": {"constexpr": Constexpr},
    "triton.runtime.jit": {"JITFunction": Kernel, "constexpr_function": jit},
}
"""Real attributes by module name; every other name is a placeholder."""
