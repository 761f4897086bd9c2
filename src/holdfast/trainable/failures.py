"""What a worker says about an exception of the user's code.

Owns the facts of a failure: the user's own line, a traceback without our frames (P30), and whether storage was to
blame (I8). Must never raise: user exceptions may have a broken ``__str__``, refuse to be pickled, or arrive while
memory is exhausted.
"""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Iterator

from holdfast.core.events import ErrorFacts
from holdfast.errors import StorageError, StorageFullError, TuneError
from holdfast.trainable.metrics import encodable
from holdfast.trainable.tracebacks import drop_our_frames, is_library, is_ours, is_raised_by_us

MAX_MESSAGE_CHARS = 10_000
MAX_TRACEBACK_CHARS = 100_000
MAX_PICKLE_BYTES = 1_000_000
MAX_KINDS = 12
MAX_KIND_CHARS = 300
LEAST_FREE_BYTES = 1024 * 1024

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def error_facts(error: BaseException, original: str = "", node: str = "") -> ErrorFacts:
    """The failure as plain text.

    Args:
        error: What the trial raised.
        original: The driver's working directory, if that is not the trial's.
        node: This machine, if it is one of a cluster.
    """
    kind = type(error).__name__
    hint = missing_file_hint(error, original) or missing_module_hint(error, node)
    try:
        kinds = _kinds(error)
        from holdfast.config.environment import Environment

        story = traceback.TracebackException.from_exception(error, compact=True)
        location = _location(story.stack)
        if not drop_our_frames(story) or Environment.read().full_tracebacks:
            story = traceback.TracebackException.from_exception(error, compact=True)
        text = _middle_cut("".join(story.format()) + (f"\n{hint}\n" if hint else ""), MAX_TRACEBACK_CHARS)
    except BaseException as trouble:
        # Memory may be exhausted, or the exception is itself broken; the type alone is still worth sending.
        return ErrorFacts(kind, message_of(error), "", f"{kind} (no traceback: {type(trouble).__name__})")
    message = f"{message_of(error)}. {hint}" if hint else message_of(error)
    return ErrorFacts(kind, message, encodable(location), encodable(text), kinds=kinds)


def _kinds(error: BaseException) -> tuple[str, ...]:
    """Its class and the bases of that, by which readers find one that they know too."""
    names = (f"{kind.__module__}:{kind.__qualname__}" for kind in type(error).__mro__ if kind is not object)
    return tuple(encodable(name)[:MAX_KIND_CHARS] for name in names)[:MAX_KINDS]


def missing_file_hint(error: BaseException, original: str) -> str:
    """What to say if a file that was not found is where ``fit()`` was called; "" if it is not.

    Args:
        error: What the trial raised.
        original: The driver's working directory, if that is not the trial's.
    """
    try:
        for link in chain(error):
            if not original or not isinstance(link, FileNotFoundError) or not isinstance(link.filename, str | bytes):
                continue
            name = os.fsdecode(link.filename)
            if not os.path.isabs(name) and os.path.exists(os.path.join(original, name)):
                return encodable(
                    f"{name!r} exists in {original}, where fit() was called, but a trial runs in a directory of its "
                    "own. Use an absolute path, prepend os.environ['TUNE_ORIG_WORKING_DIR'], or set "
                    "HOLDFAST_CHDIR_TO_TRIAL_DIR=0 to let trials run where fit() is called."
                )
    except BaseException:  # user exceptions may be as broken as they like
        return ""
    return ""


def missing_module_hint(error: BaseException, node: str) -> str:
    """What to say if a module is missing on a machine of a cluster; "" if none is."""
    try:
        link: BaseException | None = error
        while link is not None and not isinstance(link, ModuleNotFoundError):
            link = link.__cause__
        if not node or link is None or not isinstance(link.name, str):
            return ""
        return encodable(
            f"{node} has no module {link.name!r}. If it is a package, install it on every node of the cluster, or let "
            "Ray do so: ray.init(runtime_env={'pip': [...]}). If it is a module of yours, import it in your script "
            "before fit(): those that are imported then travel with the trainable."
        )
    except BaseException:  # user exceptions may be as broken as they like
        return ""


def pickled(error: BaseException) -> bytes:
    """The exception itself, or nothing if it does not survive pickling or is too large."""
    try:
        import cloudpickle

        data: bytes = cloudpickle.dumps(error)
        if len(data) > MAX_PICKLE_BYTES:
            return b""
        # Exceptions whose constructor takes other arguments than ``args`` can be pickled but never loaded.
        cloudpickle.loads(data)
    except BaseException:
        return b""
    return data


def is_storage_trouble(error: BaseException, root: str) -> bool:
    """Whether the experiment's storage, not the user's code, is to blame.

    What tells them apart is who made the call that failed, not how it failed: a file of the user's own that cannot be
    read is the user's failure, one of the experiment's is not (I8).
    """
    if any(isinstance(link, StorageError) for link in chain(error)):
        return True
    return _is_of_our_own_files(error, root) or is_full(error, root)


def is_doubtful(error: BaseException, root: str) -> bool:
    """Whether only the trial's own code says that there was no space, while there is.

    It may have filled the disk with a checkpoint that was removed since, or have raised this for a reason of its own:
    both look the same. So the trial is tried again, but not without end.
    """
    ours = any(isinstance(link, StorageError) for link in chain(error)) or _is_of_our_own_files(error, root)
    return not ours and free_bytes(root) >= LEAST_FREE_BYTES


def _is_of_our_own_files(error: BaseException, root: str) -> bool:
    if not isinstance(error, OSError) or isinstance(error, TuneError):
        return False
    try:
        names = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
        places = {os.path.join(place, "") for place in (root, os.path.realpath(root))}
        outside = any(os.path.isabs(name) and not name.startswith(tuple(places)) for name in names)
        return not outside and is_raised_by_us(error)
    except Exception:  # of an exception class of the user's, anything can be expected
        return False


def is_full(error: BaseException, root: str) -> bool:
    """Whether there was no space left, as far as one can tell."""
    for link in chain(error):
        if isinstance(link, StorageFullError) or (isinstance(link, OSError) and link.errno in _FULL):
            return True
    # Libraries often hide ENOSPC behind their own exceptions (torch.save: "unexpected pos").
    return free_bytes(root) < LEAST_FREE_BYTES


def free_bytes(path: str) -> int:
    """What an ordinary user can still write to this path's file system."""
    try:
        usage = os.statvfs(path)
    except (OSError, AttributeError):
        return LEAST_FREE_BYTES
    return usage.f_bavail * usage.f_frsize


def chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and everything it was raised from, while handling, or as a group of."""
    seen: set[int] = set()
    rest: list[BaseException | None] = [error]
    while rest:
        link = rest.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        rest += [link.__cause__, link.__context__]
        if isinstance(link, BaseExceptionGroup):
            rest += link.exceptions


def release(error: BaseException) -> None:
    """Let go of everything that the failed frames hold, so that the next trial finds the memory free."""
    for link in chain(error):
        if link.__traceback__ is not None:
            try:
                traceback.clear_frames(link.__traceback__)
            except BaseException:  # a generator's own ``finally`` may raise while it is closed
                continue


def message_of(error: BaseException) -> str:
    """The exception's text, of a length that fits into a message."""
    if isinstance(error, SystemExit):
        return f"the trainable called sys.exit({_text(error)})"
    return _middle_cut(_text(error), MAX_MESSAGE_CHARS)


def _text(error: BaseException) -> str:
    try:
        return encodable(str(error))
    except BaseException as trouble:
        return f"(its message cannot be shown: {type(trouble).__name__})"


def _middle_cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half:,} characters left out ...\n{text[-half:]}"


def _location(stack: traceback.StackSummary) -> str:
    """The innermost line of the user's own code; of a library if there is none."""
    outside = [frame for frame in stack if not is_ours(frame)]
    own = [frame for frame in outside if not is_library(frame.filename)]
    for frames in (own, outside):
        if frames:
            return f"{frames[-1].filename}:{frames[-1].lineno}"
    return ""
