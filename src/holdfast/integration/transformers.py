"""Transformers: callbacks for ``transformers.Trainer``.

Owns when a trainer's metrics are reported, and where its checkpoints go. Must never report a step twice.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from holdfast.integration.reporting import MetricChoice, Metrics, Saving, load_framework
from holdfast.trainable.api import report, should_checkpoint

transformers = load_framework("transformers", "transformers", "transformers")
load_framework("accelerate", "accelerate", "transformers")
_TrainerCallback: Any = transformers.TrainerCallback

__all__ = ["TuneReportCallback", "TuneReportCheckpointCallback"]

_SUMMARY = "train_runtime"
"""In the last log of a training, which sums it up and belongs to no step."""


class TuneReportCallback(_TrainerCallback):  # type: ignore[misc]
    """Report after every evaluation; where the trainer does not evaluate, after every log.

    Metrics are the newest of each that the trainer has logged: ``loss``, ``learning_rate``, ``eval_loss``, those of
    ``compute_metrics``, and also ``step`` and ``epoch``.

    Args:
        metrics: None for all; one name; a list of names; or a dict from reported names to the trainer's.

    Raises:
        InvalidInputError: While training: a metric does not exist; the message lists those that do.

    Example:
        >>> Trainer(model, args, train_dataset=data, eval_dataset=test, callbacks=[TuneReportCallback("eval_loss")])
    """

    def __init__(self, metrics: Metrics = None) -> None:
        self._choice = MetricChoice(metrics)
        self._logs: dict[str, Any] = {}
        self._waits = False  # something was measured that was not reported yet
        self._trains = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the trainer before the first step."""
        self._logs = {}
        for row in state.log_history:
            self._logs.update(row)
        self._waits, self._trains = False, True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Called by the trainer when it logs."""
        if logs and _SUMMARY not in logs:
            self._logs.update(logs)
            self._waits |= self._trains and str(getattr(args.eval_strategy, "value", args.eval_strategy)) == "no"

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Called by the trainer after an evaluation."""
        self._logs.update(metrics or {})
        self._waits |= self._trains

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the trainer before an epoch."""
        self._flush(state)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the trainer before a step."""
        self._flush(state)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the trainer after the last step."""
        self._flush(state)
        self._trains = False

    def _flush(self, state: Any) -> None:
        """Report what waits. It has waited for a checkpoint, which a trainer writes right after an evaluation."""
        if self._waits:
            self._waits = False
            if self._is_new(state):
                report(self._chosen(state))

    def _is_new(self, state: Any) -> bool:
        return True

    def _chosen(self, state: Any) -> dict[str, Any]:
        return self._choice.of({**self._logs, "step": state.global_step, "epoch": state.epoch})


class TuneReportCheckpointCallback(TuneReportCallback):
    """Report after every evaluation and every save, with the trainer's checkpoint, and resume from it.

    The trainer saves by its ``save_strategy``; ``CheckpointConfig`` says which checkpoints are kept. The trainer's
    directory ``checkpoint-<step>`` is moved into the trial's checkpoint; it is copied only if the trainer has
    ``load_best_model_at_end``, and so needs it itself.

    Pass ``callback.resume_from_checkpoint`` to ``Trainer.train``: a trial that has a checkpoint resumes from it, and
    one that has none begins. Without it the trial is right as well, but not fast: steps that were done are computed
    again, and are not reported again.

    Args:
        metrics: See ``TuneReportCallback``.
        filename: The directory in the checkpoint that holds the trainer's files.

    Raises:
        InvalidInputError: An argument is wrong; or a trial's checkpoint has no directory of this name.

    Durability:
        As with ``report``: a saved checkpoint survives the death of every process.

    Example:
        >>> callback = TuneReportCheckpointCallback({"loss": "eval_loss"})
        >>> trainer = Trainer(model, args, train_dataset=data, eval_dataset=test, callbacks=[callback])
        >>> trainer.train(resume_from_checkpoint=callback.resume_from_checkpoint)
    """

    def __init__(self, metrics: Metrics = None, filename: str = "checkpoint") -> None:
        super().__init__(metrics)
        self._saving = Saving(filename, 0, False)
        self._done = 0  # the step of the checkpoint that this attempt continues from

    @property
    def resume_from_checkpoint(self) -> str | None:
        """The directory that this trial continues from, for ``Trainer.train``; None if it begins."""
        with self._saving.resumed() as found:
            return None if found is None else found[0]

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the trainer before the first step."""
        super().on_train_begin(args, state, control, **kwargs)
        with self._saving.resumed() as found:
            self._done = 0 if found is None else int(found[1].get("step", 0))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Called by the trainer after a step: the driver may be about to end."""
        if should_checkpoint():
            control.should_save = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the trainer when it has saved."""
        self._waits = False
        if not self._is_new(state):
            return
        written = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")

        def take(path: str) -> None:
            if args.load_best_model_at_end:
                shutil.copytree(written, path)
            else:
                shutil.move(written, path)

        self._saving.report(self._chosen(state), take, {"step": state.global_step})

    def _is_new(self, state: Any) -> bool:
        return bool(state.global_step > self._done)
