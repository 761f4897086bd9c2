"""Searchers: who decides which configuration is tried next."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.search.base import Proposal, Proposer
from holdfast.search.basic_variant import BasicVariantGenerator
from holdfast.search.create import create_searcher
from holdfast.search.searcher import Searcher

if TYPE_CHECKING:
    pass

# Imported when they are first used: most of them need a library of their own.
_HOME_OF: dict[str, str] = {}

__all__ = [
    "BasicVariantGenerator",
    "Proposal",
    "Proposer",
    "Searcher",
    "create_searcher",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
