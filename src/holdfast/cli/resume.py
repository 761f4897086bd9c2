"""``holdfast resume``: continues an experiment with the trainable that is stored with it, or one that is imported."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import warnings
from typing import Any

from holdfast.cli.printing import print_json
from holdfast.errors import InvalidInputError
from holdfast.results.history import open_history
from holdfast.results.report_data import Phase, experiment_facts, phase_of


def run(arguments: argparse.Namespace) -> int:
    """Run the experiment to its end; 1 if it did not get there."""
    # As `python script.py` would have it: the trainable may refer to modules beside it.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    path = arguments.path
    tuner = _restored(arguments)
    shown = contextlib.redirect_stdout(sys.stderr) if arguments.json else contextlib.nullcontext()
    with shown:
        tuner.fit()
    history = open_history(path)
    if arguments.json:
        print_json(experiment_facts(history))
    return 0 if phase_of(history) == Phase.FINISHED else 1


def _imported(text: str) -> Any:
    """The trainable that ``module:name`` stands for; ``script.py:name`` is accepted too."""
    module, _, name = text.rpartition(":")
    folder, module = os.path.split(module)
    module = module.removesuffix(".py")
    if not module or not name:
        raise InvalidInputError(f"--trainable {text!r} must be MODULE:NAME, for example --trainable script:train.")
    if folder:
        sys.path.insert(0, os.path.abspath(folder))
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidInputError(
            f"--trainable {text!r} cannot be imported ({type(error).__name__}: {error}). Run this in the directory of "
            "your script, or set PYTHONPATH to where it is. Nothing was changed."
        ) from error


def _restored(arguments: argparse.Namespace) -> Any:
    from holdfast.tuner import Tuner

    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            tuner = Tuner.restore(
                arguments.path,
                trainable=None if arguments.trainable is None else _imported(arguments.trainable),
                resume_errored=arguments.resume_errored,
                restart_errored=arguments.restart_errored,
                takeover=arguments.takeover,
            )
    except InvalidInputError as error:
        if not isinstance(error.__cause__, ImportError) or arguments.trainable is not None:
            raise
        raise InvalidInputError(
            f"{error} On the command line: run this in the directory of your script, or set PYTHONPATH to where "
            f"{error.__cause__.name or 'your module'!r} is."
        ) from error
    for warning in told:
        hint = " On the command line: --trainable MODULE:NAME." if "trainable=" in str(warning.message) else ""
        print(f"warning: {warning.message}{hint}", file=sys.stderr)
    return tuner
