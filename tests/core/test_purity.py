"""Layers: who may import whom, and what the core may not know."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from layers import LAYERS

import holdfast

SOURCE = Path(holdfast.__file__).parent
FORBIDDEN_IN_CORE = {"time", "os", "random", "uuid", "logging", "threading", "asyncio", "socket"}
LEVEL = {name: level for level, layer in enumerate(LAYERS) for name in layer.names}
TOGETHER = {("cli", "ui"), ("ui", "cli")}  # a command serves the page; the page lists and prints as commands do
NAMED_UPWARDS = {
    "experiment.py": "holdfast.compat.tune_run",
    "results/grid.py": "holdfast.ui.notebook",
    "trainable/__init__.py": "holdfast.compat.durable",
}  # looked up by name when somebody asks for them, so that importing the lower one costs nothing


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "holdfast":
            found |= {f"holdfast.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def named_in_strings(path: Path) -> set[str]:
    """Modules that a module may import by a name in a string."""
    constants = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
    return {each for each in constants if isinstance(each, str) and re.fullmatch(r"holdfast(\.[a-z_]+)+", each)}


def test_core_knows_no_clock_no_disk_no_network_no_randomness():
    for path in (SOURCE / "core").glob("*.py"):
        bad = {name for name in imports(path) if name.split(".")[0] in FORBIDDEN_IN_CORE}
        assert not bad, f"{path.name} imports {bad}"


def below_the_face() -> Iterator[tuple[Path, str, str]]:
    """Every module but the package's own: its path, its path from the package on, and the part that it belongs to."""
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).parts
        if parts[0] != "__init__.py":
            yield path, "/".join(parts), parts[0].removesuffix(".py")


def test_a_layer_imports_only_what_stands_below_it():
    """Nor what stands beside it, or two rooms would be one."""
    wrong = []
    for path, where, own in below_the_face():
        for name in imports(path):
            other = name.removeprefix("holdfast.").split(".")[0]
            if not name.startswith("holdfast.") or other not in LEVEL or other == own or (own, other) in TOGETHER:
                continue
            if LEVEL[other] <= LEVEL[own]:
                wrong.append(f"{where} imports {name}")
    assert not wrong


def test_a_layer_names_what_stands_above_it_in_a_few_known_places_only():
    named = {}
    for path, where, own in below_the_face():
        for name in named_in_strings(path):
            if own != "_moved" and LEVEL.get(name.split(".")[1], LEVEL[own]) < LEVEL[own]:
                named[where] = name
    assert named == NAMED_UPWARDS
