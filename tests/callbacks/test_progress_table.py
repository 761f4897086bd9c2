"""The table of trials: which columns stand where, and what tells trials apart."""

from __future__ import annotations

import random

from progress_world import World

from holdfast.core import events as ev
from holdfast.core.state import Status
from holdfast.display.experiment_facts import DisplayOptions, ProgressView, TableRow
from holdfast.display.table import SPARK_WIDTH, TableMaker, sparkline
from holdfast.display.tracker import BEST_ROWS, TREND_POINTS, ObjectiveCurve, ProgressTracker
from holdfast.display.words import ended_words, in_space_order, params_text, resources_text, short_names, value_text
from holdfast.space.exact import pack


def row(n: int, **config: object) -> TableRow:
    return TableRow(f"train_{n}", Status.RUNNING, 1, 1.0, config, tuple(sorted(config)), {"loss": n, "acc": 1 - n})


def test_the_objective_stands_first_then_parameters_in_the_order_of_the_space() -> None:
    rows = [row(1, width=1, depth=2, a=3), row(2, width=4, depth=5, a=6)]
    titles = TableMaker(DisplayOptions()).make(rows, "loss").titles
    assert titles == ("Trial", "Status", "loss", "width", "depth", "a", "Iter", "Time", "acc")


def test_what_is_the_same_in_all_rows_is_given_up_first() -> None:
    rows = [row(1, same="sgd", lr=1), row(2, same="sgd", lr=2)]
    maker = TableMaker(DisplayOptions(infer_metrics=False))
    wide = maker.make(rows, "loss")
    assert wide.titles == ("Trial", "Status", "loss", "same", "lr", "Iter", "Time")
    narrow = maker.make(rows, "loss", sum(wide.widths) + 2 * len(wide.widths) - 4)
    assert narrow.titles == ("Trial", "Status", "loss", "lr", "Iter", "Time")


def test_parameters_of_the_same_name_are_told_apart() -> None:
    assert short_names(["enc/lr", "dec/lr", "opt"]) == {"enc/lr": "enc/lr", "dec/lr": "dec/lr", "opt": "opt"}
    assert short_names(["a/enc/lr", "b/enc/lr"]) == {"a/enc/lr": "a/enc/lr", "b/enc/lr": "b/enc/lr"}
    assert short_names(["model/depth"]) == {"model/depth": "depth"}
    assert short_names(["lr", "enc/lr"]) == {"lr": "lr", "enc/lr": "enc/lr"}
    one = TableRow("t", Status.RUNNING, 1, 1.0, {"enc": {"lr": 1}, "dec": {"lr": 2}}, ("dec/lr", "enc/lr"), {})
    assert params_text(one) == "enc/lr=1, dec/lr=2"


def test_the_order_of_the_space_reaches_into_lists() -> None:
    config = {"z": [{"b": 1}, 2], "a": 1}
    assert in_space_order(["a", "z/0/b", "z/1"], config) == ["z/0/b", "z/1", "a"]


def test_why_a_trial_ended_is_told_in_few_words() -> None:
    assert ended_words("returned") == "finished"
    assert ended_words("AsyncHyperBandScheduler: behind at rung 2") == "ASHA: behind at rung 2"
    assert ended_words("HyperBandScheduler: halved") == "HyperBand: halved"
    assert ended_words("time_budget_s=10") == "time_budget_s=10"


def test_a_curve_keeps_its_shape_in_a_bounded_number_of_points() -> None:
    for count in (1, 5, 33, 100, 1000):
        curve = ObjectiveCurve()
        for i in range(count):
            curve.add(float(i))
        assert len(curve.points) <= TREND_POINTS
        assert curve.points[0] == 0
        assert curve.points[-1] == count - 1
        assert curve.points == sorted(curve.points)


def test_a_sparkline_spans_all_values() -> None:
    assert sparkline([]) == sparkline([1.0]) == ""
    assert sparkline([0.0, 1.0]) == "▁█"
    assert sparkline([2.0, 2.0]) == "▁▁"
    long = sparkline([float(value) for value in range(100)])
    assert len(long) == SPARK_WIDTH
    assert (long[0], long[-1]) == ("▁", "█")


def view_of(world: World, tracker: ProgressTracker, rows: int | None = None) -> ProgressView:
    return tracker.view(world.state, world.facts, DisplayOptions(max_progress_rows=rows), world.at)


def test_running_trials_come_first_then_the_best_then_the_latest() -> None:
    tracker = ProgressTracker()
    world = World(tracker.feed)
    view_of(world, tracker)
    losses = list(range(12))
    random.Random(1).shuffle(losses)
    for loss in losses:
        n = world.launch()
        world.report(n, loss=loss)
        world.finish(n)
    running = world.launch()
    view = view_of(world, tracker)
    assert view.rows[0].name == world.facts.name_of(world.state.trials[running])
    best = view.rows[1 : 1 + BEST_ROWS]
    assert [each.metrics["loss"] for each in best] == [0, 1, 2, 3, 4]
    assert [each.rank for each in best] == [1, 2, 3, 4, 5]
    assert len(view.rows) == 13
    assert len({each.name for each in view.rows}) == 13


def test_a_running_trial_that_leads_is_shown_once_with_its_rank() -> None:
    tracker = ProgressTracker()
    world = World(tracker.feed)
    ended, leading = world.launch(), world.launch()
    world.report(ended, loss=2)
    world.report(leading, loss=1)
    world.finish(ended)
    assert [(each.status, each.rank) for each in view_of(world, tracker).rows] == [
        (Status.RUNNING, 1),
        (Status.TERMINATED, 2),
    ]


def test_a_trial_that_starts_from_scratch_begins_a_new_curve() -> None:
    tracker = ProgressTracker()
    world = World(tracker.feed)
    n = world.launch()
    view_of(world, tracker)
    world.report(n, loss=3)
    world.report(n, loss=2)
    assert view_of(world, tracker).rows[0].trend == (3.0, 2.0)
    world.stumble(n)
    world.start(n)
    assert view_of(world, tracker).rows[0].trend == ()


def test_memory_is_told_in_gib() -> None:
    world = World()
    world.facts.memory.capacity = {"CPU": 2 * 10_000, "memory": 25_276_500_000 * 10_000}
    text = resources_text(view_of(world, ProgressTracker()))
    assert text == "0/2 CPU, 0.0/23.5 GiB memory"


def test_counts_add_up_to_the_total_while_trials_are_still_to_be_made() -> None:
    world = World(total=200)
    world.finish(world.launch())
    world.launch()
    world.fail(world.launch())
    view = view_of(world, ProgressTracker())
    assert sum(view.counts.values()) == view.total == 200
    world.add(ev.SearchEnded(world.at, "stop: time_budget_s=1"))
    view = view_of(world, ProgressTracker())
    assert sum(view.counts.values()) == view.total == 200


def test_a_metric_that_never_changes_gives_way_before_a_parameter() -> None:
    world = World()
    for i in range(3):
        n = world.launch()
        world.state.trials[n].config, world.state.trials[n].params = {"a": i, "b": 10 + i, "c": 20 + i}, ("a", "b", "c")
        world.report(n, loss=i, epochs=100, size=7)
    rows = view_of(world, ProgressTracker()).rows
    whole = TableMaker(DisplayOptions()).make(rows, "loss")
    needed = {t: w for t, w in zip(whole.titles, whole.widths, strict=True) if t not in ("epochs", "size", "Place")}
    narrow = TableMaker(DisplayOptions()).make(rows, "loss", sum(needed.values()) + 2 * len(needed) - 2)
    assert {"epochs", "size"} <= set(whole.titles)
    assert narrow.titles == tuple(needed)


def test_tuples_are_shown_as_tuples() -> None:
    packed = pack({"k": (1, (2, 3)), "l": [(4, 5)]}, lambda value, _: value)
    assert [value_text(packed["k"]), value_text(packed["l"])] == ["(1, (2, 3))", "[(4, 5)]"]
