"""The API reference has every public name, once, and each says what it is for."""

import inspect
import runpy
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).parents[2]
PAGES = runpy.run_path(str(ROOT / "docs" / "site" / "pages.py"))
API = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "api").glob("*.md"))}
DOCUMENTED = [one for text in API.values() for one in PAGES["documented"](text)]
FRAMEWORKS = "holdfast.integration."
"""Modules that import a framework, which may be missing; the build of the site replaces it."""

ALSO_PUBLIC = ("holdfast.config", "holdfast.errors", "holdfast.results", "holdfast.stopper")
FOUND = {one.path: one.find() for one in DOCUMENTED if not one.module.startswith(FRAMEWORKS)}


def listed_modules():
    aliases = PAGES["ALIASES_BLOCK"].search(API["import-paths.md"])[1].split()
    return {*aliases, *(one.module for one in DOCUMENTED)}


def test_every_public_module_is_in_the_reference():
    missing = {f"holdfast.{name}" for name in holdfast._SUBMODULES} - listed_modules()
    missing -= {"holdfast.integration", "holdfast.testing", "holdfast.tuner"}
    assert missing == set(), "add an {api} block to a page of docs/api, or a line to docs/api/import-paths.md"


def test_every_integration_is_in_the_reference():
    folder = Path(import_module("holdfast.integration").__file__).parent
    public = {f"{FRAMEWORKS}{path.stem}" for path in folder.glob("*.py") if "\n__all__ = " in path.read_text()}
    assert public - listed_modules() - {f"{FRAMEWORKS}__init__"} == set(), "add it to docs/api/integrations.md"


def test_every_module_for_tests_is_in_the_reference():
    folder = Path(import_module("holdfast.testing").__file__).parent
    modules = {f"holdfast.testing.{path.stem}" for path in folder.glob("*.py")} - {"holdfast.testing.__init__"}
    assert modules - listed_modules() == set(), "add it to docs/api/testing.md"


def public_modules():
    return sorted({"holdfast", *ALSO_PUBLIC, *(m for m in listed_modules() if not m.startswith(FRAMEWORKS))})


@pytest.mark.parametrize("module", public_modules())
def test_every_public_name_is_in_the_reference(module):
    if module not in ("holdfast", *ALSO_PUBLIC) and not hasattr(import_module(module), "__all__"):
        return  # a module of which the reference shows a part
    shown = {id(value) for value in FOUND.values()}
    offered = {name: getattr(import_module(module), name) for name in PAGES["public_names"](module)}
    missing = [n for n, value in offered.items() if f"{module}.{n}" not in FOUND and id(value) not in shown]
    missing = [n for n in missing if n != "__version__" and not inspect.ismodule(offered[n])]
    assert missing == [], "add it to an {api} block of a page of docs/api"


def test_no_name_is_in_the_reference_twice():
    assert [path for path, times in Counter(one.path for one in DOCUMENTED).items() if times > 1] == []


def test_every_page_of_the_reference_is_in_its_list():
    assert [name for name in API if name != "README.md" and f"({name})" not in API["README.md"]] == []


def protocols():
    return [value for value in FOUND.values() if getattr(value, "_is_protocol", False)]


def explained(kind, name):
    """By a docstring of its own, of a base class, or of an interface that the class has all of."""
    known = [each for each in protocols() if all(hasattr(kind, own) for own in vars(each) if own[0] != "_")]
    return any(getattr(vars(each).get(name), "__doc__", None) for each in (*kind.__mro__, *known))


@pytest.mark.parametrize("path", [path for path, value in FOUND.items() if callable(value)])
def test_it_says_what_it_is_for(path):
    found = FOUND[path]
    if path.rpartition(".")[2].startswith("check_"):
        return  # a promise of a contract suite: its name is a sentence
    assert inspect.getdoc(found)
    if inspect.isclass(found):
        kinds = (property, classmethod, staticmethod)
        own = [n for n, each in vars(found).items() if inspect.isroutine(each) or isinstance(each, kinds)]
        assert [name for name in own if name[0] != "_" and not explained(found, name)] == []


def test_every_command_is_in_the_reference_with_its_options():
    page = PAGES["rewritten"]("docs/api/command-line", API["command-line.md"])
    parsers = PAGES["all_commands"]()
    assert "status" in parsers
    for name, parser in parsers.items():
        section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        options = [text for action in parser._actions for text in action.option_strings if text not in ("-h", "--help")]
        assert [text for text in options if text not in section] == []
