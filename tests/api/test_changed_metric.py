"""Another metric for an experiment that exists: what was reported stays, what was learned from it is learned anew."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as tune
from holdfast import TuneConfig, Tuner
from holdfast.cli.main import main
from holdfast.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)
from holdfast.search import ConcurrencyLimiter, OptunaSearch, Searcher

Make = Callable[..., tune.Tuner]
SPACE = {"x": tune.uniform(0, 1)}


def train(config: dict[str, Any]) -> None:
    """What is good for the loss is bad for the accuracy."""
    checkpoint = tune.get_checkpoint()
    start = 0 if checkpoint is None else checkpoint.to_dict()["step"]
    for step in range(start, 6):
        metrics = {"loss": config["x"] - step, "acc": config["x"] + step}
        tune.report(metrics, checkpoint=tune.Checkpoint.from_dict({"step": step + 1}))


def quick(config: dict[str, Any]) -> dict[str, Any]:
    return {"loss": config["x"], "acc": config["x"]}


# --- the way out of a wrong name


def advice(error: BaseException) -> str:
    """The first call that the message offers."""
    found = re.search(r"Tuner\.restore\(.*?\)\.fit\(\)", str(error))
    assert found is not None, error
    return found[0]


def test_the_advice_for_a_wrong_metric_can_be_followed_to_the_letter(make_tuner: Make, root: Path) -> None:
    with pytest.raises(tune.TuneError, match=r"`los` that `tune\.TuneConfig") as caught:
        make_tuner(train, SPACE, num_samples=2, metric="los", mode="min").fit()
    grid = eval(advice(caught.value), {"Tuner": Tuner, "TuneConfig": TuneConfig})
    assert len(grid) == 2
    assert grid.get_best_result().metrics["loss"] == min(result.metrics["loss"] for result in grid)
    assert tune.ResultGrid.from_path(root).get_best_result().metrics == grid.get_best_result().metrics


def test_the_advice_names_the_scheduler_that_wants_the_metric(make_tuner: Make) -> None:
    scheduler = ASHAScheduler(metric="los", mode="min", max_t=4)
    with pytest.raises(tune.TuneError, match="`los` that `AsyncHyperBandScheduler`") as caught:
        make_tuner(train, SPACE, num_samples=2, scheduler=scheduler).fit()
    call = advice(caught.value)
    assert 'metric="loss", mode="min", ...' in call
    names = {"Tuner": Tuner, "TuneConfig": TuneConfig, "AsyncHyperBandScheduler": ASHAScheduler}
    grid = eval(call.replace("...", "max_t=4"), names)
    assert len(grid) == 2
    assert not grid.errors


def test_the_other_advice_is_to_report_it(make_tuner: Make, root: Path) -> None:
    with pytest.raises(tune.TuneError) as caught:
        make_tuner(quick, SPACE, metric="f1", mode="max").fit()
    assert f'Tuner.restore("{root}", trainable=quick).fit()' in str(caught.value)

    def corrected(config: dict[str, Any]) -> dict[str, Any]:
        return {**quick(config), "f1": 1.0}

    corrected.__name__ = "quick"
    assert Tuner.restore(root, trainable=corrected).fit()[0].metrics["f1"] == 1.0


# --- what follows the metric


def test_everybody_uses_the_new_metric_also_later(
    make_tuner: Make, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = make_tuner(quick, SPACE, num_samples=4, metric="loss", mode="min").fit()
    verbose = tune.RunConfig(verbose=1)
    again = Tuner.restore(root, tune_config=TuneConfig(metric="acc", mode="max"), run_config=verbose).fit()
    shown = capsys.readouterr().out
    assert "metric loss -> acc" in shown
    assert "mode min -> max" in shown
    assert "maximising acc" in shown
    best = max(result.metrics["acc"] for result in first)
    assert len(again) == 4
    for grid in (again, tune.ResultGrid.from_path(root), Tuner.restore(root).fit()):
        assert grid.get_best_result().metrics["acc"] == best
    capsys.readouterr()
    assert main(["status", str(root), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["metric"], facts["mode"], facts["best"]["value"]) == ("acc", "max", best)


def test_the_direction_alone_can_be_changed(make_tuner: Make, root: Path) -> None:
    first = make_tuner(quick, SPACE, num_samples=3, metric="loss", mode="min").fit()
    Tuner.restore(root, tune_config=TuneConfig(mode="max")).fit()
    grid = tune.ResultGrid.from_path(root)
    assert grid.get_best_result().metrics["loss"] == max(result.metrics["loss"] for result in first)


# --- searchers


class Student(Searcher):
    """Suggests 0, 1, 2, .. before it has learned anything, and then the best known value and ten more."""

    def __init__(self, metric: str | None = None, mode: str | None = None) -> None:
        super().__init__(metric, mode)
        self.given: dict[str, float] = {}
        self.known: list[tuple[float, float]] = []

    def set_search_properties(self, metric: str | None, mode: str | None, config: Any, **spec: Any) -> bool:
        self._metric, self._mode = metric or self._metric, mode or self._mode
        return True

    def suggest(self, trial_id: str) -> dict[str, Any]:
        sign = 1 if self._mode == "max" else -1
        best = max(self.known, key=lambda point: sign * point[0], default=None)
        self.given[trial_id] = float(len(self.given)) if best is None else best[1] + 10
        return {"x": self.given[trial_id]}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        assert result is not None
        self.known.append((result[self._metric], self.given[trial_id]))


class Listener(Student):
    """Can hear of points that it has not suggested."""

    def add_evaluated_point(self, parameters: Any, value: Any, error: bool = False, *more: Any) -> None:
        self.known.append((value, parameters["x"]))


def falls(config: dict[str, Any]) -> dict[str, Any]:
    return {"loss": config["x"], "gain": -config["x"]}


def test_a_searcher_learns_anew_from_all_that_was_reported(make_tuner: Make, root: Path) -> None:
    """Told the right pairs, it knows that the first trial is the best by the other metric."""
    options = {"metric": "loss", "mode": "max", "num_samples": 4, "max_concurrent_trials": 1}
    grid = make_tuner(falls, {}, search_alg=Listener(), **options).fit()
    assert [result.config["x"] for result in grid] == [0.0, 10.0, 20.0, 30.0]
    changed = TuneConfig(metric="gain", mode="max", num_samples=6)
    grid = Tuner.restore(root, tune_config=changed).fit()
    assert [result.config["x"] for result in grid][4:] == [10.0, 10.0]
    # And so does whoever opens it later, from the journal alone.
    shutil.rmtree(root / ".holdfast" / "snapshots")
    grid = Tuner.restore(root, tune_config=TuneConfig(num_samples=7)).fit()
    assert [result.config["x"] for result in grid][6:] == [10.0]
    grid = Tuner.restore(root, tune_config=TuneConfig(metric="loss", mode="max", num_samples=8)).fit()
    assert [result.config["x"] for result in grid][7:] == [40.0]


def test_a_searcher_that_cannot_be_told_is_changed_only_before_it_has_learned(make_tuner: Make, root: Path) -> None:
    options = {"mode": "min", "num_samples": 3, "max_concurrent_trials": 1, "search_alg": Student()}
    with pytest.raises(tune.TuneError, match="did not include"):
        make_tuner(falls, {}, metric="wrong", **options).fit()
    grid = Tuner.restore(root, tune_config=TuneConfig(metric="loss", mode="min")).fit()
    assert [result.config["x"] for result in grid] == [0.0, 10.0, 10.0]
    with pytest.raises(ValueError, match=r"cannot be changed any more: Student.*add_evaluated_point.*new RunConfig"):
        Tuner.restore(root, tune_config=TuneConfig(metric="gain", mode="min", num_samples=4)).fit()
    assert len(Tuner.restore(root, tune_config=TuneConfig(num_samples=4)).fit()) == 4


@pytest.mark.parametrize("wrap", [lambda inner: inner, lambda inner: ConcurrencyLimiter(inner, 1)])
def test_a_model_turns_round(make_tuner: Make, root: Path, wrap: Callable[[Searcher], Searcher]) -> None:
    """Minimising first; the trials after the change come from a model that maximises."""
    options = {"metric": "loss", "mode": "min", "seed": 5, "num_samples": 16, "max_concurrent_trials": None}
    make_tuner(quick, SPACE, search_alg=wrap(OptunaSearch()), **options).fit()
    changed = TuneConfig(metric="acc", mode="max", num_samples=32)
    values = [result.config["x"] for result in Tuner.restore(root, tune_config=changed).fit()]
    assert sum(values[16:]) / 16 > sum(values[:16]) / 16


# --- schedulers

SCHEDULERS = {
    "asha": lambda: ASHAScheduler(max_t=6, grace_period=1),
    "hyperband": lambda: HyperBandScheduler(max_t=6),
    "median": lambda: MedianStoppingRule(grace_period=1, min_samples_required=2),
    "pbt": lambda: PopulationBasedTraining(perturbation_interval=2, hyperparam_mutations={"x": tune.uniform(0, 1)}),
    "pbt synch": lambda: PopulationBasedTraining(
        perturbation_interval=2, hyperparam_mutations={"x": tune.uniform(0, 1)}, synch=True
    ),
}


@pytest.mark.parametrize("after", [3, 11])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_go_on_by_another_metric_in_the_middle_of_their_work(
    crashed: Any, root: Path, name: str, after: int
) -> None:
    options = {"num_samples": 6, "seed": 2, "scheduler": SCHEDULERS[name]()}
    crashed(train, SPACE, after, metric="loss", mode="min", **options)
    grid = Tuner.restore(root, tune_config=TuneConfig(metric="acc", mode="max")).fit()
    assert len(grid) == 6
    assert not grid.errors
    again = Tuner.restore(root, tune_config=TuneConfig(metric="loss", mode="min", num_samples=8)).fit()
    assert len(again) == 8
    assert not again.errors


class Judge(TrialScheduler):
    """Stops whoever is not the best of all that it has heard."""

    def __init__(self) -> None:
        self.best: float | None = None

    def on_trial_result(self, view: Any, trial: Any, result: dict[str, Any]) -> str:
        value = float(result[self.metric]) * (1 if self.mode == "max" else -1)
        if self.best is not None and value < self.best:
            return self.STOP
        self.best = value
        return self.CONTINUE


def levels(config: dict[str, Any]) -> None:
    for step in range(4):
        tune.report({"loss": config["x"], "acc": config["x"], "step": step})


def test_a_scheduler_knows_by_the_new_metric_what_was_reported_before(make_tuner: Make, root: Path) -> None:
    """By the accuracy the first is the best; whoever comes later and is worse is stopped at its first report."""
    space = {"x": tune.uniform(0, 1)}
    points = [{"x": value} for value in (0.999999, 0.3, 0.4)]
    search = tune.search.BasicVariantGenerator(points_to_evaluate=points)
    options = {"search_alg": search, "scheduler": Judge(), "metric": "loss", "mode": "min", "max_concurrent_trials": 1}
    grid = make_tuner(levels, space, **options).fit()
    assert [result.metrics["step"] for result in grid] == [3, 3, 0]
    changed = TuneConfig(metric="acc", mode="max", num_samples=4)
    grid = Tuner.restore(root, tune_config=changed).fit()
    assert [result.metrics["step"] for result in grid] == [3, 3, 0, 0]


# --- metrics of their own


@pytest.mark.parametrize(
    ("field", "made"),
    [
        ("scheduler", lambda metric: ASHAScheduler(metric=metric, mode="min", max_t=4)),
        ("search_alg", lambda metric: OptunaSearch(metric=metric, mode="min")),
        ("search_alg", lambda metric: ConcurrencyLimiter(OptunaSearch(metric=metric, mode="min"), 2)),
    ],
)
def test_a_metric_of_its_own_is_changed_by_giving_it_again(
    make_tuner: Make, root: Path, field: str, made: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    make_tuner(quick, SPACE, num_samples=2, **{field: made("loss")}).fit()
    with pytest.raises(ValueError, match=r"instantiated with .*metric='loss'.*give it again.*Nothing was changed"):
        Tuner.restore(root, tune_config=TuneConfig(metric="acc", mode="max"))
    again = TuneConfig(num_samples=4, **{field: made("acc")})
    assert len(Tuner.restore(root, tune_config=again, run_config=tune.RunConfig(verbose=1)).fit()) == 4
    assert "loss (min) -> acc (min)" in capsys.readouterr().out
    assert len(Tuner.restore(root, tune_config=TuneConfig(num_samples=5)).fit()) == 5


# --- what a change of the metric alone leaves open


def test_another_metric_does_not_inherit_the_mode_of_the_old_one(make_tuner: Make, root: Path) -> None:
    make_tuner(quick, SPACE, num_samples=2, metric="acc", mode="max").fit()
    with pytest.raises(ValueError, match=r"TuneConfig\(metric='loss'\) has no mode.*mode='max' for 'acc'.*mode='min'"):
        Tuner.restore(root, tune_config=TuneConfig(metric="loss"))
    with pytest.raises(ValueError, match="has no mode"):
        make_tuner(quick, SPACE, num_samples=2, metric="loss", if_exists="resume")
    assert not Tuner.restore(root, tune_config=TuneConfig(metric="loss", mode="max")).fit().errors
    assert not Tuner.restore(root, tune_config=TuneConfig(metric="loss")).fit().errors  # it is that one


def test_a_metric_that_no_trial_has_reported_is_pointed_out(
    make_tuner: Make, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_tuner(quick, SPACE, num_samples=2, metric="acc", mode="max").fit()
    verbose = tune.RunConfig(verbose=1)
    Tuner.restore(root, tune_config=TuneConfig(metric="f1", mode="max"), run_config=verbose).fit()
    assert "no trial has reported the new metric 'f1' so far. Reported were: 'loss', 'acc'" in capsys.readouterr().out
    for metric in ("loss", "training_iteration"):
        Tuner.restore(root, tune_config=TuneConfig(metric=metric, mode="max"), run_config=verbose).fit()
        assert "no trial has reported" not in capsys.readouterr().out


def test_the_last_line_after_a_wrong_metric_can_be_followed(
    make_tuner: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(tune.TuneError):
        make_tuner(quick, SPACE, metric="los", mode="min", verbose=1).fit()
    line = capsys.readouterr().out.splitlines()[-1]
    assert 'tune_config=TuneConfig(metric="loss", mode="min")' in line
    assert (
        len(eval(line.removeprefix("Resume with: ").partition("; or ")[0], {"Tuner": Tuner, "TuneConfig": TuneConfig}))
        == 1
    )
