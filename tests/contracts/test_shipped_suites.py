"""What is shipped for authors of extensions needs nothing but holdfast, and leaves out none of its checks."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
import holdfast.testing

MODULES = sorted(found.name for found in pkgutil.iter_modules(holdfast.testing.__path__, "holdfast.testing."))
SUITES = [name for name in MODULES if name.endswith("_contract")]


def test_there_is_a_suite_for_each_interface() -> None:
    assert [name.split(".")[-1] for name in SUITES] == [
        "elsewhere_contract",
        "engine_contract",
        "journal_contract",
        "scheduler_contract",
        "searcher_contract",
        "store_contract",
    ]


@pytest.mark.parametrize("name", SUITES)
def test_every_check_of_a_suite_is_in_its_list(name: str) -> None:
    module = importlib.import_module(name)
    defined = {key for key in vars(module) if key.startswith("check_")}
    assert {check.__name__ for check in module.CHECKS} == defined
    assert len(module.CHECKS) == len(defined)


def test_everything_that_is_shipped_is_imported_without_a_test_framework() -> None:
    code = (
        "import importlib, sys\n"
        "sys.modules.update(dict.fromkeys(['pytest', '_pytest', 'hypothesis', 'simulator']))\n"
        f"for name in {MODULES!r}:\n"
        "    importlib.import_module(name)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(holdfast.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
