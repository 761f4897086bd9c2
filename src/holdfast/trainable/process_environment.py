"""What an attempt finds around it: directory, environment variables, output files, random numbers.

Owns all of the process's global state that differs between attempts, and puts it back afterwards: nothing of one
trial may reach the next one in the same process.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, TextIO

from holdfast.checkpoints.tree import storage_error
from holdfast.errors import InvalidInputError
from holdfast.trainable.worker_messages import Run, Setup

_NEVER = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL})
"""What a name of the user's choice can be wrong with: no other try would help."""

ORIGINAL_DIR = "TUNE_ORIG_WORKING_DIR"
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


def prepare_imports(setup: Setup) -> None:
    """Let this process import what the driver could import, in the driver's order."""
    # Relative places are meant from where the driver was, not from the trial's directory.
    start = setup.working_dir or os.getcwd()
    wanted = [os.path.normpath(os.path.join(start, place)) for place in setup.sys_path]
    sys.path[:] = dict.fromkeys([*wanted, *sys.path])


@contextlib.contextmanager
def attempt_environment(setup: Setup, run: Run) -> Iterator[None]:
    """The working directory, environment variables and output streams of an attempt, while it runs.

    Raises:
        StorageError: They cannot be set up: that is never a failure of the trial itself.
    """
    trial_dir = os.path.join(setup.root, run.trial_dir)
    streams = sys.stdout, sys.stderr
    try:
        with contextlib.ExitStack() as changes:
            try:
                _make(trial_dir)
                original = _original_dir(setup)
                changes.enter_context(_environment(setup, run, original))
                changes.enter_context(_directory(setup, trial_dir, original))
                changes.enter_context(_output(setup, trial_dir))
            except OSError as error:
                raise storage_error(error, f"preparing the trial's directory {trial_dir}") from error
            _seed(run)
            yield
    finally:
        sys.stdout, sys.stderr = streams


def _make(trial_dir: str) -> None:
    try:
        os.mkdir(trial_dir)
    except FileExistsError:
        pass
    except FileNotFoundError:
        os.makedirs(trial_dir, exist_ok=True)


@contextlib.contextmanager
def _environment(setup: Setup, run: Run, original: str) -> Iterator[None]:
    ours = {ORIGINAL_DIR: original, VISIBLE_GPUS: ",".join(run.gpus)}
    former = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    before = _variables()
    try:
        yield
    finally:
        # An instance that lives on may need what it has set; everything else goes back to what it was.
        if not setup.reuse_instances and _variables() != before:
            _put_back(before)
        for name, value in former.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _variables() -> dict[Any, Any]:
    """All environment variables. Reading them one by one through ``os.environ`` would cost as much as a small trial."""
    raw = getattr(os.environ, "_data", None)
    return dict(raw) if isinstance(raw, dict) else dict(os.environ)


def _put_back(before: dict[Any, Any]) -> None:
    environ: Any = os.environb if any(isinstance(name, bytes) for name in before) else os.environ
    for name in {*before, *environ}:
        if name not in before:
            environ.pop(name, None)
        elif environ.get(name) != before[name]:
            environ[name] = before[name]


@contextlib.contextmanager
def _directory(setup: Setup, trial_dir: str, original: str) -> Iterator[None]:
    os.chdir(trial_dir if setup.chdir else original)
    try:
        yield
    finally:
        try:
            os.chdir(original)
        except OSError:  # somebody removed it, or took the right to enter it away
            os.chdir("/")


def _original_dir(setup: Setup) -> str:
    if setup.working_dir and os.path.isdir(setup.working_dir):
        return setup.working_dir
    try:
        return os.getcwd()
    except OSError:  # somebody removed it
        return "/"


@contextlib.contextmanager
def _output(setup: Setup, trial_dir: str) -> Iterator[None]:
    """Send both output streams to files of the trial, at the level of file descriptors: child processes follow."""
    streams = sys.stdout, sys.stderr
    if setup.log_to_file is None:
        try:
            yield
        finally:
            _flush(*streams)
        return
    with contextlib.ExitStack() as undo:
        files: dict[str, int] = {}
        for name in setup.log_to_file:
            if name not in files:
                files[name] = _open_log(trial_dir, name)
                undo.callback(os.close, files[name])
        for fd in (1, 2):
            saved = os.dup(fd)
            undo.callback(os.close, saved)
            undo.callback(os.dup2, saved, fd)
        _flush(*streams)
        undo.callback(_flush, *streams)
        for fd, name in zip((1, 2), setup.log_to_file, strict=True):
            os.dup2(files[name], fd)
        for stream in streams:
            _buffer_lines(stream, undo)
        yield


def _open_log(trial_dir: str, name: str) -> int:
    try:
        return os.open(os.path.join(trial_dir, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno not in _NEVER or not os.path.isdir(trial_dir):
            raise
        raise InvalidInputError(
            f"RunConfig(log_to_file={name!r}) is no file that a trial can write ({os.strerror(error.errno)}). Give the "
            "name of a file in the trial's directory, or True."
        ) from error


def _buffer_lines(stream: TextIO | Any, undo: contextlib.ExitStack) -> None:
    """A log that can be followed while the trial runs, and that keeps what was printed before a crash."""
    if hasattr(stream, "reconfigure") and not stream.line_buffering:
        stream.reconfigure(line_buffering=True)
        undo.callback(stream.reconfigure, line_buffering=False)


def _flush(*streams: TextIO | Any) -> None:
    for stream in (*streams, sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # a full disk, or a stream that the user closed or removed
            continue


def _seed(run: Run) -> None:
    """Give each attempt random numbers of its own.

    Workers are forked from one process and used again, so without this they would all draw the same numbers, or
    continue where another trial stopped. Derived from the trial, so that a trial that seeds nothing can still be
    repeated.
    """
    digest = hashlib.blake2b(f"{run.trial_id}/{run.attempt}".encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "big")
    random.seed(seed)
    numpy: ModuleType | None = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        numpy.random.seed(seed % 2**32)
