"""What a worker says about an exception of the user's code.

Owns the facts of a failure: the user's own line, a traceback without our frames (P30), and whether storage was to
blame (I8). Must never raise: user exceptions may have a broken ``__str__``, refuse to be pickled, or arrive while
memory is exhausted.
"""

from __future__ import annotations

import errno
import functools
import os
import traceback
from collections.abc import Iterator

from holdfast.core.events import ErrorFacts
from holdfast.errors import StorageError, StorageFullError
from holdfast.trainable.plain import encodable

MAX_MESSAGE_CHARS = 10_000
MAX_TRACEBACK_CHARS = 100_000
MAX_PICKLE_BYTES = 1_000_000
LEAST_FREE_BYTES = 1024 * 1024

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def error_facts(error: BaseException) -> ErrorFacts:
    """The failure as plain text."""
    kind = type(error).__name__
    try:
        from holdfast.config.environment import Environment

        story = traceback.TracebackException.from_exception(error, compact=True)
        location = _location(story.stack)
        if not _drop_our_frames(story) or Environment.read().full_tracebacks:
            story = traceback.TracebackException.from_exception(error, compact=True)
        text = "".join(story.format())
    except BaseException as trouble:
        # Memory may be exhausted, or the exception is itself broken; the type alone is still worth sending.
        return ErrorFacts(kind, message_of(error), "", f"{kind} (no traceback: {type(trouble).__name__})")
    return ErrorFacts(kind, message_of(error), encodable(location), encodable(_middle_cut(text)))


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
    """Whether the experiment's storage, not the user's code, is to blame."""
    return any(isinstance(link, StorageError) for link in chain(error)) or is_full(error, root)


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
    text = _text(error)
    return text if len(text) <= MAX_MESSAGE_CHARS else text[:MAX_MESSAGE_CHARS] + "..."


def _text(error: BaseException) -> str:
    try:
        return encodable(str(error))
    except BaseException as trouble:
        return f"(its message cannot be shown: {type(trouble).__name__})"


def _middle_cut(text: str) -> str:
    if len(text) <= MAX_TRACEBACK_CHARS:
        return text
    half = MAX_TRACEBACK_CHARS // 2
    return f"{text[:half]}\n... {len(text) - 2 * half:,} characters left out ...\n{text[-half:]}"


def _location(stack: traceback.StackSummary) -> str:
    """The innermost line of the user's own code; of a library if there is none."""
    outside = [frame for frame in stack if not _is_ours(frame)]
    own = [frame for frame in outside if not _is_library(frame.filename)]
    for frames in (own, outside):
        if frames:
            return f"{frames[-1].filename}:{frames[-1].lineno}"
    return ""


def _drop_our_frames(story: traceback.TracebackException) -> bool:
    """Leave the user's frames only; False if that would leave the failure itself without any."""
    kept = [frame for frame in story.stack if not _is_ours(frame)]
    if story.stack and not kept:
        return False
    story.stack[:] = kept
    linked = [story.__cause__, story.__context__, *(story.exceptions or ())]
    for other in linked:
        if other is not None:
            _drop_our_frames(other)
    return True


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_PACKAGE)


def _is_library(filename: str) -> bool:
    return filename.startswith(("<frozen ", *_library_places()))


@functools.cache
def _library_places() -> tuple[str, ...]:
    import site
    import sysconfig

    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    places.update(site.getsitepackages() if hasattr(site, "getsitepackages") else ())
    places.add(site.getusersitepackages() if hasattr(site, "getusersitepackages") else "")
    return tuple(os.path.join(place, "") for place in places if place)
