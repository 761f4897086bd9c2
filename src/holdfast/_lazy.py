"""Names of a package that are imported when they are first used.

Owns the ``__getattr__`` and ``__dir__`` of those packages. Must never import anything before a name is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, names: Sequence[str], modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and the ``__dir__`` of a package.

    Args:
        package: Its ``__name__``.
        names: Its ``__all__``.
        modules: Name -> the module that has it, in full or, without a dot, one of the package.
    """

    def look_up(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = modules[name] if "." in modules[name] else f"{package}.{modules[name]}"
        value = getattr(import_module(module), name)
        setattr(sys.modules[package], name, value)
        return value

    return look_up, lambda: sorted(names)
