"""``holdfast``: parses the command line, calls the command, and turns every expected failure into a sentence.

Exit codes: 0 all well, 1 damage found or the work failed, 2 the command cannot work as written, 130 after Ctrl+C.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from holdfast.cli.parser import make_parser
from holdfast.errors import DamageError, TuneError, UsageError

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The arguments; None takes those of the process.

    Returns:
        The exit code.
    """
    parser = make_parser()
    arguments = _parsed(parser, argv)
    if not hasattr(arguments, "run"):
        parser.print_help()
        return OK
    collecting = gc.isenabled()
    if arguments.run not in ("resume", "ship", "ui"):
        # The others read, print and end: collecting cycles among the trials would take longer than the reading.
        gc.disable()
    try:
        return _run(arguments)
    finally:
        if collecting:
            gc.enable()


def _parsed(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments. TRIAL and OUT may stand behind an option, where argparse does not look for what is optional."""
    arguments, rest = parser.parse_known_args(argv)
    for name in ("trial", "out"):
        if len(rest) == 1 and not rest[0].startswith("-") and getattr(arguments, name, "") is None:
            setattr(arguments, name, rest.pop())
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return arguments


def _run(arguments: argparse.Namespace) -> int:
    try:
        command = import_module(f"holdfast.cli.{arguments.run}")
        if hasattr(arguments, "experiment"):  # a path, or a name that has to be found
            arguments.path = import_module("holdfast.cli.locate").locate(arguments.experiment)
        with import_module("holdfast.cli.printing").complaints():
            code = int(command.run(arguments))
        sys.stdout.flush()
        return code
    except UsageError as error:
        return _fail(error, USAGE)
    except BrokenPipeError:
        # The reader, `head` for example, has seen enough. Python would complain once more while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (TuneError, OSError) as error:
        return _fail(error, FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED


def _fail(error: Exception, code: int) -> int:
    notes = getattr(error, "__notes__", []) if isinstance(error, DamageError) else []
    import_module("holdfast.cli.printing").complain("\n".join([str(error), *notes]))
    return code
