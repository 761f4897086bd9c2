"""A runner that does what a trial's config says, for tests of engines.

``config["script"]`` is a list of steps, each a list of a word and its arguments:

    report METRICS     report, wait for the decision; a decision other than "go" ends the script as Stopped
    stage NAME TEXT    leave a directory NAME with a file that has this text, and report it as a sealed stage
    append FILE TEXT   append this text to a file in the trial's directory
    await_save         wait for SaveRequest, then report {"saved": True}
    print TEXT         print a line
    raise TEXT         end as Raised
    exit CODE          end the process without a word
    hang               do nothing, for ever

Owns: these words. Must never: depend on an engine; a fake engine may run it in a thread, or read scripts itself.
"""

from __future__ import annotations

import os
import time
from typing import Any

from holdfast.core.events import ErrorFacts
from holdfast.core.observations import Raised, Report, Returned, SealedStage, Stopped
from holdfast.trainable.worker_messages import Channel, Decision, Quit, Run, SaveRequest, Setup

SCRIPTED_RUNNER = "holdfast.testing.scripted:run_attempts"
STAGED = "staged.txt"
"""The file in a directory that the word ``stage`` leaves."""


def run_attempts(setup: Setup, channel: Channel) -> None:
    """Run scripts until told to quit."""
    while True:
        message = channel.receive()
        if isinstance(message, Quit):
            return
        if isinstance(message, Run):
            _Attempt(setup, message, channel).run()


class _Attempt:
    def __init__(self, setup: Setup, run: Run, channel: Channel) -> None:
        self._who = (run.n, run.attempt, setup.worker)
        self._steps: list[list[Any]] = run.config["script"]
        self._trial_dir = os.path.join(setup.root, run.trial_dir)
        self._channel = channel
        self._ordinal = 0
        self._save_soon = False

    def run(self) -> None:
        for word, *arguments in self._steps:
            if word == "raise":
                self._channel.send(Raised(*self._who, ErrorFacts("RuntimeError", arguments[0])))
                return
            goes_on = True
            if word == "report":
                goes_on = self._report(arguments[0])
            elif word == "stage":
                goes_on = self._report({}, self._stage(*arguments))
            if not goes_on:
                self._channel.send(Stopped(*self._who))
                return
            if word == "append":
                self._append(*arguments)
            elif word == "await_save":
                self._await_save()
            elif word == "print":
                print(*arguments)
            elif word == "exit":
                os._exit(arguments[0])
            elif word == "hang":
                time.sleep(1e6)
        self._channel.send(Returned(*self._who))

    def _append(self, name: str, text: str) -> None:
        os.makedirs(self._trial_dir, exist_ok=True)
        with open(os.path.join(self._trial_dir, name), "a") as file:
            file.write(text)

    def _stage(self, name: str, text: str) -> SealedStage:
        os.makedirs(os.path.join(self._trial_dir, name))
        with open(os.path.join(self._trial_dir, name, STAGED), "w") as file:
            file.write(text)
        return SealedStage(name, 1, len(text), False)

    def _report(self, metrics: dict[str, Any], sealed: SealedStage | None = None) -> bool:
        self._ordinal += 1
        self._channel.send(Report(*self._who, self._ordinal, 0.0, metrics, sealed))
        while True:
            message = self._channel.receive()
            if isinstance(message, Decision):
                return message.go == "go"
            self._save_soon |= isinstance(message, SaveRequest)

    def _await_save(self) -> None:
        while not self._save_soon:
            self._save_soon = isinstance(self._channel.receive(), SaveRequest)
        self._report({"saved": True})
