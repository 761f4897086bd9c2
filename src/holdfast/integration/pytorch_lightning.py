"""Lightning: callbacks for ``lightning.Trainer`` (and ``pytorch_lightning.Trainer``, where only that is installed).

Owns when a trainer's metrics are reported and how a fit continues. Must never act for ``validate``, ``test`` or the
sanity check.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

from holdfast.errors import InvalidInputError, UsageError
from holdfast.integration import chance
from holdfast.integration.reporting import MetricChoice, Metrics, Saving, load_framework
from holdfast.trainable.api import report


def _load() -> Any:
    try:
        return load_framework("lightning.pytorch", "lightning", "lightning")
    except ImportError:
        try:
            return load_framework("pytorch_lightning", "lightning", "lightning")
        except ImportError:
            pass
        raise


lightning = _load()
_Callback: Any = lightning.Callback

__all__ = ["TuneReportCallback", "TuneReportCheckpointCallback"]

HOOKS = ("validation_end", "validation_epoch_end", "train_epoch_end", "train_end", "fit_end")
"""Where a callback can report: after validation, after an epoch of training, or once at the end."""


class TuneReportCallback(_Callback):  # type: ignore[misc]
    """Report what the module has logged.

    Metrics are those of ``trainer.callback_metrics``: what the module gave to ``self.log``.

    Args:
        metrics: None for all; one name; a list of names; or a dict from reported names to Lightning's.
        on: When to report: one of ``HOOKS``, or a list of them. For a fit without validation: ``"train_epoch_end"``.

    Raises:
        InvalidInputError: ``on`` is unknown. While training: a metric does not exist; the message lists those that do.

    Example:
        >>> lightning.Trainer(max_epochs=10, callbacks=[TuneReportCallback({"loss": "val_loss"})]).fit(model)
    """

    def __init__(self, metrics: Metrics = None, on: str | list[str] = "validation_end") -> None:
        super().__init__()
        self._choice = MetricChoice(metrics)
        hooks = [on] if isinstance(on, str) else list(on)
        hooks = [hook.removeprefix("on_") if isinstance(hook, str) else hook for hook in hooks]
        unknown = [hook for hook in hooks if hook not in HOOKS]
        if unknown or not hooks:
            raise InvalidInputError(f"on={on!r}: expected one of {list(HOOKS)}, or a list of them.")
        for hook in hooks:
            setattr(self, f"on_{hook}", self._when_called)

    def _when_called(self, trainer: Any, pl_module: Any) -> None:
        fitting = str(getattr(trainer.state.fn, "value", trainer.state.fn)) == "fit"
        if fitting and not trainer.sanity_checking and trainer.is_global_zero:
            self._report(trainer, self._choice.of(_numbers(trainer.callback_metrics)))

    def _report(self, trainer: Any, metrics: dict[str, Any]) -> None:
        report(metrics)


class TuneReportCheckpointCallback(TuneReportCallback):
    """Report what the module has logged, save with ``Trainer.save_checkpoint``, and resume.

    Resuming needs no further code: ``fit`` continues from the trial's checkpoint, with model, optimizers, schedulers,
    other callbacks, the position in the epochs, and the random numbers. If you pass ``ckpt_path`` yourself, that is
    taken instead. ``enable_checkpointing=False`` for the trainer avoids a second set of files: which checkpoints are
    kept is a matter of ``CheckpointConfig``.

    Args:
        metrics: See ``TuneReportCallback``.
        filename: The file in the checkpoint.
        save_checkpoints: False only reports.
        on: See ``TuneReportCallback``; each report has a checkpoint.
        frequency: Save with every so many reports only.

    Raises:
        InvalidInputError: An argument is wrong; or a trial's checkpoint has no file of this name.

    Durability:
        As with ``report``: a saved checkpoint survives the death of every process.

    Example:
        >>> callback = TuneReportCheckpointCallback({"loss": "val_loss"})
        >>> lightning.Trainer(max_epochs=10, callbacks=[callback], enable_checkpointing=False).fit(model)
    """

    def __init__(
        self,
        metrics: Metrics = None,
        filename: str = "checkpoint",
        save_checkpoints: bool = True,
        on: str | list[str] = "validation_end",
        *,
        frequency: int = 1,
    ) -> None:
        super().__init__(metrics, on)
        self._saving = Saving(filename, frequency, False)
        self._saves = save_checkpoints
        self._reports = 0
        self._chance: dict[str, Any] | None = None  # of a checkpoint from which no batch was computed yet

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning before the fit: continue from the trial's checkpoint."""
        if not self._saves or trainer.ckpt_path is not None:
            return
        with self._saving.resumed() as found:
            if found is not None:
                _restore_of(trainer)(found[0])

    def state_dict(self) -> dict[str, Any]:
        """What Lightning saves of this callback: how many reports there were, and the random numbers."""
        return {"reports": self._reports, "chance": chance.state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Called by Lightning when it continues from a checkpoint."""
        self._reports = state_dict.get("reports", 0)
        self._chance = state_dict.get("chance", {})
        chance.restore(self._chance)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning before an epoch.

        A checkpoint that was saved by a validation lies before the end of its epoch. Lightning finishes that epoch
        first, without a batch, but with a data loader that draws random numbers: those of the next epoch are set again.
        """
        if self._chance is not None:
            chance.restore(self._chance)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Called by Lightning before a batch."""
        self._chance = None

    def _report(self, trainer: Any, metrics: dict[str, Any]) -> None:
        self._reports += 1
        if self._saves and self._saving.due(self._reports):
            self._saving.report(metrics, trainer.save_checkpoint, {"epoch": trainer.current_epoch})
        else:
            report(metrics)


def _restore_of(trainer: Any) -> Callable[[str], None]:
    """How this trainer restores everything at once: what its strategies do that load after their setup."""
    restore = getattr(getattr(trainer, "_checkpoint_connector", None), "restore", None)
    if restore is None:
        raise UsageError(
            f"Lightning {lightning.__version__} cannot resume from inside of a callback. Pass the file to fit: "
            "ckpt_path=os.path.join(tune.get_checkpoint().path, 'checkpoint'), or None if there is no checkpoint."
        )
    more = {"weights_only": False} if "weights_only" in inspect.signature(restore).parameters else {}
    return lambda path: restore(os.fspath(path), **more)


def _numbers(metrics: dict[str, Any]) -> dict[str, Any]:
    return {name: value.item() if hasattr(value, "item") else value for name, value in metrics.items()}
