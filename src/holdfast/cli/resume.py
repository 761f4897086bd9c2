"""``holdfast resume``: continues an experiment with the trainable that is stored with it."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys

from holdfast.cli.facts import Phase, experiment_facts, phase_of
from holdfast.cli.output import print_json
from holdfast.errors import InvalidInputError
from holdfast.results.history import open_history


def run(arguments: argparse.Namespace) -> int:
    """Run the experiment to its end; 1 if it did not get there."""
    from holdfast.tuner import Tuner

    # As `python script.py` would have it: the trainable may refer to modules beside it.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    path = arguments.path
    try:
        tuner = Tuner.restore(
            path,
            resume_errored=arguments.resume_errored,
            restart_errored=arguments.restart_errored,
            takeover=arguments.takeover,
        )
    except InvalidInputError as error:
        if not isinstance(error.__cause__, ImportError):
            raise
        raise InvalidInputError(
            f"{error} On the command line: run this in the directory of your script, or set PYTHONPATH to where "
            f"{error.__cause__.name or 'your module'!r} is."
        ) from error
    shown = contextlib.redirect_stdout(sys.stderr) if arguments.json else contextlib.nullcontext()
    with shown:
        tuner.fit()
    history = open_history(path)
    if arguments.json:
        print_json(experiment_facts(history))
    return 0 if phase_of(history) == Phase.FINISHED else 1
