"""Empty stand-ins for packages that another engine's index imports on its way and never calls.

Both engines' index modules import the whole engine: GPU kernels, grammars, images. A stand-in lets
the import pass; what it offers does nothing. The index itself is never touched.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any


class _Names(type):
    """Of stand-in classes: any attribute is there, as an enumeration's members would be."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name

    def __getitem__(cls, key: Any) -> type:
        return cls


class _Nothing(metaclass=_Names):
    """Stands for any object of an absent package: a decorator, a type, a module, a base class."""

    def __init__(self, *args: Any, **options: Any) -> None:
        pass

    def __call__(self, *args: Any, **options: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not options else self

    def __getattr__(self, name: str) -> "_Nothing":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, key: Any) -> "_Nothing":
        return self

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (object,)

    def __or__(self, other: Any) -> Any:
        return other

    __ror__ = __or__

    @staticmethod
    def __get_pydantic_core_schema__(*_: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = frozenset(packages)

    def find_spec(
        self, name: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self._packages:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__dict__.update(__path__=[], __version__="0.0.0", __getattr__=_member)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _member(name: str) -> Any:
    """What a stand-in module has under `name`: a class where the name is written like one."""
    if name.startswith("__"):
        raise AttributeError(name)
    return _Names(name, (_Nothing,), {}) if name[:1].isupper() else _Nothing()


def stand_in(packages: Sequence[str]) -> None:
    """From here on, these packages can be imported; where one is installed, it comes first."""
    sys.meta_path.append(_Finder(packages))
