"""Who is told of which event, in which order, and with which result."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from callback_world import RETENTION, World

from holdfast.callbacks import Callback, CallbackList, JsonLoggerCallback
from holdfast.callbacks.file_writer import FileWriter
from holdfast.callbacks.loggers import ErrorFiles, FileLogger
from holdfast.controller.advice import Advisor
from holdfast.controller.callback_edge import CallbackEdge
from holdfast.controller.display_edge import DisplayEdge
from holdfast.controller.history_reader import HistoryReader
from holdfast.controller.notify import Audience, Notifier
from holdfast.controller.result_file_edge import ErrorFileEdge, ResultFileEdge
from holdfast.controller.run_notices import RunNotices
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.display.base import SilentDisplay
from holdfast.display.display import ExperimentFacts
from holdfast.storage.layout import Root
from holdfast.views.trials import TrialList

ERROR = ev.ErrorFacts("ValueError", "bad lr", "train.py:3", "Traceback ...\nValueError: bad lr\n")


class Recorder(Callback):
    """Writes down every hook, with the loss of its result."""

    def __init__(self, told: list[Any]) -> None:
        self.told = told
        self.results: list[dict[str, Any]] = []

    def setup(self, **info: Any) -> None:
        self.told.append("setup")

    def on_step_begin(self, iteration: int, **info: Any) -> None:
        self.told.append(f"begin {iteration}")

    def on_step_end(self, iteration: int, **info: Any) -> None:
        self.told.append(f"end {iteration}")

    def on_trial_start(self, trial: Any, **info: Any) -> None:
        self.told.append(f"start {trial.n}")

    def on_trial_restore(self, trial: Any, **info: Any) -> None:
        self.told.append(f"restore {trial.n}")

    def on_trial_result(self, trial: Any, result: dict[str, Any], **info: Any) -> None:
        self.told.append(f"result {trial.n}: {result['loss']}")
        self.results.append(result)

    def on_checkpoint(self, trial: Any, checkpoint: Any, **info: Any) -> None:
        self.told.append(f"checkpoint {trial.n}")

    def on_trial_save(self, trial: Any, **info: Any) -> None:
        self.told.append(f"save {trial.n}")

    def on_trial_recover(self, trial: Any, **info: Any) -> None:
        self.told.append(f"recover {trial.n}")

    def on_trial_error(self, trial: Any, **info: Any) -> None:
        self.told.append(f"error {trial.n}")

    def on_trial_complete(self, trial: Any, **info: Any) -> None:
        self.told.append(f"complete {trial.n}")

    def on_experiment_end(self, trials: Any, **info: Any) -> None:
        self.told.append(f"over {len(trials)}")


class Shown(SilentDisplay):
    """Keeps the notes, and when it was updated."""

    def __init__(self, told: list[Any]) -> None:
        super().__init__()
        self.told = told
        self.notes: list[str] = []

    def feed(self, event: ev.AnyEvent) -> None:
        self.told.append(f"feed {type(event).__name__}")

    def note(self, text: str) -> None:
        self.notes.append(text)

    def update(self, *args: Any) -> None:
        self.told.append(f"update, lag {args[-1]:g} s")


class Outside:
    """A notifier with everything it tells, on a world of events."""

    def __init__(self, root: Path, *callbacks: Callback) -> None:
        self.world = World(root)
        self.told: list[Any] = []
        self.recorder = Recorder(self.told)
        self.display = Shown(self.told)
        self.journal = SimpleNamespace(synced_seq=0, written_seq=0)
        self.rewound: list[int] = []
        world, place = self.world, Root(root)
        writer, trials = FileWriter(), TrialList(world.state, world.info, world.builder)
        called = CallbackList(callbacks or [self.recorder], writer)
        loggers = [each for each in called.callbacks if isinstance(each, FileLogger)]
        history = HistoryReader(place.path, RETENTION, world.builder)
        facts = ExperimentFacts(name="exp", root=str(root), trainable="train")
        clock: Any = SimpleNamespace(now=lambda: world.at)
        journal: Any = self.journal
        stop: Any = SimpleNamespace(rewind=lambda trial: self.rewound.append(trial.n))
        self.audience = Audience(
            CallbackEdge(called, world.state, world.info, world.builder, trials),
            ResultFileEdge(writer, loggers, None, history, trials, place, ()),
            ErrorFileEdge(ErrorFiles(writer), trials, history),
            DisplayEdge(self.display, facts, world.state, clock, journal),
            Advisor(world.state, world.info, (), self.display.note),
        )
        self.notifier = Notifier(world.state, stop, self.audience)
        self.notices = RunNotices(world.state, place, self.audience)

    def watched(self, act: Any, *args: Any, **more: Any) -> list[ev.AnyEvent]:
        """Let the world do something, and show the notifier each event of it when it has been applied."""
        before = len(self.world.events)
        act(*args, **more)
        events = self.world.events[before:]
        for event in events:
            self.notifier.watch(event)
        return events

    def turn(self, *acts: Any) -> None:
        """One turn of the loop: everything is applied before anything is told."""
        self.notifier.before_turn()
        events = [event for act in acts for event in self.watched(act)]
        self.notifier.after_turn(events)

    def hooks(self) -> list[str]:
        """What callbacks were told, and nothing of steps and of the display."""
        return [each for each in self.told if not each.startswith(("feed", "update", "begin", "end"))]


@pytest.fixture
def outside(tmp_path: Path) -> Any:
    made = Outside(tmp_path)
    made.world.create()
    made.world.create()
    yield made
    made.notices.close()


def test_each_report_of_a_turn_is_told_with_the_result_of_its_own_moment(outside: Outside) -> None:
    world = outside.world
    outside.turn(
        lambda: world.start(0),
        lambda: world.start(1),
        lambda: world.report(0, loss=3.0),
        lambda: world.report(1, loss=7.0),
        lambda: world.report(0, loss=2.0),
        lambda: world.end(0),
    )
    assert outside.hooks() == [
        "start 0",
        "start 1",
        "result 0: 3.0",
        "result 1: 7.0",
        "result 0: 2.0",
        "complete 0",
    ]
    results = outside.recorder.results
    assert [result["training_iteration"] for result in results] == [1, 1, 2]
    assert [result["done"] for result in results] == [False, False, False]  # as it was then, not as it is now


def test_a_report_whose_turn_was_never_told_does_not_shift_later_results(outside: Outside) -> None:
    """A policy raised in the middle of a turn: what was decided before is fact, but nobody is told of it."""
    world = outside.world
    outside.turn(lambda: world.start(0))
    outside.notifier.before_turn()
    outside.watched(lambda: world.report(0, loss=9.0))
    outside.turn(lambda: world.report(0, loss=1.0))
    assert [result["loss"] for result in outside.recorder.results] == [1.0]


def test_equal_reports_have_results_of_their_own(outside: Outside) -> None:
    world = outside.world

    def report_at_the_same_moment() -> None:
        world.at = at
        world.report(0, loss=1.0)

    outside.turn(lambda: world.start(0))
    at = world.at
    outside.turn(report_at_the_same_moment, report_at_the_same_moment)
    assert world.events[-1] == world.events[-2]
    first, second = outside.recorder.results
    assert (first["training_iteration"], second["training_iteration"]) == (1, 2)


def test_a_checkpoint_is_shown_in_the_result_it_came_with_and_in_no_other(outside: Outside) -> None:
    world = outside.world
    outside.turn(
        lambda: world.start(0),
        lambda: world.start(1),
        lambda: world.report(0, loss=1.0),
        lambda: world.report(1, loss=2.0),
        lambda: world.save(1),
    )
    assert [result["checkpoint_dir_name"] for result in outside.recorder.results] == [None, "checkpoint_000000"]
    outside.turn(lambda: world.save(1))
    assert outside.hooks()[-2:] == ["checkpoint 1", "save 1"]


def test_the_order_of_a_turn_is_step_events_ends_step_display(outside: Outside) -> None:
    world = outside.world
    outside.turn(lambda: world.start(0))
    outside.told.clear()
    outside.turn(lambda: world.report(0, loss=1.0), lambda: world.end(0), lambda: world.start(1))
    assert outside.told == [
        "begin 1",
        "feed Reported",
        "result 0: 1.0",
        "feed TrialTerminated",
        "feed TrialStarted",
        "start 1",
        "complete 0",
        "end 1",
        "update, lag 0 s",
    ]


def test_an_end_is_told_when_the_last_checkpoint_is_committed(outside: Outside) -> None:
    world = outside.world
    outside.turn(lambda: world.start(0), lambda: world.report(0, loss=1.0))
    outside.turn(lambda: world.add(ev.CheckpointStaged, 0, 1, 0, ".sealed-0", 10, 1), lambda: world.end(0))
    assert "complete 0" not in outside.told
    outside.turn(lambda: world.add(ev.CheckpointCommitted, 0, 0, "digest", 10))
    assert outside.hooks()[-3:] == ["checkpoint 0", "save 0", "complete 0"]


def test_a_trial_that_starts_from_a_checkpoint_is_told_as_started_and_restored(outside: Outside) -> None:
    world = outside.world
    outside.turn(lambda: world.start(0), lambda: world.report(0, loss=1.0), lambda: world.save(0), world.cut)
    outside.told.clear()
    outside.turn(lambda: world.start(0, 0))
    assert outside.hooks() == ["start 0", "restore 0"]
    assert outside.rewound == [0, 0]


def test_failures_are_told_and_written_down_with_their_exceptions(outside: Outside) -> None:
    world = outside.world
    outside.turn(lambda: world.start(0))
    outside.notifier.see([ob.Raised(0, 1, 7, ERROR, pickled=b"first"), ob.Raised(1, 1, 7, ERROR)])
    outside.turn(lambda: world.add(ev.AttemptFailed, 0, 1, "exception", ERROR))
    assert outside.notices.failure is None
    outside.turn(lambda: world.start(0))
    outside.notifier.see([ob.Raised(0, 2, 7, ERROR, pickled=b"second")])
    outside.turn(lambda: world.add(ev.TrialErrored, 0, 2, "exception", ERROR))
    assert outside.hooks() == ["start 0", "recover 0", "start 0", "error 0"]
    assert outside.notices.failure == (0, b"second")
    assert outside.audience.files.flush()
    folder = Path(world.trials[0].path)
    assert (folder / "error.pkl").read_bytes() == b"second"
    assert (folder / "error.txt").read_text().count("Failure # ") == 2


def test_an_exception_at_the_end_of_a_trial_becomes_a_complaint(tmp_path: Path) -> None:
    class Picky(Callback):
        def on_trial_complete(self, **info: Any) -> None:
            raise KeyError("loss")

    outside = Outside(tmp_path, Picky())
    outside.world.create()
    outside.turn(lambda: outside.world.start(0), lambda: outside.world.end(0))
    (complaint,) = outside.notifier.take_complaints()
    assert isinstance(complaint, ob.CallbackRaised)
    assert (complaint.n, complaint.error.type) == (0, "KeyError")
    assert outside.notifier.take_complaints() == []
    outside.notices.close()


def test_an_exception_at_a_result_ends_the_run(tmp_path: Path) -> None:
    class Picky(Callback):
        def on_trial_result(self, **info: Any) -> None:
            raise KeyError("loss")

    outside = Outside(tmp_path, Picky())
    outside.world.create()
    outside.world.start(0)
    with pytest.raises(KeyError):
        outside.turn(lambda: outside.world.report(0, loss=1.0))
    outside.notices.close()


def test_a_callback_that_asks_for_a_checkpoint_is_heard_once(tmp_path: Path) -> None:
    class Asking(Callback):
        def on_trial_result(self, result: dict[str, Any], **info: Any) -> None:
            result["should_checkpoint"] = True

    outside = Outside(tmp_path, Asking())
    outside.world.create()
    outside.turn(lambda: outside.world.start(0), lambda: outside.world.report(0, loss=1.0))
    assert [outside.notifier.wants_save(0), outside.notifier.wants_save(0)] == [True, False]
    outside.notices.close()


def test_answers_wait_for_others_than_our_own_loggers(outside: Outside, tmp_path: Path) -> None:
    own = Outside(tmp_path, JsonLoggerCallback())
    assert (outside.notifier.answers_wait, own.notifier.answers_wait) == (True, False)
    own.notices.close()


def test_the_end_of_an_experiment_is_told_once(outside: Outside) -> None:
    outside.notices.last_words()
    outside.notices.failed(RuntimeError("storage"))
    assert outside.told.count("over 2") == 1


def test_a_hint_is_shown_once_however_many_trials_give_it(outside: Outside) -> None:
    outside.notifier.see([ob.Hint(0, 1, 7, "set the seed"), ob.Hint(1, 1, 7, "set the seed")])
    assert outside.display.notes == ["set the seed"]


def test_storage_trouble_is_shown_again_once_it_was_over(outside: Outside) -> None:
    for text in ("full", "full", "", "full"):
        outside.notifier.trouble(text)
    assert outside.display.notes == ["full", "full"]


def test_trials_that_wait_for_a_slow_store_are_noted_once_a_minute(outside: Outside) -> None:
    world = outside.world
    outside.turn(lambda: world.add(ev.BacklogFilled, 1, 10, 5), lambda: world.add(ev.BacklogFilled, 1, 10, 5))
    assert len(outside.display.notes) == 1
    world.at += 60.0
    outside.turn(lambda: world.add(ev.BacklogFilled, 1, 10, 5))
    assert len(outside.display.notes) == 2


def test_a_note_of_the_core_names_its_trial(outside: Outside) -> None:
    world = outside.world
    outside.turn(lambda: world.add(ev.Noted, 1, "it is slow"), lambda: world.add(ev.Noted, -1, "all are slow"))
    assert outside.display.notes == ["train_abcde_00001: it is slow", "all are slow"]


def test_the_lag_is_the_age_of_the_oldest_record_that_is_not_durable(outside: Outside) -> None:
    outside.journal.written_seq = 5
    outside.turn()
    outside.world.at += 3.0
    outside.turn()
    outside.journal.synced_seq = 5
    outside.turn()
    assert [each for each in outside.told if each.startswith("update")] == [
        "update, lag 0 s",
        "update, lag 3 s",
        "update, lag 0 s",
    ]
