"""What the site makes of the Markdown files of the repository, which stay readable without it.

Owns five rewritings of a page's text, just before it is parsed:

- an ``{api}`` block, a module and names in it, becomes their reference, from their docstrings;
- a ``{commands}`` block becomes the reference of the command line, from its parser;
- an ``{aliases}`` block, a list of modules, becomes a table of the names in them;
- in a page that lists others, its links become the table of contents, section by section;
- an example (``*.py``) becomes a page with its docstring and its code.

Must never change a file.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import posixpath
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple

API_BLOCK = re.compile(r"^```\{api\} (\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMANDS_BLOCK = re.compile(r"^```\{commands\}\n.*?^```$", re.DOTALL | re.MULTILINE)
ALIASES_BLOCK = re.compile(r"^```\{aliases\}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[([^]]+)\]\(([\w./-]+)\.(?:md|py)\)")
LISTS = ("docs/index", "docs/adr/README", "docs/api/README", "examples/README")
"""Pages whose links are the table of contents."""


class Documented(NamedTuple):
    """One name of an ``{api}`` block."""

    module: str
    name: str

    @property
    def path(self) -> str:
        """The name by which it is linked to."""
        return f"{self.module}.{self.name}"

    def find(self) -> Any:
        """The object itself."""
        return getattr(import_module(self.module), self.name)


def documented(text: str) -> Iterator[Documented]:
    """The names of all ``{api}`` blocks of a page."""
    for block in API_BLOCK.finditer(text):
        for name in block[2].split():
            names = public_names(block[1]) if name == "*" else [name]
            yield from (Documented(block[1], each) for each in names)


def public_names(module: str) -> list[str]:
    """What a module offers: its ``__all__``, or else what it defines without an underscore."""
    found = import_module(module)
    if hasattr(found, "__all__"):
        return list(found.__all__)
    own = {name: value for name, value in vars(found).items() if getattr(value, "__module__", None) == module}
    return [name for name in own if not name.startswith("_")]


def reference(text: str) -> str:
    """The page with the reference in place of its ``{api}`` blocks."""

    def directives(block: re.Match[str]) -> str:
        entries = [_directive(one) for one in documented(block[0])]
        return "\n".join(["```{eval-rst}", *entries, "```"])

    return API_BLOCK.sub(directives, text)


def _directive(one: Documented) -> str:
    found = one.find()
    if inspect.isclass(found):
        kind = "autoexception" if issubclass(found, BaseException) else "autoclass"
        bases = ["   :show-inheritance:"] if kind == "autoexception" else []
        return "\n".join([f".. {kind}:: {one.path}", "   :members:", *bases, ""])
    kind = "autofunction" if inspect.isroutine(found) else "autodata"
    return f".. {kind}:: {one.path}\n"


def commands(text: str) -> str:
    """The page with the reference of the command line in place of its ``{commands}`` block."""
    return COMMANDS_BLOCK.sub(lambda _: "\n".join(_command(*one) for one in all_commands().items()), text)


def all_commands() -> dict[str, argparse.ArgumentParser]:
    """Each command that ``holdfast --help`` lists, and its parser."""
    parser = import_module("holdfast.cli.parser").make_parser()
    (choices,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return {action.dest: choices.choices[action.dest] for action in choices._choices_actions}


def _command(name: str, parser: argparse.ArgumentParser) -> str:
    formatter = argparse.HelpFormatter(prog=parser.prog, width=100)
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups, prefix="")
    rows = [_option(action) for action in parser._actions if action.help != argparse.SUPPRESS and action.dest != "help"]
    examples = (parser.epilog or "").removeprefix("examples:\n")
    lines = [f"## {name}", "", parser.description or "", "", "```text", formatter.format_help().strip(), "```", ""]
    lines += ["| | |", "|---|---|", *rows, ""] if rows else []
    lines += ["```text", inspect.cleandoc(examples), "```", ""] if examples else []
    return "\n".join(lines)


def _option(action: argparse.Action) -> str:
    metavar = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    value = "" if action.nargs == 0 and action.option_strings else str(metavar)
    names = [" ".join(filter(None, [name, value])) for name in action.option_strings] or [value]
    shown = ", ".join(f"`{name}`".replace("|", "\\|") for name in names)
    return f"| {shown} | {(action.help or '').replace('|', chr(92) + '|').replace('%%', '%')} |"


def aliases(text: str) -> str:
    """The page with a table of modules and their names in place of its ``{aliases}`` block."""

    def table(block: re.Match[str]) -> str:
        rows = [f"| `{module}` | {_names_in(module)} |" for module in block[1].split()]
        return "\n".join(["| module | names |", "|---|---|", *rows])

    return ALIASES_BLOCK.sub(table, text)


def _names_in(module: str) -> str:
    found = import_module(module)
    return ", ".join(
        f"`{name}()`" if inspect.isroutine(getattr(found, name)) else f"`{name}`" for name in public_names(module)
    )


def contents(page: str, text: str) -> str:
    """A table of contents for each section of a page, from the links in it."""
    trees = []
    opening, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    for section in sections or [opening]:
        links = {path: title for title, path in LINK.findall(section)}
        entries = [f"{title} <{path}>" for path, title in links.items() if page == LISTS[0] or path[0] != "."]
        caption = [f":caption: {section.splitlines()[0]}"] if sections else []
        trees.append("\n".join(["```{toctree}", ":hidden:", ":titlesonly:", *caption, "", *entries, "```", ""]))
    return "\n".join(trees)


def example(name: str, code: str) -> str:
    """A page that shows a script."""
    text = ast.get_docstring(ast.parse(code)) or ""
    body = code.split('"""', 2)[2].strip() if text else code
    return f"# {name}.py\n\n{text.replace('``', '`')}\n\n```python\n{body}\n```\n"


def rewritten(page: str, text: str) -> str:
    """The text that is parsed for a page; ``page`` is its path without the suffix."""
    folder, name = posixpath.split(page)
    if folder == "examples" and name != "README":
        return example(name, text)
    text = aliases(commands(reference(text)))
    if page in LISTS:
        text += "\n" + contents(page, text)
    return text


def _rewrite(app: Any, page: str, source: list[str]) -> None:
    source[0] = rewritten(page, source[0])


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", _rewrite)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
