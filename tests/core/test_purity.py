"""Layers: who may import whom, and what the core may not know."""

import ast
from pathlib import Path

import holdfast

SOURCE = Path(holdfast.__file__).parent
FORBIDDEN_IN_CORE = {"time", "os", "random", "uuid", "logging", "threading", "asyncio", "socket"}
LAYERS = [
    {"__main__"},
    {"cli", "ui", "compat", "integration", "testing"},
    {"air", "analysis", "callback", "error", "experiment", "progress_reporter", "result", "result_grid", "syncer"}
    | {"tune_config", "tuner", "registry", "results", "logger", "utils", "ray_import", "plots"},
    {"controller"},
    {"engines"},
    {"trainable"},
    {"display"},
    {"callbacks"},
    {"schedulers", "search"},
    {"checkpoints", "shipping", "sync", "views"},
    {"journal"},
    {"storage"},
    {"core"},
    {"config", "stopper"},
    {"space"},
    {"errors", "messages", "_lazy", "_moved", "_version"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_core_knows_no_clock_no_disk_no_network_no_randomness():
    for path in (SOURCE / "core").glob("*.py"):
        bad = {name for name in imports(path) if name.split(".")[0] in FORBIDDEN_IN_CORE}
        assert not bad, f"{path.name} imports {bad}"


def test_a_layer_imports_only_what_stands_below_it():
    wrong = []
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).parts
        own = parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        for name in imports(path):
            if name.startswith("holdfast."):
                other = name.split(".")[1]
                if LEVEL[other] < LEVEL[own]:
                    wrong.append(f"{'/'.join(parts)} imports {name}")
    assert not wrong
