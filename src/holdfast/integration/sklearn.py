"""scikit-learn: save and load an estimator that learns in steps, with ``partial_fit`` or ``warm_start``.

Owns the file that it writes. Must never overrule the configuration: a parameter that changed since stays changed.
"""

from __future__ import annotations

import os
import pickle
from typing import Any

from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.integration import chance
from holdfast.integration.reporting import Saving, load_framework
from holdfast.trainable.api import report

_BaseEstimator: Any = load_framework("sklearn.base", "scikit-learn", "sklearn").BaseEstimator

__all__ = ["TrainingState"]

_PLAIN = (int, float, str, bytes, bool, type(None), tuple)


class TrainingState:
    """An estimator that learns in steps, and the random numbers of Python and NumPy.

    Args:
        estimator: Anything of scikit-learn, pipelines too. ``resume`` changes it in place.
        frequency: Save with every so many reports; 0 saves only when the driver is about to end.
        filename: The file in the checkpoint.

    Raises:
        InvalidTypeError: ``estimator`` is none.
        InvalidInputError: An argument is wrong.

    Example:
        >>> def train(config):
        ...     model = SGDClassifier(alpha=config["alpha"], random_state=0)
        ...     state = TrainingState(model)
        ...     for epoch in range(state.resume(), 20):
        ...         model.partial_fit(x, y, classes=[0, 1])
        ...         state.report({"accuracy": model.score(test_x, test_y)})
    """

    def __init__(self, estimator: Any, *, frequency: int = 1, filename: str = "estimator.pkl") -> None:
        if not isinstance(estimator, _BaseEstimator):
            raise InvalidTypeError(f"estimator={estimator!r}: expected an estimator of scikit-learn.")
        self._saving = Saving(filename, frequency, False)
        self._estimator = estimator
        self._given = {key: value for key, value in estimator.get_params().items() if isinstance(value, _PLAIN)}
        self.steps = 0
        """How many reports there were, those of earlier attempts included."""

    def resume(self) -> int:
        """Load the trial's checkpoint, if it has one, into the estimator.

        Parameters that are given otherwise than they were when the checkpoint was written, as population based
        training does, are set to the new values. Others are those of the checkpoint: a growing ``n_estimators`` stays.

        Returns:
            How many reports there were before: 0 for a trial that begins.

        Raises:
            InvalidInputError: The checkpoint was not saved by this class, or holds another kind of estimator.
        """
        with self._saving.resumed() as found:
            if found is None:
                return 0
            path, _ = found
            with open(path, "rb") as file:
                saved = pickle.load(file)
        if not isinstance(saved, dict) or not {"estimator", "given", "steps", "chance"} <= saved.keys():
            raise InvalidInputError(f"{path} was not written by TrainingState. It is unchanged.")
        former = saved["estimator"]
        if type(former) is not type(self._estimator):
            raise InvalidInputError(
                f"The checkpoint holds a {type(former).__name__}, and TrainingState was given a "
                f"{type(self._estimator).__name__}. The checkpoint is unchanged."
            )
        before = saved["given"]
        changed = {key: value for key, value in self._given.items() if key in before and before[key] != value}
        vars(self._estimator).clear()
        vars(self._estimator).update(vars(former))
        self._estimator.set_params(**changed)
        chance.restore(saved["chance"])
        self.steps = int(saved["steps"])
        return self.steps

    def report(self, metrics: dict[str, Any]) -> None:
        """Report, with a checkpoint if one is due.

        Durability:
            As with ``tune.report``: when this returns, the report and its checkpoint survive the death of every
            process.
        """
        step = self.steps + 1
        if self._saving.due(step):
            self._saving.report(metrics, lambda path: self._write(path, step), {"steps": step})
        else:
            report(metrics)
        self.steps = step

    def _write(self, path: str | os.PathLike[str], step: int) -> None:
        now = {"estimator": self._estimator, "given": self._given, "steps": step, "chance": chance.state()}
        with open(path, "wb") as file:
            pickle.dump(now, file, protocol=5)
