"""``holdfast``: parses the command line, calls the command, and turns every expected failure into a sentence.

Exit codes: 0 all well, 1 damage found or the work failed, 2 the command cannot work as written, 130 after Ctrl+C.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence

from holdfast.cli.parser import make_parser
from holdfast.errors import TuneError, UsageError

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The arguments; None takes those of the process.

    Returns:
        The exit code.
    """
    arguments = make_parser().parse_args(argv)
    collecting = gc.isenabled()
    if arguments.run not in ("resume", "ship"):
        # The others read, print and end: collecting cycles among the trials would take longer than the reading.
        gc.disable()
    try:
        return _run(arguments)
    finally:
        if collecting:
            gc.enable()


def _run(arguments: argparse.Namespace) -> int:
    from importlib import import_module

    try:
        command = import_module(f"holdfast.cli.{arguments.run}")
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
    print(f"holdfast: {error}", file=sys.stderr)
    return code
