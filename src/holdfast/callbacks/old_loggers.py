"""Loggers of the oldest generation: one object per trial, with ``on_result`` and ``close``.

Owns the base class and the callback that drives such loggers. The files of the built-in ones (``result.json``,
``progress.csv``, events for TensorBoard) are written by the experiment itself, once.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.callbacks.loggers import LoggerCallback
from holdfast.errors import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    from holdfast.views.trials import TrialView

log = logging.getLogger("holdfast")


class Logger:
    """Base class of loggers that are made once for each trial.

    Args:
        config: The trial's configuration.
        logdir: The trial's directory.
        trial: The trial; None outside of an experiment.

    Example:
        >>> class Losses(Logger):
        ...     def _init(self):
        ...         self.losses = []
        ...     def on_result(self, result):
        ...         self.losses.append(result["loss"])
    """

    def __init__(self, config: dict[str, Any], logdir: str, trial: Any = None) -> None:
        self.config = config
        self.logdir = logdir
        self.trial = trial
        self._init()

    def _init(self) -> None:
        """Prepare; called by the constructor."""

    def on_result(self, result: dict[str, Any]) -> None:
        """The trial has reported."""
        raise NotImplementedError

    def update_config(self, config: dict[str, Any]) -> None:
        """The trial continues with another configuration."""

    def flush(self) -> None:
        """Write what is buffered; called after each checkpoint."""

    def close(self) -> None:
        """The trial has ended."""


class _OfExperiment(Logger):
    """Stands for files that every experiment writes by itself."""

    def on_result(self, result: dict[str, Any]) -> None:
        pass


class CSVLogger(_OfExperiment):
    """``progress.csv``: every experiment writes it."""


class JsonLogger(_OfExperiment):
    """``result.json`` and ``params.json``: every experiment writes them."""


class TBXLogger(_OfExperiment):
    """Events for TensorBoard: every experiment writes them if tensorboardX is installed."""


class UnifiedLogger(Logger):
    """Several loggers as one.

    Args:
        config: The trial's configuration.
        logdir: The trial's directory.
        trial: The trial.
        loggers: Classes of loggers.
    """

    def __init__(
        self, config: dict[str, Any], logdir: str, trial: Any = None, loggers: Sequence[type[Logger]] | None = None
    ) -> None:
        self._classes = DEFAULT_LOGGERS if loggers is None else tuple(loggers)
        self._loggers: list[Logger] = []
        super().__init__(config, logdir, trial)

    def _init(self) -> None:
        self._loggers = [each(self.config, self.logdir, self.trial) for each in self._classes]

    def on_result(self, result: dict[str, Any]) -> None:
        for each in self._loggers:
            each.on_result(result)

    def update_config(self, config: dict[str, Any]) -> None:
        for each in self._loggers:
            each.update_config(config)

    def flush(self) -> None:
        for each in self._loggers:
            each.flush()

    def close(self) -> None:
        for each in self._loggers:
            each.close()


DEFAULT_LOGGERS: tuple[type[Logger], ...] = (JsonLogger, CSVLogger, TBXLogger)


class OldLoggers(LoggerCallback):
    """Makes loggers of the given classes for each trial, and passes on what happens to it.

    Args:
        classes: Classes that are made with ``(config, logdir, trial)``, such as those derived from ``Logger``.
    """

    def __init__(self, classes: Iterable[Any]) -> None:
        if isinstance(classes, type) or not isinstance(classes, Iterable):
            raise InvalidInputError(f"loggers must be a list of classes, got {classes!r}.")
        self._classes = list(classes)
        for each in self._classes:
            if not callable(each) or isinstance(each, Logger):
                raise InvalidTypeError(
                    f"loggers must be a list of classes derived from holdfast.logger.Logger, got {each!r}. Objects go "
                    "into callbacks=[...]."
                )
        self._live: dict[str, list[Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_classes": self._classes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._classes, self._live = state["_classes"], {}

    def log_trial_start(self, trial: TrialView) -> None:
        loggers = self._live.get(trial.trial_id)
        if loggers is None:
            self._make(trial)
            return
        for each in loggers:
            if getattr(each, "config", None) != trial.config:
                each.config = trial.config
                each.update_config(trial.config)

    def _make(self, trial: TrialView) -> list[Any]:
        logdir = trial.local_path
        os.makedirs(logdir, exist_ok=True)  # the trial's first attempt may not have begun yet
        made = [each(trial.config, logdir, trial) for each in self._classes]
        self._live[trial.trial_id] = made
        return made

    def log_trial_result(self, iteration: int, trial: TrialView, result: dict[str, Any]) -> None:
        for each in self._live.get(trial.trial_id) or self._make(trial):
            each.on_result(result)

    def log_trial_save(self, trial: TrialView) -> None:
        for each in self._live.get(trial.trial_id, ()):
            each.flush()

    def log_trial_end(self, trial: TrialView, failed: bool = False) -> None:
        self._close(self._live.pop(trial.trial_id, ()))

    def on_experiment_end(self, trials: Sequence[TrialView], **info: Any) -> None:
        for loggers in self._live.values():
            self._close(loggers)
        self._live.clear()

    @staticmethod
    def _close(loggers: Iterable[Any]) -> None:
        for each in loggers:
            with contextlib.ExitStack() as then:
                then.callback(each.close)
                each.flush()


def pretty_print(result: Mapping[str, Any], exclude: Iterable[str] = ()) -> str:
    """A result as indented text, without its config and what is None.

    Example:
        >>> print(pretty_print({"loss": 0.5, "eval": {"auc": 0.9}, "config": {}}))
        eval:
          auc: 0.9
        loss: 0.5
    """
    hidden = {"config", "hist_stats", *exclude}
    return "\n".join(_lines({key: value for key, value in result.items() if key not in hidden}, ""))


def _lines(values: Mapping[str, Any], indent: str) -> Iterable[str]:
    for key in sorted(values, key=str):
        value = values[key]
        if isinstance(value, Mapping) and value:
            yield f"{indent}{key}:"
            yield from _lines(value, indent + "  ")
        elif value is not None:
            yield f"{indent}{key}: {value}"
