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


def test_idle_time_counts_only_while_a_driver_lives() -> None:
    attempts = [
        Attempt(0, 1, 0.0, 10.0, 1, "finished", ""),
        Attempt(1, 1, 0.0, 30.0, 2, "finished", ""),
        Attempt(2, 1, 50.0, NAN, 1, "running", ""),
    ]
    found = worker_timeline(attempts, {1: WorkerFacts("node", "ip", 7)}, 60.0, [(0.0, 20.0), (40.0, 60.0)])
    first, second = found["workers"]
    assert (first["host"], first["pid"], first["busy_s"]) == ("node", 7, 20.0)
    assert first["idle"] == [[10.0, 20.0], [40.0, 50.0]]
    assert first["spans"][1] == [2, 1, 50.0, 60.0, "running"]
    assert second["idle_s"] == 0
    many = [Attempt(k, 1, float(k), k + 0.9, 1, "finished", "") for k in range(MAX_SPANS + 1)]
    thin = worker_timeline(many, {}, 0.0)
    assert thin["thinned"]
    assert len(thin["workers"][0]["spans"]) < MAX_SPANS / 4


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
    root.at += 100
    root.open()
    started = root.at - 1  # its first record is that of a worker
    for n in (0, 1):
        root.cut(n, ev.Cause.DRIVER_LOST)
    root.start(0)
    follower.advance()
    found = chart(follower, "recovery")
    (kill,) = found["incidents"]
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
    assert [each["kind"] for each in again["incidents"]] == ["killed", "storage", "rejected", "retry"]
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
