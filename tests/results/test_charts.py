"""The data of charts, by numbers that can be checked by hand or by brute force."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from roots import RootWriter, small_experiment

from holdfast.core import events as ev
from holdfast.core.state import WorkerFacts
from holdfast.errors import InvalidInputError
from holdfast.results.charts.best_so_far import best_so_far
from holdfast.results.charts.contour import CELLS, contour
from holdfast.results.charts.distribution import empirical_distribution
from holdfast.results.charts.experiment_charts import chart
from holdfast.results.charts.importance import importance
from holdfast.results.charts.pareto import pareto_front
from holdfast.results.charts.worker_timeline import MAX_SPANS, worker_timeline
from holdfast.results.chronicle import Attempt
from holdfast.results.follow import Follower
from holdfast.results.packing import MISSING, NONE

NAN = math.nan


def test_the_best_so_far_never_gets_worse() -> None:
    found = best_so_far([3.0, NAN, 1.0, 2.0, None], "min", [30.0, 10.0, 20.0, 40.0, 50.0])
    assert found == {"trial": [2, 0, 3], "at": [20.0, 30.0, 40.0], "value": [1.0, 3.0, 2.0], "best": [1.0] * 3}
    assert best_so_far([1.0, 3.0, 2.0], "max")["best"] == [1.0, 3.0, 3.0]


def test_the_distribution_ends_at_one() -> None:
    assert empirical_distribution([3.0, 1.0, NAN, 2.0, None, 2.0]) == {
        "x": [1.0, 2.0, 2.0, 3.0],
        "y": [0.25, 0.5, 0.75, 1.0],
        "count": 4,
        "thinned": False,
    }
    thin = empirical_distribution(map(float, range(10_000)), max_points=100)
    assert (thin["thinned"], len(thin["x"]), thin["x"][0], thin["x"][-1], thin["y"][-1]) == (True, 100, 0, 9999, 1)
    assert empirical_distribution([])["count"] == 0


@pytest.mark.parametrize("objectives", [2, 3])
def test_the_front_is_what_nobody_dominates(objectives: int) -> None:
    rng = random.Random(objectives)
    modes = ["min", "max", "min"][:objectives]
    signs = [1 if mode == "min" else -1 for mode in modes]
    for _ in range(20):
        points = [[float(rng.randrange(6)) for _ in range(objectives)] for _ in range(30)]
        costs = [[sign * value for sign, value in zip(signs, point, strict=True)] for point in points]
        expected = [
            n
            for n, cost in enumerate(costs)
            if not any(other != cost and all(a <= b for a, b in zip(other, cost, strict=True)) for other in costs)
        ]
        assert sorted(pareto_front(points, modes)) == expected
    assert pareto_front([[1.0, NAN], [None, 1.0], [2.0, 2.0]], ["min", "min"]) == [2]


def test_the_parameter_that_decides_is_the_most_important() -> None:
    rng = random.Random(1)
    params: dict[str, list[Any]] = {name: [rng.random() for _ in range(400)] for name in ("strong", "weak", "noise")}
    params["kind"] = [rng.choice(["a", "b", None]) for _ in range(400)]
    params["constant"] = [1] * 400
    bonus = {"a": 0.0, "b": 0.5, None: 0.2}
    values = [
        10 * params["strong"][n] ** 2 + params["weak"][n] + bonus[params["kind"][n]] + 0.1 * rng.random()
        for n in range(400)
    ]
    values[7] = 1e30  # one that diverged
    found = importance(params, values)
    shares = {each["name"]: each["importance"] for each in found["params"]}
    assert found["params"][0]["name"] == "strong"
    assert shares["strong"] > 0.8
    assert shares["noise"] < 0.05
    assert shares["constant"] == 0.0
    assert sum(shares.values()) == pytest.approx(1.0)
    assert importance({"x": [1, 2]}, [1.0, 2.0])["params"] == [{"name": "x", "importance": 0.0, "explained": 0.0}]


def test_a_contour_has_the_means_of_cells_and_fills_the_rest() -> None:
    xs = [10.0 ** (k % 5) for k in range(25)]
    ys = ["sgd" if k < 12 else "adam" for k in range(25)]
    found = contour(("x", xs), ("opt", ys), [math.log10(x) for x in xs], (True, False))
    assert (found["x"]["log"], found["y"]["options"]) == (True, ["sgd", "adam"])
    assert (len(found["z"]), len(found["z"][0]), found["trials"]) == (2, CELLS, 25)
    assert found["z"][0][0] == 0.0
    assert found["z"][1][-1] == 4.0
    assert all(0.0 <= value <= 4.0 for row in found["z"] for value in row)
    empty = contour(("x", [None]), ("y", [1.0]), [1.0])
    assert empty["trials"] == 0
    assert empty["z"][0][0] is None
    json.dumps(found)


def test_cells_without_a_trial_are_weighted_by_the_square_of_their_distance() -> None:
    rng = random.Random(3)
    xs, ys, values = ([rng.random() for _ in range(300)] for _ in range(3))
    found = contour(("x", xs), ("y", ys), values)
    cells: dict[tuple[int, int], list[float]] = {}
    for x, y, value in zip(xs, ys, values, strict=True):
        at = [min(CELLS - 1, int((v - min(of)) / (max(of) - min(of)) * CELLS)) for v, of in ((x, xs), (y, ys))]
        cells.setdefault((at[0], at[1]), []).append(value)
    means = {at: sum(each) / len(each) for at, each in cells.items()}
    for i, j in [(0, 0), (31, 31), (5, 17), (16, 16), (30, 2)]:
        weights = {at: 1 / max((at[0] - i) ** 2 + (at[1] - j) ** 2, 1e-30) for at in means}
        expected = sum(weights[at] * means[at] for at in means) / sum(weights.values())
        assert found["z"][j][i] == pytest.approx(expected)


def test_idle_time_counts_only_while_a_driver_lives() -> None:
    attempts = [
        Attempt(0, 1, 0.0, 10.0, 1, "finished", ""),
        Attempt(1, 1, 0.0, 30.0, 2, "finished", ""),
        Attempt(2, 1, 50.0, NAN, 1, "running", ""),
    ]
    found = worker_timeline(attempts, {1: WorkerFacts("node", "ip", 7)}, 60.0, [(0.0, 20.0), (40.0, 60.0)])
    first, second = found["workers"]
    assert (first["host"], first["pid"], first["busy_s"]) == ("node", 7, 20.0)
    assert first["idle"] == [[10.0, 20.0, 0], [40.0, 50.0, 0]]
    assert first["spans"][1] == [2, 1, 50.0, 60.0, "running", 0]
    assert (second["idle"], second["idle_s"]) == ([[40.0, 60.0, 1]], 20.0)
    assert (found["lanes"], found["busy_s"], found["idle_s"]) == (2, 50.0, 40.0)
    many = [Attempt(k, 1, float(k), k + 0.9, 1, "finished", "") for k in range(MAX_SPANS + 1)]
    thin = worker_timeline(many, {}, 0.0)
    assert thin["thinned"]
    assert len(thin["workers"][0]["spans"]) < MAX_SPANS / 4


def test_replaced_workers_share_a_lane_and_short_gaps_add_up() -> None:
    attempts = [Attempt(k, 1, float(k), k + 0.75, k + 1, "finished", "") for k in range(10)]
    attempts.append(Attempt(10, 1, 2.1, 2.2, 50, "finished", ""))
    found = worker_timeline(attempts, {}, 10.0)
    lanes = [span[5] for worker in found["workers"] for span in worker["spans"]]
    assert sorted(lanes) == [0] * 10 + [1]
    assert found["lanes"] == 2
    assert found["idle_s"] == pytest.approx(10 * 0.25 + 9.9)
    assert found["busy_s"] == pytest.approx(10 * 0.75 + 0.1)


@pytest.mark.parametrize("seed", range(20))
def test_busy_and_idle_time_fill_all_lanes_while_drivers_live(seed: int) -> None:
    rng = random.Random(seed)
    attempts = []
    for n in range(rng.randrange(1, 40)):
        start = rng.randrange(100) / 4
        attempts.append(Attempt(n, 1, start, start + rng.randrange(1, 20) / 4, rng.randrange(5), "finished", ""))
    attempts.sort(key=lambda attempt: attempt.start)
    found = worker_timeline(attempts, {}, 30.0)
    assert found["busy_s"] + found["idle_s"] == pytest.approx(found["lanes"] * (found["end"] - found["start"]))
    spans = [span for worker in found["workers"] for span in worker["spans"]]
    for one in spans:
        assert not any(
            other is not one and other[5] == one[5] and other[2] < one[3] and one[2] < other[3] for other in spans
        )


@pytest.fixture
def population(tmp_path: Path) -> RootWriter:
    """Two trials; the second continues as a copy of the first, with another config; then the driver is killed."""
    root = RootWriter(tmp_path / "exp").open()
    for n, rate in enumerate((0.1, 0.9)):
        root.create({"lr": rate, "fixed": 1})
        root.start(n)
        root.report(n, {"loss": rate})
        root.save(n, {"model.txt": "weights"})
    root.add(ev.TrialPaused(root.tick(), 1, 1))
    root.add(ev.TrialReconfigured(root.tick(), 1, {"lr": 0.12, "fixed": 1}, "", (0, 0), 0))
    root.add(ev.TrialResumed(root.tick(), 1))
    root.add(ev.TrialStarted(root.tick(), 1, 2, 1, (0, 0)))
    root.report(1, {"loss": 0.11})
    return root


def test_a_population_tells_who_copied_whom(population: RootWriter) -> None:
    found = chart(Follower.open(population.path), "lineage")
    assert [(c["trial"], c["parent"], c["donor"], c["checkpoint"], c["iteration"]) for c in found["copies"]] == [
        (1, 0, 0, 0, 1)
    ]
    assert [step["config"]["lr"] for step in found["trials"][0]["schedule"]] == [0.9, 0.12]
    assert found["params"] == ["lr"]
    assert found["ids"] == {"0": "abcde_00000", "1": "abcde_00001"}


def test_a_kill_costs_the_time_without_driver_and_the_work_after_the_checkpoint(population: RootWriter) -> None:
    root = population
    follower = Follower.open(root.path)
    assert chart(follower, "recovery")["incidents"] == []
    root.report(0, {"loss": 0.05})
    last = root.at
    root.die()
    follower.advance()
    (unresumed,) = chart(follower, "recovery")["incidents"]
    assert (unresumed["kind"], unresumed["at"], unresumed["until"], unresumed["trials"]) == ("killed", last, None, 2)
    root.at += 100
    root.open()
    started = root.at - 1  # its first record is that of a worker
    for n in (0, 1):
        root.cut(n, ev.Cause.DRIVER_LOST)
    root.start(0)
    follower.advance()
    found = chart(follower, "recovery")
    kill, takeover, rewind = found["incidents"]
    assert (takeover["kind"], takeover["at"], takeover["down_s"]) == ("takeover", started, 0.0)
    assert (rewind["kind"], rewind["trial"], rewind["repeated_s"]) == ("rewind", "abcde_00000", kill["repeated_s"])
    assert rewind["text"] == "Attempt 2 started from checkpoint_000000: 1 later report does not count."
    assert (kill["kind"], kill["trial"], kill["at"], kill["until"]) == ("killed", None, last, started)
    assert kill["down_s"] == started - last
    # Trial 0 continues from the checkpoint that came with its first row.
    first_row = follower.curves.times(0)[0]
    assert kill["repeated_s"] == last - first_row
    assert (found["down_s"], found["repeated_s"]) == (kill["down_s"], kill["repeated_s"])
    assert [driver["epoch"] for driver in found["drivers"]] == [1, 2]
    root.add(ev.StorageLagged(root.tick(), root.at - 6, "unreachable"))
    root.add(ev.StorageCaughtUp(root.tick(10), root.at - 16))
    root.reject(0, 0, "size differs")
    root.retry(0, ev.Cause.EXCEPTION, type="ValueError", message="no")
    follower.advance()
    again = chart(follower, "recovery")
    kinds = ["killed", "storage", "takeover", "rewind", "rejected", "retry"]
    assert [each["kind"] for each in again["incidents"]] == kinds
    assert again["kinds"]["storage"]["down_s"] == pytest.approx(17.0, abs=1.1)
    fresh = chart(Follower.open(root.path), "recovery")
    fresh["end"] = again["end"] = fresh["drivers"][-1]["until"] = again["drivers"][-1]["until"] = 0
    assert fresh == again


def test_every_chart_of_an_experiment_is_plain_data(tmp_path: Path) -> None:
    follower = Follower.open(small_experiment(tmp_path / "exp").die().path)
    options = {
        "contour": {"x": "lr", "y": "lr"},
        "pareto": {"metrics": ["loss", "nested/deep"]},
    }
    for name in ("history", "importance", "edf", "pareto", "contour", "workers", "lineage", "recovery"):
        json.dumps(chart(follower, name, **options.get(name, {})), allow_nan=False)
    assert chart(follower, "history")["best"][-1] == 1.0
    for name, wrong in (("nothing", {}), ("edf", {"metric": "no"}), ("contour", {"x": "lr"}), ("edf", {"odd": 1})):
        with pytest.raises(InvalidInputError):
            chart(follower, name, **wrong)


def test_none_is_an_option_like_any_other(tmp_path: Path) -> None:
    root = RootWriter(tmp_path / "exp").open()
    for n, (act, size) in enumerate([("relu", 1), (None, None), ("relu", 2), (None, 1), ("gelu", None)]):
        root.create({"act": act, "net": {"size": size}} | ({"extra": None} if n == 3 else {}))
        root.start(n)
        root.report(n, {"loss": float(n)})
        root.end(n)
    root.finish()
    follower = Follower.open(root.path)
    act = follower.columns.column("config/act")
    assert (act.values, list(act.data)) == (["relu", None, "gelu"], [0, 1, 0, 1, 2])
    size = follower.columns.column("config/net/size")
    assert [size.values[code] for code in size.data if size.values] == [1, None, 2, 1, None]
    extra = follower.columns.column("config/extra")
    assert [code == MISSING for code in extra.data] == [True, True, True, False, True]
    found = chart(follower, "contour", x="act", y="net/size")
    assert found["trials"] == 5
    assert found["x"]["options"] == ["relu", None, "gelu"]
    assert found["y"]["options"] == ["1", None, "2"]
    assert chart(follower, "importance")["trials"] == 5
    (created, *_) = [line.text for line in follower.story(1)]
    assert "with act=None, " in created


def test_none_is_a_group_beside_numbers() -> None:
    values = [float(k) for k in range(60)]
    column = [NONE if value < 30 else value for value in values]
    (one,) = importance({"x": column}, values)["params"]
    assert one["explained"] > 0.8
