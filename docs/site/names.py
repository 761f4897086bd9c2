"""Links from a name in a text to the page that describes it.

Owns which inline code is a name of the reference. Guides stay plain Markdown: ``TuneConfig`` or ``tune.report()`` in
backticks becomes a link where it is first mentioned in a section, and so does ``holdfast status``. Must never guess: a
word that could be something else stays as it is.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from docutils import nodes
from pages import all_commands
from sphinx import addnodes
from sphinx.util.nodes import make_refnode

COMMAND_LINE = "docs/api/command-line"
CODE = re.compile(r"(?:tune\.|holdfast\.)?[A-Za-z_][\w.]*(\(.*\))?$", re.DOTALL)
COMMAND = re.compile(r"holdfast ([a-z-]+)\b")
Targets = dict[str, tuple[str, str]]
"""A page and an anchor in it, for each name."""


def note_anchors(app: Any, doctree: nodes.document) -> None:
    """Let Markdown link to an entry of the reference: ``[text](../api/tuner.md#holdfast.Tuner)``."""
    slugs = app.env.metadata[app.env.current_document.docname].setdefault("myst_slugs", {})
    for signature in doctree.findall(addnodes.desc_signature):
        for anchor in signature["ids"]:
            slugs.setdefault(anchor, (signature.line, anchor, anchor))


def find_targets(env: Any) -> Targets:
    """Every name of the reference, with all the shorter forms that mean nothing else."""
    objects = env.get_domain("py").objects
    forms: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for path, entry in objects.items():
        if entry.objtype == "module" or not path.startswith("holdfast."):
            continue
        target = (entry.docname, entry.node_id)
        parts = path.split(".")
        for start in range(len(parts)):
            forms[".".join(parts[start:])].add(target)
    return {form: next(iter(where)) for form, where in forms.items() if len(where) == 1 and _is_telling(form)}


def _is_telling(form: str) -> bool:
    """``TuneConfig``, ``Tuner.restore``, ``holdfast.report``; not ``run`` or ``path``."""
    first, _, rest = form.partition(".")
    return first[0].isupper() or (first == "holdfast" and bool(rest))


def target_of(code: str, targets: Targets) -> tuple[str, str] | None:
    """What inline code names, if it surely does."""
    command = COMMAND.match(code)
    if command:
        return (COMMAND_LINE, command[1]) if command[1] in all_commands() else None
    if not CODE.match(code):
        return None
    name = code.partition("(")[0]
    if name.startswith("tune."):
        name = "holdfast." + name.removeprefix("tune.")
    elif name.islower() and ("(" in code or "_" in name) and "." not in name:
        name = "holdfast." + name
    return targets.get(name) or targets.get(name.removeprefix("holdfast."))


def link_names(app: Any, doctree: nodes.document, page: str) -> None:
    """Make links of the names in a page."""
    targets = app.env.holdfast_targets = getattr(app.env, "holdfast_targets", None) or find_targets(app.env)
    seen: set[tuple[Any, tuple[str, str]]] = set()
    for literal in list(doctree.findall(nodes.literal)):
        target = target_of(literal.astext(), targets)
        if target is None or _is_in(literal, (nodes.reference, nodes.title, addnodes.desc_signature)):
            continue
        place = (_nearest(literal, (nodes.section, addnodes.desc)), target)
        if place in seen or target[1] in _own_anchors(literal):
            continue
        seen.add(place)
        link = make_refnode(app.builder, page, *target, literal.deepcopy())
        link["classes"].append("api-name")
        literal.replace_self(link)


def _nearest(node: nodes.Node, kinds: tuple[type, ...]) -> nodes.Node | None:
    while node is not None and not isinstance(node, kinds):
        node = node.parent
    return node


def _is_in(node: nodes.Node, kinds: tuple[type, ...]) -> bool:
    return _nearest(node.parent, kinds) is not None


def _own_anchors(node: nodes.Node) -> set[str]:
    """The anchors of the entries that a node stands in."""
    found: set[str] = set()
    while (node := _nearest(node.parent, (addnodes.desc,))) is not None:
        found.update(anchor for signature in node.findall(addnodes.desc_signature) for anchor in signature["ids"])
    return found


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("doctree-read", note_anchors)
    app.connect("doctree-resolved", link_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
