"""``holdfast ui``: the live page of one or more experiments, for a browser."""

from __future__ import annotations

import argparse
import os
from importlib.util import find_spec

from holdfast.errors import InvalidInputError, StorageError, UsageError
from holdfast.ui.stop_signals import StoppedEarly, StopSignals

NEEDED = ("starlette", "uvicorn")


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    signals = StopSignals()  # before the imports, which take most of the time of a start
    try:
        return _serve(arguments, signals)
    except StoppedEarly:
        return 0
    except BaseException:
        signals.restore()
        raise


def _serve(arguments: argparse.Namespace, signals: StopSignals) -> int:
    if any(find_spec(name) is None for name in NEEDED):
        raise UsageError(
            "The live page needs starlette and uvicorn, which are not installed: pip install 'holdfast[ui]'. "
            "`holdfast report PATH out.html` writes the same page to a file without them."
        )
    if not 0 <= arguments.port <= 65535:
        raise InvalidInputError(f"--port {arguments.port} is not between 0 and 65535.")
    from holdfast.ui.security import check_token, new_token
    from holdfast.ui.serve import serve

    token = new_token() if arguments.token is None else check_token(arguments.token, arguments.host)
    try:
        return serve(
            arguments.path,
            host=arguments.host,
            port=arguments.port,
            token=token,
            browser=arguments.browser and _has_display(),
            signals=signals,
        )
    except StorageError as error:
        raise UsageError(str(error)) from error


def _has_display() -> bool:
    """Whether a browser could be seen; others would take over the terminal."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or os.environ.get("BROWSER"))
