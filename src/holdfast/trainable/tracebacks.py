"""Tracebacks that show the user's own lines, not holdfast's.

Owns the question whose code a frame is, and the hooks of Python and IPython that print an uncaught ``TuneError``. Its
message says what to do, so the frames of holdfast in between only hide the line that has to change.
``HOLDFAST_FULL_TRACEBACKS=1`` shows them all. Must never change an exception, or touch those that are not holdfast's.
"""

from __future__ import annotations

import functools
import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.messages.visible import visible_lines

if TYPE_CHECKING:
    import traceback

AnyError = TypeVar("AnyError", bound=BaseException)

_BRIEF = "_holdfast_brief"
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # of all of holdfast


def install() -> None:
    """Print holdfast's errors briefly, unless somebody else already decides how exceptions are printed."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print_uncaught
    shell = _ipython()
    if shell is not None and not getattr(shell, "custom_exceptions", ()):
        from holdfast.errors import TuneError

        shell.set_custom_exc((TuneError,), _show_in_ipython)


def show_briefly(error: AnyError) -> AnyError:
    """Let an exception of Python's that holdfast raises be printed as holdfast's own are; returns it."""
    error.__dict__[_BRIEF] = True
    return error


def brief(error: BaseException) -> str | None:
    """The traceback of an error without holdfast's frames; None if it has to be shown as it is."""
    import traceback

    from holdfast.config.environment import Environment
    from holdfast.errors import InternalError, TuneError

    is_told = isinstance(error, TuneError) and not isinstance(error, InternalError)
    if not (is_told or _BRIEF in vars(error)) or Environment.read().full_tracebacks:
        return None
    story = traceback.TracebackException.from_exception(error, compact=True)
    if not drop_our_frames(story):
        return None
    _forget_inner_causes(story)
    return visible_lines("".join(story.format()))  # a trial's exception may be among the causes


def drop_our_frames(story: traceback.TracebackException) -> bool:
    """Leave the user's frames only; False if that would leave the failure itself without any."""
    kept = [frame for frame in story.stack if not is_ours(frame)]
    if story.stack and not kept:
        return False
    story.stack[:] = kept
    for other in (story.__cause__, story.__context__, *(story.exceptions or ())):
        if other is not None:
            drop_our_frames(other)
    return True


def is_ours(frame: traceback.FrameSummary) -> bool:
    """Whether it is a line of holdfast, or of a constructor that ``dataclass`` has generated for it."""
    return frame.filename.startswith(_PACKAGE) or (frame.filename, frame.name) == ("<string>", "__init__")


def is_library(filename: str) -> bool:
    """Whether it is a file of Python or of an installed package."""
    return filename.startswith(("<frozen ", *_library_places()))


def is_raised_by_us(error: BaseException) -> bool:
    """Whether holdfast itself made the call that failed, if through Python's library or the pickler; not the user.

    Installed packages count as the user's: a trainable may be in one.
    """
    frame = error.__traceback__
    names = []
    while frame is not None:
        names.append(frame.tb_frame.f_code.co_filename)
        frame = frame.tb_next
    for name in reversed(names):
        if name.startswith(_PACKAGE):
            return True
        if not name.startswith(("<frozen ", *_helpers())) or "-packages" in name.replace(_pickler(), ""):
            return False
    return False


@functools.cache
def _helpers() -> tuple[str, ...]:
    import sysconfig

    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    return (*(os.path.join(place, "") for place in places if place), _pickler())


@functools.cache
def _pickler() -> str:
    import cloudpickle

    return os.path.join(os.path.dirname(os.path.abspath(cloudpickle.__file__)), "")


def _forget_inner_causes(story: traceback.TracebackException) -> None:
    """Leave out exceptions that holdfast has met and translated; those from the user's own code stay."""
    for name in ("__cause__", "__context__"):
        other = getattr(story, name)
        if other is None:
            continue
        if all(is_ours(frame) or is_library(frame.filename) for frame in other.stack):
            setattr(story, name, None)
        else:
            _forget_inner_causes(other)


def _print_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    try:
        text = _of_a_trial(error) or brief(error)
    except Exception:  # whatever goes wrong here, the error itself must be seen
        text = None
    if text is None:
        sys.__excepthook__(kind, error, trace)
    else:
        print(text, end="", file=sys.stderr)


def _of_a_trial(error: BaseException) -> str:
    """The traceback of what a trial raised, for ``fail_fast="raise"``: its words may be commands to a terminal."""
    import traceback

    from holdfast.errors import TrialError

    if not isinstance(error.__cause__, TrialError):
        return ""
    return visible_lines("".join(traceback.format_exception(error)))


def _show_in_ipython(
    shell: Any, kind: type[BaseException], error: BaseException, trace: TracebackType, tb_offset: int | None = None
) -> None:
    text = brief(error)
    if text is None:
        shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
    else:
        print(text, end="", file=sys.stderr)


def _ipython() -> Any:
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None and hasattr(module, "get_ipython") else None


@functools.cache
def _library_places() -> tuple[str, ...]:
    import site
    import sysconfig

    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    places.update(site.getsitepackages() if hasattr(site, "getsitepackages") else ())
    places.add(site.getusersitepackages() if hasattr(site, "getusersitepackages") else "")
    return tuple(os.path.join(place, "") for place in places if place)
