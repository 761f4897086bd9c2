"""Syncers: copy a directory to another place and back, with the user's own tool.

Owns the `Syncer` interface, the rules of a copy that runs in the background (one at a time, abandoned after
``sync_timeout``). Must never know of experiments: which directories are copied, and in which order, is decided in
``synced_copy.py``; nor of how the user has asked for a syncer, which is ``syncer_setting.py``'s.
"""

from __future__ import annotations

import abc
import inspect
import logging
import math
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Self

from holdfast.config.checkpoint import check_copier
from holdfast.config.settings import real_number, whole_number
from holdfast.errors import SyncError, SyncTimeoutError
from holdfast.sync.directories import as_directory, delete_by_address, make_local

LOOK_S = 0.1
"""Between two looks whether a copy is still wanted."""

_log = logging.getLogger("holdfast.sync")


class Syncer(abc.ABC):
    """Copies directories to a place of your own and back. Subclass it if commands and functions are not enough.

    `sync_up`, `sync_down` and `delete` may do their work at once, or start it and leave it to `wait`; for the latter
    see `BackgroundSyncer`. They raise, or let `wait` raise, if the work failed. Instances must be picklable.

    Args:
        sync_period: Seconds between two copies that `sync_up_if_needed` and `sync_down_if_needed` make.
        sync_timeout: Seconds after which a copy that still runs is given up.
    """

    # On the class too, so that a subclass that does not call this constructor has them.
    sync_period: float = 300.0
    sync_timeout: float = 1800.0
    _last_up: float = -math.inf
    _last_down: float = -math.inf
    _transient: ClassVar[frozenset[str]] = frozenset({"_last_up", "_last_down"})
    """What a copy of a syncer in another process begins without: it has not started anything."""

    def __init__(self, sync_period: float = 300.0, sync_timeout: float = 1800.0) -> None:
        self.sync_period = real_number("sync_period", sync_period)
        self.sync_timeout = real_number("sync_timeout", sync_timeout, positive=True)

    @abc.abstractmethod
    def sync_up(self, local_dir: str, remote_dir: str, exclude: Sequence[str] | None = None) -> bool:
        """Copy the content of ``local_dir`` to ``remote_dir``.

        Args:
            local_dir: A directory on this machine.
            remote_dir: Where its content belongs, in whatever form of address you use.
            exclude: Patterns as of `fnmatch`, for paths relative to ``local_dir``, of what to leave out.

        Returns:
            True if a copy was started (or made), False if it was left out because another one runs.
        """

    @abc.abstractmethod
    def sync_down(self, remote_dir: str, local_dir: str, exclude: Sequence[str] | None = None) -> bool:
        """Copy the content of ``remote_dir`` to ``local_dir``; the rest as for `sync_up`."""

    @abc.abstractmethod
    def delete(self, remote_dir: str) -> bool:
        """Delete ``remote_dir`` and all that is below it; the answer means the same as for `sync_up`."""

    def retry(self) -> None:
        """Start the last copy or deletion again, after it failed."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to retry")

    def wait(self, timeout: float | None = None) -> None:  # noqa: B027 - a syncer that works at once has nothing to do
        """Return when nothing runs any more, and raise what the last copy or deletion failed with."""

    def reset(self) -> None:
        """Forget what runs or has failed, so that the next call starts afresh."""
        self._last_up = self._last_down = -math.inf

    def close(self) -> None:  # noqa: B027 - most syncers hold nothing
        """Let go of what the syncer holds. Nobody calls it afterwards."""

    def sync_up_if_needed(self, local_dir: str, remote_dir: str, exclude: Sequence[str] | None = None) -> bool:
        """The same as `sync_up`, but False and nothing else until ``sync_period`` has passed since the last one."""
        now = time.monotonic()
        if now - self._last_up < self.sync_period or not self.sync_up(local_dir, remote_dir, exclude):
            return False
        self._last_up = now
        return True

    def sync_down_if_needed(self, remote_dir: str, local_dir: str, exclude: Sequence[str] | None = None) -> bool:
        """The same as `sync_down`, but False and nothing else until ``sync_period`` has passed since the last one."""
        now = time.monotonic()
        if now - self._last_down < self.sync_period or not self.sync_down(remote_dir, local_dir, exclude):
            return False
        self._last_down = now
        return True

    def wait_or_retry(self, max_retries: int = 3, backoff_s: float = 5) -> None:
        """Wait for what runs, and start it again if it fails, up to ``max_retries`` times.

        Raises:
            SyncError: (also a RuntimeError) It failed each time; the message ends with the last traceback.
        """
        whole_number("max_retries", max_retries, 0)
        last: Exception | None = None
        for attempt in range(max_retries + 1):
            try:
                if attempt:
                    self.retry()
                self.wait()
                return
            except NotImplementedError:
                if last is None:
                    raise
                break
            except Exception as error:
                last = error
            if attempt < max_retries:
                _log.warning("A sync failed and is tried again in %g s: %s", backoff_s, last)
                time.sleep(backoff_s)
        assert last is not None
        story = "".join(traceback.format_exception(last)).rstrip()
        raise SyncError(f"Failed sync even after {max_retries} retries. The last one:\n{story}") from last

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self._transient}


class _Operation:
    """One copy or deletion, in a thread of its own."""

    def __init__(self, what: str, job: Callable[[], object]) -> None:
        self.what = what
        self.error: BaseException | None = None
        self.running = True
        self.given_up = False
        self.started = time.monotonic()
        self._job = job
        self._ended = threading.Event()
        # A daemon: a copy that hangs must not keep the interpreter from ending.
        threading.Thread(target=self._run, name="holdfast-sync", daemon=True).start()

    @property
    def age(self) -> float:
        return time.monotonic() - self.started

    def join(self, timeout: float) -> bool:
        """Wait until it has ended or was given up; False if it has not within ``timeout`` seconds."""
        return self._ended.wait(max(timeout, 0))

    def give_up(self) -> None:
        self.given_up = True
        self._ended.set()

    def _run(self) -> None:
        _thread.operation = self
        try:
            self._job()
        except BaseException as error:  # also sys.exit() in a user's function: it must not pass for success
            self.error = error
        finally:
            self.running = False
            self._ended.set()


_thread = threading.local()


class BackgroundSyncer(Syncer):
    """A syncer whose work is done in a thread. Subclasses say how to copy; when to is decided here.

    One operation runs at a time: another one is left out, unless the first is older than ``sync_timeout``. Then that
    one is given up, its `SyncTimeoutError` is logged and kept in ``last_error``, and the new one begins.

    Attributes:
        last_error: What the last operation that ended badly ended with.
    """

    last_error: BaseException | None
    _lock: threading.RLock
    _operation: _Operation | None
    _last_job: tuple[str, Callable[[], object]] | None
    _transient = Syncer._transient | {"_lock", "_operation", "_last_job", "last_error"}

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # Not in the constructor, which neither unpickling nor every subclass calls.
        self = super().__new__(cls)
        self._lock = threading.RLock()
        self._operation = None
        self._last_job = None
        self.last_error = None
        return self

    @abc.abstractmethod
    def copy_up(self, local_dir: str, remote_dir: str, exclude: Sequence[str] | None) -> None:
        """Copy the content of ``local_dir`` to ``remote_dir`` and return when that is done, or raise."""

    @abc.abstractmethod
    def copy_down(self, remote_dir: str, local_dir: str, exclude: Sequence[str] | None) -> None:
        """Copy the content of ``remote_dir`` to ``local_dir`` and return when that is done, or raise."""

    @abc.abstractmethod
    def remove(self, remote_dir: str) -> None:
        """Delete ``remote_dir`` and return when that is done, or raise."""

    def interrupt(self) -> None:
        """Stop what runs, as well as that is possible: it has been given up. Called from another thread."""

    @property
    def given_up(self) -> bool:
        """Whether the operation that the calling thread works at has been given up; a long one looks now and then."""
        operation: _Operation | None = getattr(_thread, "operation", None)
        return operation is not None and operation.given_up

    def sync_up(self, local_dir: str, remote_dir: str, exclude: Sequence[str] | None = None) -> bool:
        """Start to copy the content of ``local_dir`` to ``remote_dir``; see `Syncer.sync_up`."""
        job = partial(self.copy_up, local_dir, remote_dir, list(exclude) if exclude else None)
        return self._launch(f"{local_dir} to {remote_dir}", job)

    def sync_down(self, remote_dir: str, local_dir: str, exclude: Sequence[str] | None = None) -> bool:
        """Start to copy the content of ``remote_dir`` to ``local_dir``; see `Syncer.sync_down`."""
        job = partial(self.copy_down, remote_dir, local_dir, list(exclude) if exclude else None)
        return self._launch(f"{remote_dir} to {local_dir}", job)

    def delete(self, remote_dir: str) -> bool:
        """Start to delete ``remote_dir``; see `Syncer.delete`."""
        return self._launch(f"the deletion of {remote_dir}", partial(self.remove, remote_dir))

    def retry(self) -> None:
        """Start the last copy or deletion again. One that still runs is left alone."""
        if self._last_job is None:
            raise SyncError("There is nothing to retry: neither a copy nor a deletion has been started yet.")
        self._launch(*self._last_job)

    def wait(self, timeout: float | None = None) -> None:
        """Return when nothing runs any more, and raise what the last operation failed with, once.

        Raises:
            SyncTimeoutError: (also a TimeoutError) It took longer than ``sync_timeout`` and was given up; or longer
                than ``timeout``, and continues.
        """
        operation = self._operation
        if operation is None:
            return
        left = self.sync_timeout - operation.age
        overdue = timeout is None or left <= timeout
        operation.join(left if timeout is None else min(left, timeout))
        with self._lock:
            if operation.running and not operation.given_up:
                if overdue:
                    raise self._give_up(operation)
                raise SyncTimeoutError(f"The sync of {operation.what} still runs after {timeout:g} s; it continues.")
            self._settle(operation)

    def finish_or_give_up(self, timeout: float, stop: Callable[[], bool]) -> bool:
        """Wait as `wait` does, but give up after ``timeout`` seconds, or as soon as ``stop`` says so.

        Returns:
            Whether what ran has ended.
        """
        operation, ends_at = self._operation, time.monotonic() + timeout
        while operation is not None and not operation.join(min(ends_at - time.monotonic(), LOOK_S)):
            if stop() or time.monotonic() >= ends_at:
                self.reset()
                return False
        with self._lock:
            if operation is not None:
                self._settle(operation)
        return True

    def _settle(self, operation: _Operation) -> None:
        """Forget an operation that has ended, and raise what it failed with."""
        if operation.given_up:  # by another thread; nobody may take that for success
            raise SyncError(f"The sync of {operation.what} was given up.")
        if operation is self._operation:
            self._operation = None
        if operation.error is not None:
            self.last_error = operation.error
            if isinstance(operation.error, Exception):
                raise operation.error
            raise SyncError(f"The sync of {operation.what} ended with {operation.error!r}.") from operation.error

    def reset(self) -> None:
        """Give up what runs, and forget what has failed."""
        super().reset()
        with self._lock:
            operation, self._operation, self.last_error = self._operation, None, None
            if operation is not None and operation.running:
                self._abandon(operation)

    def close(self) -> None:
        """Give up what runs."""
        self.reset()

    def _launch(self, what: str, job: Callable[[], object]) -> bool:
        with self._lock:
            before = self._operation
            if before is not None and before.running:
                if before.age < self.sync_timeout:
                    _log.debug("The sync of %s is left out: that of %s still runs.", what, before.what)
                    return False
                _log.error("%s", self._give_up(before))
            elif before is not None and before.error is not None:
                self.last_error = before.error
                _log.error("The sync of %s failed: %s", before.what, before.error)
            self._last_job = (what, job)
            self._operation = _Operation(what, job)
        return True

    def _give_up(self, operation: _Operation) -> SyncTimeoutError:
        error = SyncTimeoutError(
            f"The sync of {operation.what} was given up after sync_timeout={self.sync_timeout:g} s. "
            "If it only needs longer, raise SyncConfig(sync_timeout=...)."
        )
        self.last_error = error
        self._operation = None
        self._abandon(operation)
        return error

    def _abandon(self, operation: _Operation) -> None:
        operation.give_up()
        self.interrupt()


class FunctionSyncer(BackgroundSyncer):
    """Copies with a function ``f(source, target)``, the same one in both directions; an exception is a failure.

    Both arguments end with a slash and mean the content of a directory. Local ones exist when it is called.

    Args:
        function: What copies.
        sync_period: As for `Syncer`.
        sync_timeout: As for `Syncer`. A function cannot be stopped from outside: one that is given up runs on, and
            what it still writes may meet what its successor writes.
    """

    def __init__(
        self, function: Callable[[str, str], object], sync_period: float = 300.0, sync_timeout: float = 1800.0
    ) -> None:
        super().__init__(sync_period, sync_timeout)
        check_copier("The function of a FunctionSyncer", function)
        self.function = function

    def copy_up(self, local_dir: str, remote_dir: str, exclude: Sequence[str] | None) -> None:
        """Call the function; it has no way to leave something out."""
        make_local(remote_dir)
        self.function(as_directory(local_dir), as_directory(remote_dir))

    def copy_down(self, remote_dir: str, local_dir: str, exclude: Sequence[str] | None) -> None:
        """Call the function; it has no way to leave something out."""
        make_local(local_dir)
        self.function(as_directory(remote_dir), as_directory(local_dir))

    def remove(self, remote_dir: str) -> None:
        """Delete a directory through the file system of its address, if there is one."""
        delete_by_address(remote_dir)


class DetachedSyncer(BackgroundSyncer):
    """Runs another syncer, or an object with the same three methods, in the background, whatever way it works itself.

    So that a copy that never returns is noticed after ``sync_timeout`` like any other.
    """

    def __init__(self, syncer: Any) -> None:
        super().__init__(
            getattr(syncer, "sync_period", Syncer.sync_period), getattr(syncer, "sync_timeout", Syncer.sync_timeout)
        )
        self.syncer = syncer

    def copy_up(self, local_dir: str, remote_dir: str, exclude: Sequence[str] | None) -> None:
        """Call the other one's ``sync_up`` and wait for it."""
        self._finish(self._bound(self.syncer.sync_up, local_dir, remote_dir, exclude))

    def copy_down(self, remote_dir: str, local_dir: str, exclude: Sequence[str] | None) -> None:
        """Call the other one's ``sync_down`` and wait for it."""
        self._finish(self._bound(self.syncer.sync_down, remote_dir, local_dir, exclude))

    def remove(self, remote_dir: str) -> None:
        """Call the other one's ``delete`` and wait for it."""
        self._finish(partial(self.syncer.delete, remote_dir))

    def interrupt(self) -> None:
        """Reset the other one, if it can be."""
        getattr(self.syncer, "reset", bool)()

    def close(self) -> None:
        """Close the other one too, if it can be."""
        super().close()
        getattr(self.syncer, "close", bool)()

    def _bound(self, copy: Callable[..., object], source: str, target: str, exclude: Any) -> Callable[[], object]:
        # The oldest generation of sync clients takes two directories and nothing else.
        try:
            inspect.signature(copy).bind(source, target, exclude)
        except TypeError:
            return partial(copy, source, target)
        except ValueError:
            pass
        return partial(copy, source, target, exclude)

    def _finish(self, start: Callable[[], object]) -> None:
        wait: Callable[[], object] = getattr(self.syncer, "wait", bool)
        # Only False means "left out"; an object of the oldest generation may return nothing.
        if start() is False:
            wait()  # for whatever it is busy with
            if start() is False:
                raise SyncError(f"{self.syncer!r} left a sync out twice, as if another one were running.")
        wait()
