"""A rehearsal for class trainables: does saving and restoring really carry the training on?"""

from __future__ import annotations

import os
from typing import Any

from holdfast.checkpoints import scratch
from holdfast.checkpoints.tree import remove_quietly
from holdfast.errors import InvalidTypeError
from holdfast.trainable import class_checkpoint
from holdfast.trainable.trainable import Trainable

STEPS = 3


def validate_save_restore(
    trainable_cls: type[Trainable], config: dict[str, Any] | None = None, num_gpus: int = 0
) -> bool:
    """Train, save and restore a class trainable in this process, as an experiment would.

    After each of three steps the state is saved and restored into a new instance, which must continue from there. If
    the state is a dict, what the new instance would save is compared with what the old one has saved; values that
    differ from one save to the next anyway (a time, for example), and values that are not plain data, are not.

    Args:
        trainable_cls: The class.
        config: What its ``setup`` gets.
        num_gpus: Ignored: this runs where you call it.

    Returns:
        True. Whatever goes wrong is raised.

    Raises:
        InvalidTypeError: It is no ``Trainable`` class.
        AssertionError: A restored instance is not where the one was that was saved, or does not continue from there.

    Example:
        >>> class Count(Trainable):
        ...     def setup(self, config):
        ...         self.x = 0
        ...     def step(self):
        ...         self.x += 1
        ...         return {"x": self.x}
        ...     def save_checkpoint(self, checkpoint_dir):
        ...         return {"x": self.x}
        ...     def load_checkpoint(self, checkpoint):
        ...         self.x = checkpoint["x"]
        >>> validate_save_restore(Count)
        True
    """
    if not (isinstance(trainable_cls, type) and issubclass(trainable_cls, Trainable)):
        raise InvalidTypeError(
            f"validate_save_restore() is for subclasses of tune.Trainable, got {trainable_cls!r}. A function is "
            "checked by running it: Tuner(train).fit()."
        )
    with scratch.directory("rehearsal") as place:
        current = trainable_cls._made(dict(config or {}), place)
        try:
            for step in range(1, STEPS + 1):
                _train(current, step)
                restored = trainable_cls._made(dict(config or {}), place)
                former, current = current, restored
                try:
                    restored.restore(former.save())
                    _compare(former, restored, step)
                finally:
                    _end(former)
            _train(current, STEPS + 1)
        finally:
            _end(current)
    return True


def _train(instance: Trainable, step: int) -> None:
    instance.train()
    assert instance.iteration == step, (
        f"{type(instance).__name__} is at iteration {instance.iteration} after step {step} of the rehearsal."
    )


def _end(instance: Trainable) -> None:
    made = instance._made_logdir
    instance.stop()
    if made is not None:
        remove_quietly([made])


def _compare(former: Trainable, restored: Trainable, step: int) -> None:
    name = type(former).__name__
    assert restored.iteration == step, (
        f"{name} was saved at iteration {step} and restored at {restored.iteration}. Does its restore() call that of "
        "tune.Trainable?"
    )
    totals = (former._timesteps_total, former._episodes_total)
    found = (restored._timesteps_total, restored._episodes_total)
    assert found == totals, f"{name} was saved with totals (timesteps, episodes) {totals} and restored with {found}."
    saved, again = _state_of(former), _state_of(restored)
    lost = [key for key in saved if not _is_same(saved[key], again.get(key))]
    if lost:
        second = _state_of(former)  # what changes by itself says nothing
        lost = [key for key in lost if _is_same(saved[key], second.get(key))]
    assert not lost, (
        f"{name} was restored after step {step}, but {', '.join(map(repr, lost))} of what it would save now is not "
        "what was saved. Does load_checkpoint() load all that save_checkpoint() saves?"
    )


def _state_of(instance: Trainable) -> dict[Any, Any]:
    """What an instance would save, if that is a dict."""
    with scratch.directory("rehearsal") as directory:
        path = Trainable.save(instance, os.path.join(directory, "state"))
        state = class_checkpoint.read(path).state
    return state if isinstance(state, dict) else {}


def _is_same(left: Any, right: Any) -> bool:
    """Whether two values are the same, as far as plain data can tell; other objects count as the same."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_is_same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_is_same, left, right))
    if isinstance(left, bool | int | float | str | bytes | None):
        # NaN is the only value that is not itself.
        return bool(left == right) or (left != left and right != right)
    is_array = hasattr(left, "tobytes") and hasattr(right, "tobytes")
    if is_array and not getattr(getattr(left, "dtype", None), "hasobject", False):
        return bool(left.tobytes() == right.tobytes())
    return type(left) is type(right)
