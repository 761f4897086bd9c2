"""What the user reads about single events of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from holdfast.controller.display_edge import DisplayEdge
from holdfast.core import events as ev
from holdfast.core.state import State, Status, Trial
from holdfast.display.closing import closing_lines
from holdfast.display.display import Display, ExperimentFacts
from holdfast.display.experiment_facts import DisplayOptions, RunSummary
from holdfast.display.tracker import ProgressTracker


class Noting(Display):
    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def one_trial(**facts: Any) -> State:
    state = State()
    state.trials.append(Trial(0, "t0", {}, "", (), None, None, "", "", 0.0, **facts))
    state.counts[state.trials[0].status] += 1
    return state


def test_storage_trouble_is_called_what_it_is() -> None:
    display = Noting()
    facts = ExperimentFacts(name="exp", root="/exp")
    edge = DisplayEdge(display, facts, one_trial(), SimpleNamespace(now=lambda: 0.0), SimpleNamespace())  # type: ignore[arg-type]
    edge.interrupted(ev.AttemptInterrupted(0.0, 0, 1, ev.Cause.STORAGE, "StorageError: read: Input/output error [EIO]"))
    (note,) = display.notes
    assert "no space left" not in note
    assert "storage trouble (StorageError: read: Input/output error [EIO])" in note


def test_only_a_new_start_is_offered_if_checkpoints_are_damaged() -> None:
    facts = ExperimentFacts(name="exp", root="/exp", trainable="train")
    for cause, hint in ((ev.Cause.DAMAGED, "restart_errored=True"), (ev.Cause.EXCEPTION, "resume_errored=True")):
        state = one_trial(status=Status.ERROR, cause=cause, error=ev.ErrorFacts("E", "message"))
        view = ProgressTracker().view(state, facts, DisplayOptions(), 1.0)
        assert hint in closing_lines(view, state, facts, RunSummary(at=1.0))[-1]
