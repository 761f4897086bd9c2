"""Keras: callbacks for ``Model.fit``, on whichever backend Keras uses.

Owns how a model is saved and how a fit continues from it. Must never change how the model trains.
"""

from __future__ import annotations

from typing import Any

from holdfast.integration import chance
from holdfast.integration.reporting import MetricChoice, Metrics, Postprocess, Saving, load_framework
from holdfast.trainable.api import report

_BACKEND = (
    "Keras is installed and its backend is not: install tensorflow, torch or jax, and name another one than tensorflow "
    "in the environment, for example KERAS_BACKEND=torch, before Keras is imported."
)

keras = load_framework("keras", "keras", "keras", _BACKEND)
_Callback: Any = keras.callbacks.Callback

__all__ = ["TuneReportCallback", "TuneReportCheckpointCallback"]


class TuneReportCallback(_Callback):  # type: ignore[misc]
    """Report the metrics of every epoch.

    Metrics are those of Keras' logs: ``loss``, ``val_loss``, and those that the model was compiled with.

    Args:
        metrics: None for all; one name; a list of names; or a dict from reported names to Keras'.
        results_postprocessing_fn: Gets the dict of metrics and returns the one to choose from.

    Raises:
        InvalidInputError: While training: a metric does not exist; the message lists those that do.

    Example:
        >>> model.fit(x, y, epochs=10, validation_split=0.2, callbacks=[TuneReportCallback({"loss": "val_loss"})])
    """

    def __init__(self, metrics: Metrics = None, results_postprocessing_fn: Postprocess | None = None) -> None:
        super().__init__()
        self._choice = MetricChoice(metrics, results_postprocessing_fn)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras after each epoch."""
        report(self._choice.of(logs or {}))


class TuneReportCheckpointCallback(TuneReportCallback):
    """Report every epoch, save the model with its optimizer, and resume.

    Resuming needs no further code: ``fit`` with the same ``epochs`` continues after the epoch of the trial's
    checkpoint, with weights, optimizer, the layers' random numbers, and those of Python, NumPy and PyTorch. The order
    of shuffled batches is saved with the PyTorch backend only: TensorFlow has no such state to save. Counters of other
    callbacks (early stopping, say) begin anew.

    Args:
        metrics: See ``TuneReportCallback``.
        filename: The file in the checkpoint: ``*.keras`` for the whole model, which ``keras.saving.load_model`` reads;
            ``*.weights.h5`` for a model that Keras cannot write as a whole.
        frequency: Save every so many epochs. 0 saves only at the end, and when the driver is about to end.
        checkpoint_at_end: Save with the last epoch. After early stopping that is one more report.
        results_postprocessing_fn: See ``TuneReportCallback``.

    Raises:
        InvalidInputError: An argument is wrong; or a trial's checkpoint has no file of this name.

    Durability:
        As with ``report``: a saved model survives the death of every process.

    Example:
        >>> callback = TuneReportCheckpointCallback({"loss": "val_loss"}, frequency=1)
        >>> model.fit(x, y, epochs=10, validation_split=0.2, callbacks=[callback])
    """

    def __init__(
        self,
        metrics: Metrics = None,
        filename: str = "model.keras",
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Postprocess | None = None,
    ) -> None:
        super().__init__(metrics, results_postprocessing_fn)
        if isinstance(filename, str) and filename and not filename.endswith((".keras", ".weights.h5")):
            filename += ".keras"
        self._saving = Saving(filename, frequency, checkpoint_at_end)
        self._looked = False
        self._done = self._saved = 0
        self._logs: dict[str, Any] = {}

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras before the first epoch: continue from the trial's checkpoint."""
        if self._looked:
            return
        self._looked = True
        with self._saving.resumed() as found:
            if found is None:
                return
            path, progress = found
            optimizer = getattr(self.model, "optimizer", None)
            if optimizer is not None and not optimizer.built:
                optimizer.build(self.model.trainable_variables)
            self.model.load_weights(path)
        self._done = self._saved = int(progress.get("epochs", 0))
        self._logs = progress.get("logs", {})
        chance.restore(progress.get("chance", {}))
        _set_seeds(self.model, progress.get("seeds", []))
        # As keras.callbacks.BackupAndRestore does it: there is no other way to begin fit() at a later epoch.
        self.model._initial_epoch = self._done

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras after each epoch."""
        self._done, self._logs = epoch + 1, dict(logs or {})
        metrics = self._choice.of(self._logs)
        last = self._done == self.params.get("epochs") or self.model.stop_training
        if self._saving.due(self._done) or (last and self._saving.at_end):
            self._save(metrics)
        else:
            report(metrics)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras after the last epoch."""
        self.model._initial_epoch = None
        if self._saving.at_end and self._saved != self._done:
            self._save(self._choice.of(self._logs))

    def _save(self, metrics: dict[str, Any]) -> None:
        write = self.model.save if self._saving.filename.endswith(".keras") else self.model.save_weights
        numbers = {name: float(value) for name, value in self._logs.items() if isinstance(value, int | float)}
        progress = {"epochs": self._done, "logs": numbers, "chance": chance.state(), "seeds": _seeds(self.model)}
        self._saving.report(metrics, write, progress)
        self._saved = self._done


def _seed_variables(model: Any) -> list[Any]:
    """The states of the layers' random numbers, dropout for example, which Keras does not count among the weights."""
    weights = {id(variable) for variable in model.weights}
    return [variable for variable in model.variables if id(variable) not in weights and "seed" in variable.path]


def _seeds(model: Any) -> list[list[int]]:
    return [[int(number) for number in variable.value] for variable in _seed_variables(model)]


def _set_seeds(model: Any, seeds: list[list[int]]) -> None:
    variables = _seed_variables(model)
    if len(variables) == len(seeds):
        for variable, numbers in zip(variables, seeds, strict=True):
            variable.assign(numbers)
