"""Objects that may be imported, named and annotated with, and raise when they are used."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import NoReturn


def refuse(name: str) -> NoReturn:
    """Raise for the use of `name`; nothing missing may ever pass as a silent no-op."""
    raise NotImplementedError(
        f"{name} is not available on the CPU engine "
        "(ddops-sglang-cpu has only a stand-in for its import)"
    )


def is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


class Placeholder:
    """A function or constant of a stubbed module. Attributes give placeholders; a call raises."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Placeholder:
        if is_dunder(attribute):  # hasattr(x, "__cuda_array_interface__") must say no
            raise AttributeError(attribute)
        child = Placeholder(f"{self._name}.{attribute}")
        setattr(self, attribute, child)
        return child

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        refuse(self._name)

    def __getitem__(self, key: object) -> NoReturn:
        refuse(f"{self._name}[...]")

    def __iter__(self) -> Iterator[NoReturn]:
        refuse(f"iter({self._name})")

    def __bool__(self) -> NoReturn:
        refuse(f"bool({self._name})")

    def __repr__(self) -> str:
        return f"<CPU placeholder {self._name}>"


class PlaceholderType(type):
    """Metaclass of a stubbed module's classes: good for isinstance and subclassing, not for use."""

    def __getattr__(cls, attribute: str) -> Placeholder:
        if is_dunder(attribute):
            raise AttributeError(attribute)
        # Enum members, used as defaults of parameters.
        return Placeholder(f"{cls.__module__}.{cls.__name__}.{attribute}")

    def __call__(cls, *args: object, **kwargs: object) -> NoReturn:
        refuse(f"{cls.__module__}.{cls.__name__}")


class StubModule(ModuleType):
    """Stands for a module that is not installed. Capitalised names are classes."""

    def __getattr__(self, attribute: str) -> object:
        if is_dunder(attribute):
            raise AttributeError(attribute)
        value: object
        if attribute[0].isupper():
            value = PlaceholderType(attribute, (), {"__module__": self.__name__})
        else:
            value = Placeholder(f"{self.__name__}.{attribute}")
        setattr(self, attribute, value)
        return value
