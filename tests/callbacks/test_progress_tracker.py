"""The running totals behind the display."""

from __future__ import annotations

import math
import random

from progress_world import World, boom

from holdfast.core import events as ev
from holdfast.core.state import Status
from holdfast.display import tracker as tracking
from holdfast.display.experiment_facts import NOT_STARTED, DisplayOptions
from holdfast.display.tracker import Leaderboard, ProgressTracker, failure_key, metric_value

OPTIONS = DisplayOptions()


def brute_best(world: World, mode: str) -> float | None:
    values = [metric_value(trial, "loss") for trial in world.state.trials]
    known = [value for value in values if value is not None]
    return (min if mode == "min" else max)(known) if known else None


def brute_errors(world: World) -> dict[tuple[str, str, str], int]:
    found: dict[tuple[str, str, str], int] = {}
    for trial in world.state.trials:
        if trial.status == Status.ERROR:
            assert trial.error is not None
            key = failure_key(trial.cause, trial.error)
            found[key] = found.get(key, 0) + 1
    return found


def brute_unstarted(world: World) -> int:
    return sum(trial.status == Status.TERMINATED and not trial.attempt for trial in world.state.trials)


def tracked_errors(tracker: ProgressTracker) -> dict[tuple[str, str, str], int]:
    return {
        failure_key(group.cause, ev.ErrorFacts(group.type, group.message, group.location)): group.errored
        for group in tracker.failures()
        if group.errored
    }


def random_step(world: World, rng: random.Random) -> None:
    state = world.state
    running, pending = list(state.running), list(state.pending)
    ended = [trial.n for trial in state.trials[-30:] if trial.final]
    choice = rng.random()
    world.at += rng.random()
    if choice < 0.15:
        world.create()
    elif choice < 0.3 and pending:
        world.start(pending[0])
    elif choice < 0.35 and ended:
        world.add(ev.TrialRequeued(world.at, rng.choice(ended), rng.choice(["resume", "restart"])))
    elif not running:
        world.launch()
    elif choice < 0.85:
        world.report(rng.choice(running), loss=rng.choice([rng.random(), math.nan, math.inf, "text", 1]))
    elif choice < 0.9:
        world.finish(rng.choice(running))
    elif choice < 0.95:
        world.fail(rng.choice(running), boom(line=rng.randrange(4)))
    else:
        world.stumble(rng.choice(running), boom(line=rng.randrange(4)))


def test_aggregates_equal_a_scan_over_all_trials_after_any_history() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        mode = rng.choice(["min", "max"])
        tracker = ProgressTracker()
        world = World(tracker.feed, mode=mode)
        for step in range(400):
            random_step(world, rng)
            if step % 17:
                continue
            view = tracker.view(world.state, world.facts, OPTIONS, world.at)
            best = brute_best(world, mode)
            assert (view.best.value if view.best else None) == best, seed
            assert tracked_errors(tracker) == brute_errors(world), seed
            counts, unstarted = view.counts, brute_unstarted(world)
            assert counts[NOT_STARTED] == unstarted
            assert counts[Status.TERMINATED] + unstarted == world.state.counts[Status.TERMINATED]
            assert view.total is None or sum(counts.values()) == view.total
            assert view.finished == sum(trial.final for trial in world.state.trials) - unstarted


def test_a_tracker_that_joins_late_catches_up_from_the_state() -> None:
    rng = random.Random(3)
    watcher = ProgressTracker()
    world = World(watcher.feed)
    for _ in range(500):
        random_step(world, rng)
    late = ProgressTracker()
    seen = watcher.view(world.state, world.facts, OPTIONS, world.at)
    view = late.view(world.state, world.facts, OPTIONS, world.at)
    assert seen.best is not None
    assert view.best is not None
    assert (view.best.value, view.best.row.name) == (seen.best.value, seen.best.row.name)
    assert tracked_errors(late) == tracked_errors(watcher)
    assert view.rows == seen.rows


def test_best_follows_the_last_report_of_each_trial() -> None:
    tracker = ProgressTracker()
    world = World(tracker.feed)
    first, second = world.launch(), world.launch()
    world.report(first, loss=0.1)
    world.report(second, loss=0.5)
    assert tracker.view(world.state, world.facts, OPTIONS, world.at).best.row.name == "train_ab_00000"  # type: ignore[union-attr]
    world.report(first, loss=0.9)
    best = tracker.view(world.state, world.facts, OPTIONS, world.at).best
    assert best is not None
    assert (best.value, best.row.name) == (0.5, "train_ab_00001")


def test_a_report_that_a_retry_supersedes_is_no_longer_the_best() -> None:
    tracker = ProgressTracker()
    world = World(tracker.feed)
    n = world.launch()
    world.report(n, loss=0.1)
    world.stumble(n)
    world.start(n)
    assert tracker.view(world.state, world.facts, OPTIONS, world.at).best is None


def test_best_is_absent_without_a_metric_or_a_mode() -> None:
    for missing in ({"metric": None}, {"mode": None}):
        world = World(**missing)
        world.report(world.launch(), loss=0.1)
        assert ProgressTracker().view(world.state, world.facts, OPTIONS, world.at).best is None


def test_leaderboard_keeps_few_outdated_entries() -> None:
    world = World()
    board = Leaderboard("loss", "min")
    trials = [world.state.trials[world.launch()] for _ in range(3)]
    for i in range(5000):
        world.report(i % 3, loss=float(i))
        board.put(trials[i % 3])
    assert len(board._heap) <= 2 * 3 + 64 + 1
    assert board.top(2) == [(4997.0, 2), (4998.0, 0)]
    assert board.top(9) == [(4997.0, 2), (4998.0, 0), (4999.0, 1)]


def test_leaderboard_shows_a_value_that_came_back_only_once() -> None:
    world = World()
    board = Leaderboard("loss", "min")
    n = world.launch()
    for loss in (0.1, 0.2, 0.1):
        world.report(n, loss=loss)
        board.put(world.state.trials[n])
    assert board.top(5) == [(0.1, n)]


def test_equal_errors_with_different_messages_are_one_kind() -> None:
    tracker = ProgressTracker()
    world = World(tracker.feed)
    for i in range(50):
        world.fail(world.launch(), boom(f"bad value {i}"))
    world.fail(world.launch(), boom(line=99))
    kinds = tracker.failures()
    assert [(kind.location, kind.errored) for kind in kinds] == [
        ("/home/me/train.py:17", 50),
        ("/home/me/train.py:99", 1),
    ]


def test_kinds_of_failures_are_limited() -> None:
    tracker = ProgressTracker()
    world = World(tracker.feed)
    for i in range(tracking.MAX_KINDS + 50):
        world.fail(world.launch(), ev.ErrorFacts("E", f"message {i}"))
    kinds = tracker.failures()
    assert len(kinds) == tracking.MAX_KINDS + 1
    assert kinds[0].message == "other errors"
    assert kinds[0].errored == 50


def test_a_failed_trial_that_is_started_again_is_not_counted_as_failed() -> None:
    tracker = ProgressTracker()
    world = World(tracker.feed)
    n = world.launch()
    world.fail(n)
    world.add(ev.TrialRequeued(world.at, n, "resume"))
    assert tracker.failures() == []


def test_events_that_arrive_after_the_state_was_seen_count_once() -> None:
    """The loop applies a whole batch before it is journaled and fed, so a view may come first."""
    late: list[ev.AnyEvent] = []
    tracker = ProgressTracker()
    world = World(late.append)
    world.report(world.launch(), loss=0.5)
    world.fail(0)
    for _ in range(2):
        view = tracker.view(world.state, world.facts, OPTIONS, world.at)
        assert [group.errored for group in view.failures] == [1]
        assert [row.name for row in view.rows] == ["train_ab_00000"]
        for event in late:
            tracker.feed(event)


def test_rows_are_running_trials_then_the_latest_ends() -> None:
    tracker = ProgressTracker()
    world = World(tracker.feed)
    for _ in range(3):
        world.finish(world.launch())
    running = world.launch()
    names = [row.name for row in tracker.view(world.state, world.facts, OPTIONS, world.at).rows]
    assert names == [f"train_ab_0000{n}" for n in (running, 2, 1, 0)]


def test_rows_leave_room_for_ended_trials_when_many_run() -> None:
    tracker = ProgressTracker()
    world = World(tracker.feed)
    for _ in range(10):
        world.finish(world.launch())
    for _ in range(50):
        world.launch()
    view = tracker.view(world.state, world.facts, OPTIONS, world.at)
    statuses = [row.status for row in view.rows]
    assert statuses == [Status.RUNNING] * 15 + [Status.TERMINATED] * 5
    assert view.hidden == 35


def test_rows_are_the_best_trials_on_request() -> None:
    tracker = ProgressTracker()
    world = World(tracker.feed, mode="max")
    for i in (3, 9, 1, 7):
        world.report(world.launch(), loss=i)
    options = DisplayOptions(sort_by_metric=True, max_progress_rows=2)
    rows = tracker.view(world.state, world.facts, options, world.at).rows
    assert [row.metrics["loss"] for row in rows] == [9, 7]


def test_speed_and_time_left_come_from_the_last_minute() -> None:
    tracker = ProgressTracker()
    world = World(tracker.feed)
    for _ in range(40):
        tracker.view(world.state, world.facts, OPTIONS, world.at)
        world.at += 2.0
        n = world.launch()
        world.report(n, loss=1.0)
        world.finish(n)
    view = tracker.view(world.state, world.facts, OPTIONS, world.at)
    assert abs(view.trials_per_s - 0.5) < 0.05
    assert abs(view.reports_per_s - 0.5) < 0.05
    assert view.eta_s is not None
    assert abs(view.eta_s - 60 / view.trials_per_s) < 1e-6


def test_speed_is_known_to_a_display_that_looks_seldom() -> None:
    tracker = ProgressTracker()
    world = World(tracker.feed)
    n = world.launch()
    for _ in range(3):
        tracker.view(world.state, world.facts, OPTIONS, world.at)
        for _ in range(200):
            world.at += 1.0
            world.report(n, loss=1.0)
    assert tracker.view(world.state, world.facts, OPTIONS, world.at).reports_per_s == 1.0


def test_no_time_left_is_guessed_while_the_driver_ends() -> None:
    tracker = ProgressTracker()
    world = World(tracker.feed)
    tracker.view(world.state, world.facts, OPTIONS, world.at)
    world.at += 10
    world.finish(world.launch())
    assert tracker.view(world.state, world.facts, OPTIONS, world.at).eta_s == 990.0
    world.facts.memory.draining = "SIGINT"
    assert tracker.view(world.state, world.facts, OPTIONS, world.at).eta_s is None


def test_trials_of_earlier_drivers_do_not_count_as_speed() -> None:
    tracker = ProgressTracker()
    world = World(tracker.feed)
    for _ in range(50):
        world.finish(world.launch())
    tracker.view(world.state, world.facts, OPTIONS, world.at)
    world.at += 10
    view = tracker.view(world.state, world.facts, OPTIONS, world.at)
    assert (view.trials_per_s, view.eta_s) == (0.0, None)


def test_total_is_the_number_of_trials_once_the_search_has_ended() -> None:
    world = World(total=None)
    world.launch()
    tracker = ProgressTracker()
    assert tracker.view(world.state, world.facts, OPTIONS, world.at).total is None
    world.add(ev.SearchEnded(world.at, "no more"))
    assert tracker.view(world.state, world.facts, OPTIONS, world.at).total == 1


def test_automatic_counters_can_be_the_metric() -> None:
    tracker = ProgressTracker()
    world = World(tracker.feed, metric="training_iteration", mode="max")
    n = world.launch()
    world.report(n, a=1)
    world.report(n, a=1)
    best = tracker.view(world.state, world.facts, OPTIONS, world.at).best
    assert best is not None
    assert best.value == 2.0


def shown_counts(world: World, tracker: ProgressTracker) -> dict[str, int]:
    view = tracker.view(world.state, world.facts, OPTIONS, world.at)
    return {status: count for status, count in view.counts.items() if count}


def test_trials_that_ended_before_they_began_are_not_called_done() -> None:
    tracker = ProgressTracker()
    world = World(tracker.feed, total=5)
    world.finish(world.launch())
    waiting = [world.create(), world.create()]
    assert shown_counts(world, tracker) == {Status.TERMINATED: 1, Status.PENDING: 4}
    world.add(ev.SearchEnded(world.at, "stop: time_budget_s=1"))
    for n in waiting:
        world.finish(n)
    assert shown_counts(world, tracker) == {Status.TERMINATED: 1, NOT_STARTED: 4}
    assert shown_counts(world, ProgressTracker()) == {Status.TERMINATED: 1, NOT_STARTED: 4}


def test_a_searcher_that_ran_out_makes_the_total_smaller() -> None:
    world = World(total=5)
    world.finish(world.launch())
    world.add(ev.SearchEnded(world.at, "exhausted"))
    view = ProgressTracker().view(world.state, world.facts, OPTIONS, world.at)
    assert (view.total, view.counts[NOT_STARTED]) == (1, 0)
