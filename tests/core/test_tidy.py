"""Rules for names that hold by themselves: a name means one thing, wherever it is used."""

from __future__ import annotations

import ast
import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import holdfast
from holdfast import config
from holdfast.config.checkpoint import IGNORED_FIELDS

SOURCE = Path(holdfast.__file__).parent
EVERYWHERE = {"__init__", "base"}
ALIASES = {"air", "compat", "integration"}  # folders of names that other tools have, or that frameworks have in common
TRACKERS = "trackers"  # a folder in one of these with names of our own; its modules are called as what they do for one
COMMANDS = "cli"  # its modules are called as their commands are
SETTINGS = "config"  # its modules are called as the classes in them are
OF_FRAMEWORKS = {"TrainingState", "TuneReportCallback", "TuneReportCheckpointCallback"}  # the same in each integration
OF_OTHER_TUNERS = {"Experiment", "Tuner"}  # older front doors, under the names that scripts have
MOVED_AT_CONSTRUCTION = {"keep_checkpoints_num", "checkpoint_score_attr", "node_sync_period", "cloud_sync_period"} | {
    "sync_to_cloud",
    "sync_to_driver",
}  # older spellings, which the constructors of configs read
PATHS = {"result_dir", "local_cache_dir"}  # of ``Environment``, which two properties of it join
STORED = {"Settings"}  # of ``controller.experiment``, whose name is in the pickles of every experiment

BY_CHANCE = {"BATCH", "DEADLINE_S", "DELETE_TRIES", "FORMAT", "HURRIED_S", "LOCK_S", "LOOK_S"} | {
    *("MAX_DEPTH", "MAX_NAMED", "MAX_SHAPES", "MAX_STARTS", "MAX_TEXT", "POLL_S", "SAMPLE_S"),
}  # limits, periods and versions of different things: one may change without the other


def modules() -> list[Path]:
    paths = ((path, path.relative_to(SOURCE).parts) for path in SOURCE.rglob("*.py"))
    return sorted(path for path, parts in paths if parts[0] not in ALIASES or parts[1] == TRACKERS)


def test_no_two_modules_have_the_same_name() -> None:
    places = defaultdict(list)
    for path in modules():
        folder = path.parent.name
        if folder not in (SOURCE.name, COMMANDS, SETTINGS, TRACKERS) and path.stem not in EVERYWHERE:
            places[path.stem].append(folder)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_two_public_classes_have_the_same_name() -> None:
    places = defaultdict(list)
    for path in modules():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(SOURCE)))
    allowed = OF_FRAMEWORKS | OF_OTHER_TUNERS | STORED
    assert {name: found for name, found in places.items() if len(found) > 1 and name not in allowed} == {}


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        path for path in modules() if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def constants_of(path: Path) -> Iterator[tuple[str, str]]:
    """Public names that a module gives to values and types, with what they stand for; its loggers left out."""
    for node in ast.parse(path.read_text()).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(target, ast.Name) or not node.value:
            continue
        value = ast.unparse(node.value)
        if not target.id.startswith("_") and not value.startswith(("logging.getLogger(", "TypeVar(")):
            yield target.id, value


def test_no_constant_is_defined_twice_with_the_same_value() -> None:
    """Two modules may give one name to different values, because limits and periods are read with their module.

    The same value under the same name is one fact in two places, of which somebody will change only one. Where it is
    not one fact, `BY_CHANCE` says so.
    """
    places = defaultdict(list)
    for path in modules():
        for name, value in constants_of(path):
            places[name, value].append(str(path.relative_to(SOURCE)))
    twice = {name: found for (name, _), found in places.items() if len(found) > 1}
    assert {name: found for name, found in twice.items() if name not in BY_CHANCE} == {}
    assert twice.keys() >= BY_CHANCE


def runs(node: ast.AST) -> Iterator[ast.AST]:
    """All that is below a node but what stands there for type checkers alone."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        for each in node.orelse:
            yield from runs(each)
        return
    yield node
    for each in ast.iter_child_nodes(node):
        yield from runs(each)


def dotted(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, known: set[str]) -> set[str]:
    """The modules of the package that a module imports by name, in functions too."""
    found = set()
    for node in runs(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            each = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in each.values()}
    return found & known


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Also not in a function: such an import hides that two modules are one, or that a third is missing."""
    paths = {dotted(path): path for path in SOURCE.rglob("*.py")}
    graph = {name: imports_of(path, set(paths)) for name, path in paths.items()}
    assert sum(map(len, graph.values())) > 1000
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" <- ".join(error.args[1])) from None


def test_every_setting_is_read_by_somebody() -> None:
    """A setting without effect is a promise that is not kept; those of other tools are in one set."""
    read = set()
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0] != SETTINGS:
            nodes = ast.walk(ast.parse(path.read_text()))
            read |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    allowed = MOVED_AT_CONSTRUCTION | PATHS | IGNORED_FIELDS
    kinds = [kind for kind in vars(config).values() if isinstance(kind, type) and dataclasses.is_dataclass(kind)]
    fields = {f"{kind.__name__}.{field.name}": field.name for kind in kinds for field in dataclasses.fields(kind)}
    assert len(fields) > 50
    assert [name for name, field in fields.items() if field not in read | allowed] == []


def decoders_made_at_import(tree: ast.Module) -> set[str]:
    """The types for which a module makes a decoder when it is imported."""
    found = set()
    for statement in tree.body:
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
            calls = (node for node in ast.walk(statement) if isinstance(node, ast.Call) and node.args)
            found |= {ast.unparse(call.args[0]) for call in calls if ast.unparse(call.func).endswith("Decoder")}
    return found


def test_types_are_resolved_when_modules_are_imported() -> None:
    """msgspec resolves those of a struct at its first use, and two threads that do so at once crash the process.

    Jobs that committed the first checkpoints of several trials did.
    """
    trees = {path: ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
    structs = {
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any("Struct" in ast.unparse(base) for base in node.bases)
    }
    assert len(structs) > 100
    ready = set().union(*map(decoders_made_at_import, trees.values()))
    late = []
    for path, tree in trees.items():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = ast.unparse(call.func)
            if name.startswith("msgspec.") and name.endswith(".decode"):
                used = [keyword.value for keyword in call.keywords if keyword.arg == "type"]
                known: set[str] = set()
            elif name == "msgspec.convert":
                used, known = call.args[1:2], ready
            else:
                continue
            names = {ast.unparse(node).split(".")[-1] for kind in used for node in ast.walk(kind)}
            late += [f"{path.name}: {each}" for each in sorted(names & structs - known)]
    assert late == []
