"""What a trial calls while it runs: ``report`` and its relatives. Outside of a trial they warn and do nothing.

Owns these functions' signatures, older spellings included. Must never do more than the session of the attempt does.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from numbers import Number
from typing import TYPE_CHECKING, Any

from holdfast.core.retention import DEFAULT_METRIC
from holdfast.errors import UsageError
from holdfast.messages.warn import hint
from holdfast.trainable.context import TuneContext, warn_outside
from holdfast.trainable.session import current, start_of

if TYPE_CHECKING:
    from holdfast.checkpoints.checkpoint import Checkpoint


def report(metrics: Any = None, *, checkpoint: Checkpoint | None = None, **kwargs: Any) -> None:
    """Report metrics, and optionally a checkpoint, from inside a function trainable.

    Each call is one ``training_iteration``. Values are copied when this is called. If the trial is to end, this does
    not return: it unwinds the trainable, running its ``finally`` blocks.

    Args:
        metrics: A dict of names and values: numbers, strings, lists, dicts, NumPy scalars and arrays. Any other object
            is stored as its ``repr``, an int of more than 64 bits as a float; the driver shows a warning, once.
        checkpoint: The training state that belongs to these metrics. Its directory is copied and stays yours; one
            from ``checkpoint_dir()`` is moved instead.
        **kwargs: Older spelling: ``report(loss=0.5)``.

    Durability:
        When this returns, the report is in the driver's journal (or, of several within milliseconds, in a file that
        the next driver adds to it), and the checkpoint's files are complete in the experiment's storage: all of it
        survives the death of every process.

    Raises:
        ValueError: If a metric is a Torch tensor or the checkpoint's directory does not exist.
        TypeError: If ``metrics`` is not a dict with string keys.

    Example:
        >>> def train(config):
        ...     for epoch in range(10):
        ...         tune.report({"loss": 1 / (epoch + 1)})
    """
    session = current()
    if session is None:
        warn_outside("report")
        return
    if session.setup.is_class:
        raise UsageError(
            "report() is for function trainables. In a class, return the metrics from step() and the state from "
            "save_checkpoint()."
        )
    if kwargs or type(metrics) is not dict:
        if (kwargs or isinstance(metrics, Number)) and session.is_news("report"):
            _tell_of_dict(kwargs)
        metrics = _merged(metrics, kwargs)
    session.report(metrics, checkpoint)


def _merged(metrics: Any, kwargs: dict[str, Any]) -> Any:
    """The older spellings ``report(loss=0.5)`` and ``report(0.5)`` as a dict; anything else as it is."""
    if metrics is None:
        return kwargs
    if isinstance(metrics, Number):
        return {DEFAULT_METRIC: metrics, **kwargs}
    return {**metrics, **kwargs} if isinstance(metrics, Mapping) else metrics


def _tell_of_dict(kwargs: dict[str, Any]) -> None:
    name = next(iter(kwargs), "loss")
    old = f"{name}=..." if kwargs else "number"
    hint(f'tune.report({old}) still works, but is now written tune.report({{"{name}": ...}}).')


def get_checkpoint() -> Checkpoint | None:
    """The checkpoint that this attempt has to continue from, or None if it starts from scratch.

    Example:
        >>> checkpoint = tune.get_checkpoint()
        >>> if checkpoint:
        ...     with checkpoint.as_directory() as path:
        ...         model.load(path)
    """
    session = current()
    if session is None:
        warn_outside("get_checkpoint")
        return None
    path = start_of(session)
    if path is None:
        return None
    from holdfast.checkpoints.checkpoint import Checkpoint

    return Checkpoint.saved(path, digest=session.run.checkpoint_digest)


def get_context() -> TuneContext:
    """Facts about the running trial: its id, name, directory and resources."""
    session = current()
    return TuneContext() if session is None else TuneContext(session.setup, session.run)


@contextlib.contextmanager
def checkpoint_dir(step: int | None = None) -> Iterator[str]:
    """A directory to write a checkpoint into; saving it then costs a rename instead of a copy.

    Pass it to ``report(metrics, checkpoint=Checkpoint.from_directory(path))``. If you do not, and files are in it, it
    belongs to the next ``report``.

    Args:
        step: Ignored; an older spelling wanted the iteration here.

    Example:
        >>> with tune.checkpoint_dir() as path:
        ...     model.save(f"{path}/model.pt")
        >>> tune.report({"loss": 0.5}, checkpoint=tune.Checkpoint.from_directory(path))
    """
    session = current()
    if session is None:
        from holdfast.checkpoints import scratch

        warn_outside("checkpoint_dir", "is a temporary directory that is not kept")
        with scratch.directory("checkpoint_dir") as path:
            yield path
        return
    session.check_caller("checkpoint_dir")
    path = session.new_directory()
    try:
        yield path
    except BaseException:
        session.discard(path)
        raise
    if os.path.isdir(path):
        if os.listdir(path):
            session.offer(path)
        else:
            session.discard(path)


def should_checkpoint() -> bool:
    """Whether the driver is about to end, so that a checkpoint with the next report saves work.

    True from the driver's notice (for example of a preemption) until a checkpoint was reported.

    Example:
        >>> for epoch in range(100):
        ...     train_one(epoch)
        ...     if epoch % 10 == 0 or tune.should_checkpoint():
        ...         tune.report(metrics, checkpoint=save())
    """
    session = current()
    if session is None:
        warn_outside("should_checkpoint", "is always False")
        return False
    session.check_caller("should_checkpoint")
    session.listen()
    if session.stopped:
        raise session.unwinding()
    return session.save_soon
