"""Files about failures, as the loop feeds them: ``error.txt`` and ``error.pkl`` of trials that have failed.

Owns the pickled exceptions on their way from a worker to these files, and the first of those that ended a trial. Must
never put one into the journal, or load it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial

from holdfast.callbacks.loggers import ErrorFiles
from holdfast.controller.history_reader import Past
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.views.trials import TrialList


class ErrorFileEdge:
    """Writes down how trials fail.

    Args:
        files: What writes them.
        trials: Whose they are.
        history: How trials have failed before.

    Attributes:
        failure: The first trial that ended in ERROR and its pickled exception, for ``fail_fast="raise"``.
    """

    def __init__(self, files: ErrorFiles, trials: TrialList, history: Past) -> None:
        self._files = files
        self._trials = trials
        self._history = history
        self._pickled: dict[int, bytes] = {}
        self.failure: tuple[int, bytes] | None = None

    def raised(self, observation: ob.Raised) -> None:
        """Keep the exception until its failure is fact."""
        if observation.pickled:
            self._pickled[observation.n] = observation.pickled

    def attempt_failed(self, event: ev.AttemptFailed) -> None:
        """An attempt has failed, and the trial is tried again."""
        self._write(event, self._pickled.pop(event.n, b""))

    def trial_errored(self, event: ev.TrialErrored) -> None:
        """A trial has ended with a failure."""
        pickled = self._pickled.pop(event.n, b"")
        self.failure = self.failure or (event.n, pickled)
        self._write(event, pickled)

    def _write(self, event: ev.AttemptFailed | ev.TrialErrored, pickled: bytes) -> None:
        self._files.failed(self._trials[event.n], event.at, event.error, pickled)

    def repair(self, numbers: Iterable[int]) -> None:
        """Give files the failures that they lack; the journal is read once for all, if any lacks something."""
        trials = map(self._trials.__getitem__, numbers)
        failed = [trial for trial in trials if trial.num_failures]
        failures = cache(lambda: self._history.failures_of({trial.record.n for trial in failed}))
        for trial in failed:
            self._files.sync(trial, partial(lambda n: failures()[n], trial.record.n))
