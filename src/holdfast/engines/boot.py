"""The command line of our own processes.

Owns: how a nanny or an executed worker becomes a Python like the driver's. Must never: import user code.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

_CODE = "import sys; text, *sys.path[:] = sys.argv[1:]; from holdfast.engines.{module} import main; main(text)"


def command(module: str, text: str, sys_path: Iterable[str]) -> list[str]:
    """Run ``main(text)`` of one of our modules in a fresh interpreter.

    It gets ``sys_path`` before it imports anything, so that imports work as they do in the driver. -P keeps the
    working directory out of it, where a file of the user's could otherwise shadow ours.
    """
    flags: list[str] = getattr(subprocess, "_args_from_interpreter_flags", list)()
    return [sys.executable, *flags, "-P", "-c", _CODE.format(module=module), text, *sys_path]
