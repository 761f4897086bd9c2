"""What the reference shows of classes whose docstring or signature Sphinx reads differently than ``help()``.

Owns four corrections of what autodoc has found. Must never hide a docstring: what is left out is shown elsewhere in
the same entry.
"""

from __future__ import annotations

import inspect
from typing import Any

from pages import Documented
from sphinx.util.inspect import signature, stringify_signature

COLON = "\ue000"
"""Stands for a colon while napoleon reads a field's docstring, which would take the text before it for a type."""

SHOWN_AS = (Documented("holdfast.experiment", "Trial"), Documented("holdfast.schedulers", "ASHAScheduler"))
"""Classes with another name than the one that users import; autodoc would only say which class is meant."""

FIELDS = ("attribute", "property", "data")
BEFORE_NAPOLEON, AFTER_NAPOLEON = 400, 600


def show_init(app: Any, what: str, name: str, found: Any, options: Any, arguments: Any, returns: Any) -> Any:
    """The arguments of ``__init__``, where a ``__new__`` takes any: it only checks them."""
    if what not in ("class", "exception") or not inspect.isfunction(found.__new__):
        return None
    if not inspect.isfunction(found.__init__):
        return ("()", None)
    arguments = signature(found.__init__, bound_method=True)
    return stringify_signature(arguments, show_return_annotation=False, unqualified_typehints=True), None


def hide_fields(app: Any, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    """Without the fields of a settings class, which ``documented`` adds for ``help()``: each has an entry below."""
    kind = type(vars(found).get("__doc__")).__name__ if what == "class" else ""
    if kind == "_FieldsDocumented" and "Args:" in lines:
        del lines[lines.index("Args:") :]
        lines.append("")


def mask_colon(app: Any, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    """Let the first sentence of a field contain a colon."""
    if what in FIELDS and lines:
        lines[0] = lines[0].replace(":", COLON)


def unmask_colon(app: Any, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    """Put it back."""
    lines[:] = [line.replace(COLON, ":") for line in lines]


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    for one in SHOWN_AS:
        one.find().__name__ = one.name
    app.connect("autodoc-process-signature", show_init)
    app.connect("autodoc-process-docstring", hide_fields, priority=BEFORE_NAPOLEON)
    app.connect("autodoc-process-docstring", mask_colon, priority=BEFORE_NAPOLEON)
    app.connect("autodoc-process-docstring", unmask_colon, priority=AFTER_NAPOLEON)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
