"""The base of the trackers' callbacks: starts a process that logs, waits for it at the end, and says what is missing.

Owns the life of that process in a run. Must never import a tracker's library into the driver, hold the loop up, or end
a run because of a tracker.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from holdfast.callbacks.journal_follower import JournalFollower
from holdfast.display.words import plural
from holdfast.errors import InvalidInputError
from holdfast.integration.trackers.process import TrackerProcess
from holdfast.integration.trackers.runs import TrackerTarget
from holdfast.views.trials import ExperimentInfo, shown_root

WAIT_S = 60.0
"""How long ``fit()`` waits at its end for what is not logged yet."""

HURRIED_S = 5.0
"""And if somebody wants the driver to end."""


class TrackerCallback(JournalFollower):
    """Shows an experiment in a tracker: one run for each trial.

    A process of its own reads the journal and logs the surviving rows, each once and with an explicit step, whatever
    happens to driver, trial or tracker. See ``docs/guides/trackers.md``.

    Args:
        upload_timeout: Seconds that ``fit()`` waits at its end for rows that are not logged yet; what is missing then
            is said, with the command that adds it.
    """

    label: ClassVar[str]
    """What ``holdfast export --to`` calls the tracker."""

    _process: TrackerProcess | None = None
    _info: ExperimentInfo | None = None

    def __init__(self, upload_timeout: float = WAIT_S) -> None:
        number = isinstance(upload_timeout, int | float) and not isinstance(upload_timeout, bool)
        if not number or not 0 <= upload_timeout < 1e9:
            raise InvalidInputError(
                f"{type(self).__name__}(upload_timeout={upload_timeout!r}): must be a number of seconds, 0 or more."
            )
        self.upload_timeout = float(upload_timeout)

    def __getstate__(self) -> dict[str, Any]:
        """Settings are pickled with their callbacks, perhaps after a run: nothing of that run may come along."""
        return {name: value for name, value in vars(self).items() if name not in ("_process", "_info")}

    # --- what a tracker defines

    def check(self) -> None:
        """Refuse, before anything starts, what cannot work."""
        raise NotImplementedError

    def target(self, info: ExperimentInfo) -> TrackerTarget:
        """The tracker for an experiment."""
        raise NotImplementedError

    def command_arguments(self) -> Mapping[str, Any]:
        """Arguments that an export needs to find the same runs; no secrets."""
        return {}

    # --- the run

    def setup(self, *args: Any, **info: Any) -> None:
        """Check again: the experiment may be restored elsewhere, where something is missing."""
        self.check()

    def follow(self, info: ExperimentInfo, warn: Callable[[str], None]) -> None:
        self._info = info
        self._process = TrackerProcess(self.target(info), info, warn)

    def complete(self) -> None:
        if self._process is not None:
            self._process.ask_to_finish()

    def leave(self, is_hurried: Callable[[], bool]) -> str:
        process, self._process = self._process, None
        if process is None:
            return ""
        if process.wait(self.upload_timeout, is_hurried, HURRIED_S):
            return ""
        assert self._info is not None
        progress = process.progress
        what = "not everything was logged"
        if progress.rows:
            what = f"{plural(progress.rows, 'row')} of {plural(progress.runs, 'trial')} not logged"
        why = progress.trouble[:300] or "the tracker has not answered"
        return f"{self.label}: {what} ({why}); the journal has everything. To log it: {self.export_command(self._info)}"

    def abandon(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def export_command(self, info: ExperimentInfo) -> str:
        """The command that logs what is missing."""
        words = ["holdfast", "export", shown_root(info), "--to", self.label]
        for name, value in self.command_arguments().items():
            if value is not None:
                words += ["--set", f"{name}={value}"]
        return shlex.join(words)
