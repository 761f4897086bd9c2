"""The part of the audit that is about users: each request is answered once, by the driver that it was made for."""

from __future__ import annotations

from holdfast.core import events as ev
from holdfast.core.events import Action
from simulator.audit_checkpoints import CheckpointAudit
from simulator.checkpoint_store import CheckpointStore
from simulator.ledger import Ledger, Violation
from simulator.scenario import Scenario
from simulator.shadow_state import Account

BY_USER = "stopped by the user"
FINAL = ("TERMINATED", "ERROR")


class RequestAudit(CheckpointAudit):
    """Follows what users asked for; ``ledger.asked`` knows that."""

    def __init__(self, scenario: Scenario, ledger: Ledger, store: CheckpointStore) -> None:
        super().__init__(scenario, ledger, store)
        self.samples = scenario.samples
        self.stopping = ""
        self.answered: set[str] = set()
        self.notes: dict[int, list[str]] = {}
        self.tags: dict[int, list[str]] = {}
        self._epoch = 0

    def user_requested(self, event: ev.UserRequested) -> None:
        self._answer(event.id, event.refused)
        asked = self.ledger.asked[event.id]
        if event.refused:
            self._check_refusal(event)
            return
        if (event.action, event.text, event.tags) != (asked.action, asked.text, asked.tags):
            raise Violation("requests", f"{event} is not what was asked for: {asked}")
        if (event.n >= 0) != bool(asked.trial):
            raise Violation("requests", f"{event} is about another than {asked}")
        match event.action:
            case Action.STOP if event.n >= 0:
                self._stop(self.trials[event.n], event)
            case Action.NOTE:
                self.notes.setdefault(event.n, []).append(event.text)
            case Action.TAG:
                known = self.tags.setdefault(event.n, [])
                known += [tag for tag in event.tags if tag not in known]
            case Action.UNTAG:
                self.tags[event.n] = [tag for tag in self.tags.get(event.n, []) if tag not in event.tags]

    def settings_changed(self, event: ev.SettingsChanged) -> None:
        self._answer(event.request, "")
        asked = self.ledger.asked[event.request]
        if asked.action != Action.SAMPLES or not self.samples < asked.num_samples == event.num_samples:
            raise Violation("requests", f"{event} of {self.samples} samples is not what was asked for: {asked}")
        if self.stopping:
            raise Violation("requests", f"{event}, and the experiment was stopped: {self.stopping}")
        self.samples = event.num_samples or 0

    def _answer(self, request_id: str, refused: str) -> None:
        asked = self.ledger.asked.get(request_id)
        if asked is None:
            raise Violation("requests", f"nobody has asked for {request_id}")
        if request_id in self.answered:
            raise Violation("requests", f"{request_id} is answered twice: {asked}")
        if not refused and asked.epoch != self._epoch:
            raise Violation("requests", f"driver {self._epoch} follows {asked}, which was made for another")
        self.answered.add(request_id)

    def _check_refusal(self, event: ev.UserRequested) -> None:
        """What can be done is not refused."""
        asked = self.ledger.asked[event.id]
        unread = not event.action or asked.epoch != self._epoch or (event.n < 0 and asked.trial)
        if unread or (asked.action == Action.STOP and not asked.trial) or asked.action == Action.SAMPLES:
            return
        trial = self.trials[event.n] if event.n >= 0 else None
        if asked.action == Action.STOP and trial is not None and (trial.status in FINAL or trial.user_stop):
            return
        raise Violation("requests", f"{event}, and nothing speaks against {asked}")

    def _stop(self, trial: Account, event: ev.UserRequested) -> None:
        if trial.status in FINAL or trial.user_stop:
            raise Violation("requests", f"{event} of a trial that is {trial.status}, stopped: {trial.user_stop}")
        trial.user_stop = True
        if trial.status == "RUNNING":
            trial.verdict, trial.why = "stop", BY_USER

    def check_answers(self) -> None:
        """At the end: what was acknowledged is in the journal, whatever power cuts there were."""
        lost = self.ledger.acknowledged - self.answered
        if lost:
            raise Violation("requests", f"{lost} were acknowledged and are not in the journal")
        waiting = [trial.n for trial in self.trials if trial.user_stop]
        if waiting:
            raise Violation("requests", f"trials {waiting} were stopped by a user and never ended")
