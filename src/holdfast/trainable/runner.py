"""A worker's life between ``Setup`` and ``Quit``: one attempt after the other.

Owns the frame around user code: whatever that code does, exactly one ``Returned``, ``Stopped`` or ``Raised`` is sent
for each ``Run`` (unless the driver is gone), and the next attempt starts clean. Must never let an exception of the
user's end the worker.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from holdfast.checkpoints.tree import storage_error
from holdfast.core.observations import Raised, Returned, Stopped, WorkerMessage
from holdfast.errors import ObjectDamagedError, TuneError
from holdfast.trainable import failures, session
from holdfast.trainable.class_runner import ClassRunner, ResetRefused, RestoreFailed
from holdfast.trainable.function_runner import run_function
from holdfast.trainable.pickling import StoredObjects, load_objects, load_trainable
from holdfast.trainable.process_environment import attempt_environment, prepare_imports
from holdfast.trainable.sealed import read_object
from holdfast.trainable.session import Session, TrialStopped
from holdfast.trainable.worker_messages import Channel, Quit, Run, Setup


def run_attempts(setup: Setup, channel: Channel) -> None:
    """Run whatever the driver sends, until it sends ``Quit`` or is gone.

    Args:
        setup: What all attempts have in common.
        channel: The way to the driver. ``receive`` and ``pending`` raise ``EOFError`` once the driver is gone.
    """
    worker = _Worker(setup, channel)
    try:
        while not worker.ended:
            message = channel.receive()
            if isinstance(message, Run):
                worker.attempt(message)
            elif isinstance(message, Quit):
                return
            # Anything else is late: meant for an attempt that has already ended.
    except (EOFError, OSError):
        return  # without a driver nobody can be told anything
    finally:
        worker.close()


class _LoadFailed(Exception):
    """The trainable's file cannot be unpickled; the cause says why."""


class _Worker:
    def __init__(self, setup: Setup, channel: Channel) -> None:
        self._setup = setup
        self._channel = channel
        self._trainable: Any = None
        self._runner: ClassRunner | None = None
        self._objects: StoredObjects | None = None
        self._pid = os.getpid()
        self.ended = False

    def attempt(self, run: Run) -> None:
        """Run one attempt and send how it ended."""
        current = Session(self._setup, run, self._channel)
        session.set_current(current)
        try:
            outcome = self._outcome(current)
        finally:
            if os.getpid() != self._pid:
                os._exit(1)  # a child that the trial forked came back here: what follows is its parent's
            session.set_current(None)
            current.close()
        if current.stopped in ("quit", "gone"):
            self.ended = True
        if current.stopped != "gone":
            self._channel.send(*current.take_hints(), *current.unsent, outcome)

    def close(self) -> None:
        """Let a kept instance clean up."""
        if self._runner is not None:
            self._runner.close()

    def _outcome(self, current: Session) -> WorkerMessage:
        n, attempt, worker = current.run.n, current.run.attempt, self._setup.worker
        try:
            with attempt_environment(self._setup, current.run):
                returned = self._run(current)
        except TrialStopped:
            return Stopped(n, attempt, worker)
        except BaseException as error:
            return self._raised(current.run, error)
        return Returned(n, attempt, worker) if returned else Stopped(n, attempt, worker)

    def _run(self, current: Session) -> bool:
        """True if the trainable came to its own end."""
        trainable = self._load()
        config = current.config = self._config(current.run)
        if self._setup.is_class:
            if self._runner is None:
                self._runner = ClassRunner(trainable)
            return self._runner.run(config, current)
        run_function(trainable, config, current)
        return not current.stopped

    def _load(self) -> Any:
        if self._trainable is None:
            prepare_imports(self._setup)
            path = os.path.join(self._setup.root, self._setup.trainable_file)
            try:
                self._trainable = load_trainable(self._read(path))
            except (OSError, MemoryError):
                raise  # the machine's trouble: another try may work
            except Exception as error:
                if not os.path.lexists(path):  # a network file system may not show it yet: another try may work
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
                raise _LoadFailed(f"the trainable in {path} cannot be loaded") from error
        return self._trainable

    def _read(self, path: str) -> bytes:
        """What was stored in a file, if it is still the one that the driver knows."""
        try:
            return read_object(path, expect=self._setup.digests.get(os.path.basename(path), "")).payload
        except TuneError:
            raise
        except OSError as error:
            raise storage_error(error, f"reading {path}") from error

    def _config(self, run: Run) -> dict[str, Any]:
        from holdfast.space.exact import SCALARS, unpack
        from holdfast.space.objects import restore_objects

        config: dict[str, Any] = run.config
        if _refers_to_objects(config):
            if self._objects is None:
                path = os.path.join(self._setup.root, self._setup.objects_file)
                self._objects = load_objects(path, stored=self._read(path))
            config = restore_objects(config, self._objects)
        elif not SCALARS.issuperset(map(type, config.values())):
            config = unpack(config)
        return config

    def _raised(self, run: Run, error: BaseException) -> Raised:
        cause = error.__cause__ if isinstance(error, (RestoreFailed, _LoadFailed)) else error
        assert cause is not None
        storage = failures.is_storage_trouble(cause, self._setup.root)
        message = Raised(
            run.n,
            run.attempt,
            self._setup.worker,
            failures.error_facts(
                cause,
                self._setup.working_dir if self._setup.chdir else "",
                os.uname().nodename if self._setup.scratch else "",
            ),
            failures.pickled(cause),
            storage,
            isinstance(error, RestoreFailed),
            isinstance(error, (ResetRefused, _LoadFailed, ObjectDamagedError)),
            storage and failures.is_doubtful(cause, self._setup.root),
        )
        failures.release(error)
        return message


def _refers_to_objects(node: Any) -> bool:
    from holdfast.space.objects import is_marker

    if isinstance(node, dict):
        return is_marker(node) or any(map(_refers_to_objects, node.values()))
    return isinstance(node, list) and any(map(_refers_to_objects, node))
