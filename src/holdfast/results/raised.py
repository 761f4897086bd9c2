"""What made a trial fail, as an exception that can be caught as what the trainable raised.

Owns which class that is. Reading an experiment executes nothing that is stored in it: a class is looked up by its name
among the modules that this process has imported already, and ``error.pkl`` is loaded only for the process that runs or
restores the experiment, which has loaded its code anyway.
"""

from __future__ import annotations

import builtins
import pickle
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from holdfast.core.events import ErrorFacts
from holdfast.core.state import Status, Trial
from holdfast.errors import TrialError
from holdfast.messages.visible import visible_lines
from holdfast.results.history import History
from holdfast.views.trials import PICKLED_ERROR_FILE, trial_dirname

MAX_PICKLE_BYTES = 10_000_000
_OF_THE_SYSTEM = ("errno", "strerror", "filename", "filename2")
"""What an ``OSError`` knows beside its attributes."""


def trial_error(history: History, trial: Trial) -> TrialError | None:
    """What made the trial end in ERROR, or None if it did not."""
    if trial.status != Status.ERROR:
        return None
    facts = trial.error
    assert facts is not None
    what = ": ".join(filter(None, (facts.type, facts.message))) or trial.cause
    where = f" ({facts.location})" if facts.location else ""
    again = f" It failed {trial.total_failures} times." if trial.total_failures > 1 else ""
    original = _original(history, trial, facts)
    kind = raised_class(facts) if original is None else type(original)
    error = make_error(
        kind,
        f"{history.name(trial)} failed: {what}{where}{again}",
        trial_id=trial.id,
        cause=trial.cause,
        error_type=facts.type,
        location=facts.location,
        traceback=facts.traceback,
    )
    if original is not None:
        _take_facts(error, original)
        error.__cause__ = original
    if facts.traceback:
        error.add_note(visible_lines(f"The trial's own traceback:\n{facts.traceback}"))
    elif facts.output:
        error.add_note(visible_lines(f"The last lines that the trial printed:\n{facts.output}"))
    return error


def _take_facts(error: TrialError, original: BaseException) -> None:
    """What the original knows beside its message; its own facts a ``TrialError`` keeps."""
    for name, value in getattr(original, "__dict__", {}).items():
        error.__dict__.setdefault(name, value)
    for name in _OF_THE_SYSTEM if isinstance(original, OSError) and isinstance(error, OSError) else ():
        setattr(error, name, getattr(original, name))


def _original(history: History, trial: Trial, facts: ErrorFacts) -> BaseException | None:
    """The exception itself, if it may be loaded, was stored, and is that of the last failure."""
    info = history.info
    if not info.may_unpickle or not facts.type:
        return None
    try:
        path = Path(info.root) / trial_dirname(info, trial) / PICKLED_ERROR_FILE
        if path.is_symlink() or path.stat().st_size > MAX_PICKLE_BYTES:
            return None
        found = pickle.loads(path.read_bytes())
        same = type(found).__name__ == facts.type and facts.message.startswith(str(found))
    except Exception:
        return None
    return found if isinstance(found, BaseException) and same else None


# --- the class


def raised_class(facts: ErrorFacts) -> type | None:
    """The class that was raised, or the nearest of its bases that this process knows."""
    names: Iterable[str] = facts.kinds or (f"builtins:{facts.type}",)
    return next(filter(None, map(_imported, names)), None)


def _imported(name: str) -> type | None:
    module, _, path = name.partition(":")
    found: Any = builtins if module == "builtins" else sys.modules.get(module)
    for part in path.split("."):
        # Not getattr: a module may run code when it is asked for a name.
        found = getattr(found, "__dict__", {}).get(part)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def make_error(kind: type | None, message: str, **facts: Any) -> TrialError:
    """A ``TrialError`` that is also of class ``kind``, where there can be such a thing."""
    error: TrialError | None = None
    if kind is not None and issubclass(kind, Exception) and not issubclass(TrialError, kind):
        try:
            error = _remade(kind, message)
            error._know(facts)
        except TypeError:  # its layout, or how its objects are made, does not allow it
            error = None
    return TrialError(message, **facts) if error is None else error


def _remade(kind: type, message: str) -> TrialError:
    both = _both(kind)
    # Past constructors of the user's own, which want other arguments.
    solid: Any = next(base for base in both.__mro__ if base.__module__ == "builtins")
    error: TrialError = solid.__new__(both, message)
    error.args = (message,)
    return error


@lru_cache(maxsize=256)
def _both(kind: type) -> type[TrialError]:
    def __init__(self: TrialError, *_: Any, **__: Any) -> None:
        """Everything is there: see ``make_error``."""

    def __str__(self: TrialError) -> str:
        return visible_lines(str(self.args[0])) if self.args else ""

    def __reduce__(self: TrialError) -> Any:
        return _remade, (kind, self.args[0] if self.args else ""), dict(self.__dict__)

    parts: dict[str, Any] = {"__init__": __init__, "__str__": __str__, "__reduce__": __reduce__}
    parts |= {"__module__": TrialError.__module__, "__doc__": TrialError.__doc__}
    return type(f"TrialError({kind.__name__})", (TrialError, kind), parts)
