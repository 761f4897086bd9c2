"""A worker's life between ``Setup`` and ``Quit``: one attempt after the other.

Owns the frame around user code: whatever that code does, exactly one ``Returned``, ``Stopped`` or ``Raised`` is sent
for each ``Run`` (unless the driver is gone), and the next attempt starts clean. Must never let an exception of the
user's end the worker.
"""

from __future__ import annotations

import os
from typing import Any

from holdfast.core.observations import Raised, Returned, Stopped, WorkerMessage
from holdfast.trainable import failures, session
from holdfast.trainable.class_runner import ClassRunner, ResetRefused, RestoreFailed
from holdfast.trainable.function_runner import run_function
from holdfast.trainable.messages import Channel, Quit, Run, Setup
from holdfast.trainable.pickling import StoredObjects, load_objects, load_trainable
from holdfast.trainable.session import Session, TrialStopped
from holdfast.trainable.surroundings import prepare_imports, surroundings


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
            self._channel.send(*current.unsent, outcome)

    def close(self) -> None:
        """Let a kept instance clean up."""
        if self._runner is not None:
            self._runner.close()

    def _outcome(self, current: Session) -> WorkerMessage:
        n, attempt, worker = current.run.n, current.run.attempt, self._setup.worker
        try:
            with surroundings(self._setup, current.run):
                returned = self._run(current)
        except TrialStopped:
            return Stopped(n, attempt, worker)
        except BaseException as error:
            return self._raised(current.run, error)
        return Returned(n, attempt, worker) if returned else Stopped(n, attempt, worker)

    def _run(self, current: Session) -> bool:
        """True if the trainable came to its own end."""
        trainable = self._load()
        config = self._config(current.run)
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
            with open(path, "rb") as file:
                data = file.read()
            try:
                self._trainable = load_trainable(data)
            except (OSError, MemoryError):
                raise  # the machine's trouble: another try may work
            except Exception as error:
                raise _LoadFailed(f"the trainable in {path} cannot be loaded") from error
        return self._trainable

    def _config(self, run: Run) -> dict[str, Any]:
        from holdfast.space.objects import restore_objects

        if not _refers_to_objects(run.config):
            return run.config
        if self._objects is None:
            self._objects = load_objects(os.path.join(self._setup.root, self._setup.objects_file))
        restored: dict[str, Any] = restore_objects(run.config, self._objects)
        return restored

    def _raised(self, run: Run, error: BaseException) -> Raised:
        cause = error.__cause__ if isinstance(error, (RestoreFailed, _LoadFailed)) else error
        assert cause is not None
        message = Raised(
            run.n,
            run.attempt,
            self._setup.worker,
            failures.error_facts(cause),
            failures.pickled(cause),
            failures.is_storage_trouble(cause, self._setup.root),
            isinstance(error, RestoreFailed),
            isinstance(error, (ResetRefused, _LoadFailed)),
        )
        failures.release(error)
        return message


def _refers_to_objects(node: Any) -> bool:
    from holdfast.space.objects import is_marker

    if isinstance(node, dict):
        return is_marker(node) or any(map(_refers_to_objects, node.values()))
    return isinstance(node, list) and any(map(_refers_to_objects, node))
