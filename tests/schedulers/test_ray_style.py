"""Schedulers in the style of Ray Tune's base classes run as they are: only the import line differs."""

from __future__ import annotations

import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from holdfast.compat.tune.experiment.trial import Trial
from holdfast.compat.tune.schedulers.trial_scheduler import FIFOScheduler, TrialScheduler

import holdfast as tune

STEPS = 6


def train(config: dict[str, Any]) -> None:
    for step in range(1, STEPS + 1):
        tune.report({"score": config["x"], "step": step})


class Climb(tune.Trainable):
    """Saves, so that it can be paused."""

    def setup(self, config: dict[str, Any]) -> None:
        self.steps = 0

    def step(self) -> dict[str, Any]:
        self.steps += 1
        return {"score": self.config["x"] * self.steps, "done": self.steps >= STEPS}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.steps = checkpoint["steps"]


class MedianRule(FIFOScheduler):
    """Ends a trial whose best is below the median of the others' means."""

    def __init__(self, metric: str, grace: int) -> None:
        super().__init__()
        self.key, self.grace = metric, grace
        self.results: dict[Trial, list[float]] = defaultdict(list)
        self.stopped: set[Trial] = set()
        self.statuses: set[str] = set()

    def on_trial_result(self, controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        self.results[trial].append(result[self.key])
        self.statuses.add(trial.status)
        if result["training_iteration"] < self.grace:
            return TrialScheduler.CONTINUE
        others = [t for t in controller.get_trials() if t.trial_id != trial.trial_id and self.results.get(t)]
        if len(others) < 2:
            return TrialScheduler.CONTINUE
        median = statistics.median(statistics.fmean(self.results[t]) for t in others)
        if max(self.results[trial]) < median:
            self.stopped.add(trial)
            return TrialScheduler.STOP
        return TrialScheduler.CONTINUE

    def on_trial_complete(self, controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        self.results[trial].append(result[self.key])

    def choose_trial_to_run(self, controller: Any) -> Trial | None:
        for trial in controller.get_trials():
            if trial.status == Trial.PENDING and controller.has_resources_for_trial(trial):
                return trial
        return None

    def debug_string(self) -> str:
        return f"median rule: {len(self.stopped)} stopped"


class OneBracket(TrialScheduler):
    """HyperBand's halving with one bracket: all pause at a milestone, the better half continues."""

    def __init__(self, metric: str, size: int, first: int) -> None:
        super().__init__()
        self.key, self.size, self.milestone = metric, size, first
        self.live: dict[Trial, dict[str, Any] | None] = {}
        self.to_unpause: set[Trial] = set()
        self.halvings = 0

    def on_trial_add(self, controller: Any, trial: Trial) -> None:
        assert trial.status == Trial.PENDING
        self.live[trial] = None

    def on_trial_result(self, controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        self.live[trial] = result
        if result["training_iteration"] < self.milestone:
            return TrialScheduler.CONTINUE
        reached = [t for t, last in self.live.items() if last and last["training_iteration"] >= self.milestone]
        if len(reached) < self.size:
            return TrialScheduler.PAUSE
        return self._halve(controller, trial)

    def _halve(self, controller: Any, trial: Trial) -> str:
        self.halvings += 1
        ranked = sorted(self.live, key=lambda t: self.live[t][self.key], reverse=True)  # type: ignore[index]
        good, bad = ranked[: len(ranked) // 2], ranked[len(ranked) // 2 :]
        self.size, self.milestone = len(good), self.milestone * 2
        action = TrialScheduler.PAUSE
        for other in bad:
            self.live.pop(other)
            if other is trial or other.trial_id == trial.trial_id:
                action = TrialScheduler.STOP
            elif other.status == Trial.PAUSED or other.is_saving:
                controller.stop_trial(other)
        for other in good:
            if other.trial_id == trial.trial_id:
                action = TrialScheduler.CONTINUE
            else:
                controller.search_alg.searcher.on_unpause(other.trial_id)
                self.to_unpause.add(other)
        return action

    def on_trial_complete(self, controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        self.live.pop(trial, None)

    def on_trial_remove(self, controller: Any, trial: Trial) -> None:
        self.live.pop(trial, None)

    def on_trial_error(self, controller: Any, trial: Trial) -> None:
        self.live.pop(trial, None)

    def choose_trial_to_run(self, controller: Any) -> Trial | None:
        for trial in controller.get_live_trials():
            if trial.status == Trial.PENDING:
                return trial
        for trial in controller.get_live_trials():
            if trial.status == Trial.PAUSED and trial in self.to_unpause:
                self.to_unpause.discard(trial)
                return trial
        return None


class SavesAndLooks(FIFOScheduler):
    """Asks for a checkpoint at each result, and notes what trials say of themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, ...]] = []

    def on_trial_result(self, controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        controller._schedule_trial_save(trial, result=result)
        self.seen.append((trial.has_checkpoint(), trial.experiment_dir_name, trial.local_experiment_path))
        assert isinstance(controller.search_alg.is_finished(), bool)
        return TrialScheduler.CONTINUE


def run(storage: Path, trainable: Any, scheduler: Any, values: list[int]) -> tune.ResultGrid:
    config = tune.RunConfig(name="exp", storage_path=storage, verbose=0, engine=tune.LocalEngine(cpus=2))
    space = {"x": tune.grid_search(values)}
    tuning = tune.TuneConfig(scheduler=scheduler)
    return tune.Tuner(trainable, param_space=space, tune_config=tuning, run_config=config).fit()


def test_a_median_rule_ends_what_is_below_the_others(tmp_path: Path) -> None:
    rule = MedianRule("score", grace=2)
    grid = run(tmp_path, train, rule, [10, 9, 8, 1])
    steps = {result.config["x"]: result.metrics["training_iteration"] for result in grid}
    assert steps[10] == STEPS
    assert steps[1] == 2, "two others had ended before it began"
    assert {trial.config["x"] for trial in rule.stopped} >= {1}
    assert rule.statuses == {Trial.RUNNING}
    assert not grid.errors


def test_a_hyperband_pauses_halves_and_goes_on(tmp_path: Path) -> None:
    bracket = OneBracket("score", size=4, first=2)
    grid = run(tmp_path, Climb, bracket, [1, 2, 3, 4])
    steps = {result.config["x"]: result.metrics["training_iteration"] for result in grid}
    assert steps == {1: 2, 2: 2, 3: 4, 4: STEPS}
    assert bracket.halvings == 2
    assert {result.status for result in grid} == {Trial.TERMINATED}


def test_a_scheduler_may_ask_for_checkpoints_and_look_at_trials(tmp_path: Path) -> None:
    scheduler = SavesAndLooks()
    (result,) = run(tmp_path, Climb, scheduler, [1])
    assert result.checkpoint is not None
    assert len(scheduler.seen) == STEPS - 1  # "done" is not judged
    assert {row[1:] for row in scheduler.seen} == {("exp", str(tmp_path / "exp"))}
    assert len(result.best_checkpoints) == STEPS, "one for each result that was judged, and the last"


class OfTheFirstVersions(FIFOScheduler):
    """Its methods have the arguments that they had in Ray Tune 1."""

    def set_search_properties(self, metric: str | None, mode: str | None) -> bool:  # type: ignore[override]
        return True

    def on_trial_result(self, trial_runner: Any, trial: Any, result: dict[str, Any]) -> str:
        return TrialScheduler.STOP if result["step"] == 2 else TrialScheduler.CONTINUE


def test_a_scheduler_whose_methods_have_older_arguments(tmp_path: Path) -> None:
    for scheduler in (OfTheFirstVersions(), tune.schedulers.ResourceChangingScheduler(OfTheFirstVersions())):
        grid = run(tmp_path / type(scheduler).__name__, train, scheduler, [1, 2])
        assert [result.metrics["step"] for result in grid] == [2, 2]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("experiment.trial", "Trial"),
        ("utils.util", "flatten_dict"),
        ("utils.util", "is_nan_or_inf"),
        ("utils", "validate_warmstart"),
        ("trainable.util", "TrainableUtil"),
        ("stopper.maximum_iteration", "MaximumIterationStopper"),
        ("stopper.trial_plateau", "TrialPlateauStopper"),
        ("stopper.stopper", "Stopper"),
        ("schedulers.median_stopping_rule", "MedianStoppingRule"),
        ("schedulers.async_hyperband", "ASHAScheduler"),
        ("schedulers.trial_scheduler", "TrialScheduler"),
        ("analysis.experiment_analysis", "ExperimentAnalysis"),
        ("search.optuna.optuna_search", "OptunaSearch"),
        ("search.variant_generator", "parse_spec_vars"),
        ("search", "UNDEFINED_METRIC_MODE"),
        ("search", "UNDEFINED_SEARCH_SPACE"),
        ("search", "UNRESOLVED_SEARCH_SPACE"),
        ("search.sample", "Quantized"),
    ],
)
def test_modules_are_found_where_scripts_look_for_them(module: str, name: str) -> None:
    from importlib import import_module

    assert getattr(import_module(f"holdfast.compat.tune.{module}"), name) is not None
