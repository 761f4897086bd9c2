"""It looks good, more of it: larger targets given again are a fact of the experiment from then on."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as tune
from holdfast.cli.main import main
from holdfast.controller.opening import open_state
from holdfast.controller.user_requests import set_samples
from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.journal.reader import read_journal
from holdfast.schedulers import ASHAScheduler, HyperBandScheduler, PopulationBasedTraining
from holdfast.search import BasicVariantGenerator, OptunaSearch, Searcher

Make = Callable[..., tune.Tuner]
DEADLINE_S = 60.0


def train(config: dict[str, Any]) -> dict[str, Any]:
    return {"loss": config["x"]}


def train_steps(config: dict[str, Any]) -> None:
    for step in range(6):
        tune.report({"loss": config["x"] - step})


SPACE = {"x": tune.uniform(0, 1)}
GRID = {"x": tune.uniform(0, 1), "g": tune.grid_search(["a", "b"])}


def configs(grid: tune.ResultGrid) -> list[dict[str, Any]]:
    return [result.config for result in grid]


def lengths(grid: tune.ResultGrid) -> list[int]:
    return [result.metrics["training_iteration"] for result in grid]


def changes(root: Path) -> list[ev.SettingsChanged]:
    events = [ev.decode(payload) for _, payload in read_journal(root)]
    return [event for event in events if isinstance(event, ev.SettingsChanged)]


# --- more trials


@pytest.mark.parametrize("way", ["restore", "if_exists"])
def test_a_larger_number_makes_more_trials(make_tuner: Make, root: Path, way: str) -> None:
    first = configs(make_tuner(train, SPACE, num_samples=2, seed=1).fit())
    if way == "restore":
        tuner = tune.Tuner.restore(root, tune_config=tune.TuneConfig(num_samples=5))
    else:
        tuner = make_tuner(train, SPACE, num_samples=5, seed=1, if_exists="resume")
    grid = tuner.fit()
    assert len(grid) == 5
    assert configs(grid)[:2] == first
    assert [event.num_samples for event in changes(root)] == [5]
    assert len(tune.Tuner.restore(root).fit()) == 5


@pytest.mark.parametrize(
    "searcher",
    [
        None,
        BasicVariantGenerator(constant_grid_search=True),
        BasicVariantGenerator(points_to_evaluate=[{"x": 0.5}, {"x": 0.25, "g": "b"}, {"x": 0.75}]),
        BasicVariantGenerator(random_state=3),
    ],
    ids=["default", "constant grid", "points", "own seed"],
)
def test_trial_k_is_what_it_would_be_had_the_experiment_begun_with_the_larger_number(
    make_tuner: Make, storage: Path, searcher: Any
) -> None:
    whole = configs(make_tuner(train, GRID, num_samples=5, seed=7, search_alg=searcher, name="whole").fit())
    make_tuner(train, GRID, num_samples=1, seed=7, search_alg=searcher, name="parts").fit()
    for number in (2, 5):
        grid = tune.Tuner.restore(storage / "parts", tune_config=tune.TuneConfig(num_samples=number)).fit()
    assert configs(grid) == whole


def test_grids_are_repeated_and_everybody_counts_the_new_number(
    make_tuner: Make, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_tuner(train, GRID, num_samples=2, metric="loss", mode="min").fit()
    tune.Tuner.restore(root, tune_config=tune.TuneConfig(num_samples=3), run_config=tune.RunConfig(verbose=1)).fit()
    shown = capsys.readouterr().out
    assert "6 trials" in shown
    assert "num_samples 2 -> 3" in shown
    assert main(["status", str(root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"] == 6
    assert main(["show", str(root)]) == 0
    assert len(tune.ResultGrid.from_path(root)) == 6


def test_an_unfinished_experiment_says_how_many_there_will_be(make_tuner: Make, crashed: Any, root: Path) -> None:
    crashed(train_steps, SPACE, 2, num_samples=2, seed=1, max_concurrent_trials=1)
    tuner = tune.Tuner.restore(root, tune_config=tune.TuneConfig(num_samples=4))
    assert not changes(root)  # not before it is run
    assert len(tuner.fit()) == 4


def test_no_number_at_all_goes_on_until_something_stops_it(
    make_tuner: Make, root: Path, run_config: Callable[..., tune.RunConfig]
) -> None:
    make_tuner(train, SPACE, num_samples=2).fit()

    class Enough(tune.Stopper):
        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            self.seen = getattr(self, "seen", 0) + 1
            return False

        def stop_all(self) -> bool:
            return getattr(self, "seen", 0) >= 6

    endless = tune.TuneConfig(num_samples=-1)
    grid = tune.Tuner.restore(root, tune_config=endless, run_config=run_config(stop=Enough())).fit()
    assert sum("loss" in result.metrics for result in grid) >= 6
    with pytest.raises(ValueError, match=r"num_samples=50 is smaller.*no limit.*time_budget_s or stop"):
        tune.Tuner.restore(root, tune_config=tune.TuneConfig(num_samples=50))


def test_one_tuner_may_be_run_again_after_its_extension(make_tuner: Make, root: Path) -> None:
    make_tuner(train, SPACE, num_samples=1).fit()
    tuner = tune.Tuner.restore(root, tune_config=tune.TuneConfig(num_samples=2))
    assert [len(tuner.fit()), len(tuner.fit())] == [2, 2]
    assert len(changes(root)) == 1


def test_the_same_target_given_again_changes_nothing(make_tuner: Make, root: Path) -> None:
    make_tuner(train, SPACE, num_samples=1).fit()
    for _ in range(3):
        assert len(make_tuner(train, SPACE, num_samples=3, if_exists="resume").fit()) == 3
    assert len(changes(root)) == 1


# --- what is refused


def contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    ("space", "fields", "words"),
    [
        (SPACE, {"num_samples": 2}, r"num_samples=2 is smaller.*3.*new RunConfig\(name=.*add_evaluated_trials"),
        (SPACE, {"num_samples": 1}, r"num_samples=1 is smaller.*3"),
        ({}, {}, r"param_space.*Expected: \['x'\].*new RunConfig\(name=.*points_to_evaluate"),
        ({**SPACE, "y": 1}, {}, r"param_space.*Got: \['x', 'y'\].*new RunConfig\(name="),
        ({"x": tune.uniform(0, 2)}, {}, r"param_space.*'x' is Float.*2.0.*was Float.*1.0.*new RunConfig\(name="),
        ({"x": tune.grid_search([1, 2])}, {}, r"param_space"),
        ({"x": 0.5}, {}, r"param_space.*'x' is 0.5"),
    ],
    ids=["smaller", "the default, said", "removed", "added", "other bounds", "grid", "constant"],
)
def test_what_would_be_another_experiment_is_refused_and_nothing_is_changed(
    make_tuner: Make, root: Path, space: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    make_tuner(train, SPACE, num_samples=3).fit()
    before = contents(root)
    with pytest.raises(ValueError, match=f"(?s){words}"):
        make_tuner(train, space, if_exists="resume", **fields)
    assert contents(root) == before


def test_a_number_that_is_left_out_is_not_a_smaller_one(make_tuner: Make, root: Path) -> None:
    make_tuner(train, SPACE, num_samples=3).fit()
    assert len(make_tuner(train, SPACE, if_exists="resume").fit()) == 3
    assert len(tune.Tuner.restore(root, tune_config=tune.TuneConfig()).fit()) == 3


def test_another_grid_is_refused_and_another_constant_is_not_used(
    make_tuner: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    make_tuner(train, {"x": tune.grid_search([1, 2]), "epochs": 3}).fit()
    with pytest.raises(ValueError, match=r"'x' is \[1, 2, 3\] now and was \[1, 2\]"):
        make_tuner(train, {"x": tune.grid_search([1, 2, 3]), "epochs": 3}, if_exists="resume")
    again = make_tuner(train, {"x": tune.grid_search([1, 2]), "epochs": 4}, if_exists="resume", verbose=1)
    assert [config["epochs"] for config in configs(again.fit())] == [3, 3]
    assert "'epochs' of the space stays 3, as in the original experiment, not 4" in capsys.readouterr().out


def test_a_population_cannot_be_without_end(make_tuner: Make, root: Path) -> None:
    scheduler = PopulationBasedTraining(hyperparam_mutations={"x": tune.uniform(0, 1)})
    make_tuner(train, SPACE, num_samples=2, scheduler=scheduler, metric="loss", mode="min").fit()
    with pytest.raises(ValueError, match=r"needs a size, and num_samples=-1"):
        tune.Tuner.restore(root, tune_config=tune.TuneConfig(num_samples=-1))


def ask_for(root: Path, number: int, answers: list[str]) -> Callable[[], None]:
    """Ask for more samples when the experiment runs; whatever the answer is, let its trials end."""

    def ask() -> None:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            try:
                answers.append(set_samples(root, number, wait_s=DEADLINE_S))
                break
            except tune.TuneError as error:
                if "No driver" not in str(error) and "no experiment" not in str(error):
                    answers.append(str(error))
                    break
            time.sleep(0.02)
        (root.parent / "go").touch()

    return ask


def train_when_told(config: dict[str, Any]) -> dict[str, Any]:
    while not os.path.exists(config["go"]):
        time.sleep(0.01)
    return {"loss": config["x"]}


LIVE = {
    "variants": ({}, 5, "num_samples=5"),
    "searcher": ({"search_alg": "counting"}, 5, "num_samples=5"),
    "population": ({"scheduler": "pbt"}, -1, "needs a size, and num_samples=-1"),
    "smaller": ({}, 1, "may only grow"),
}


@pytest.mark.parametrize("kind", LIVE)
def test_a_running_experiment_is_asked_for_more(make_tuner: Make, root: Path, kind: str) -> None:
    given, number, said = LIVE[kind]
    policies = {
        "counting": lambda: Counting(),
        "pbt": lambda: PopulationBasedTraining(hyperparam_mutations={"x": tune.uniform(0, 1)}),
    }
    settings = {name: policies[value]() for name, value in given.items()}
    space = {**({} if "search_alg" in given else SPACE), "go": str(root.parent / "go")}
    tuner = make_tuner(train_when_told, space, num_samples=2, metric="loss", mode="min", **settings)
    answers: list[str] = []
    asking = threading.Thread(target=ask_for(root, number, answers))
    asking.start()
    grid = tuner.fit()
    asking.join()
    assert len(answers) == 1
    assert said in answers[0]
    assert len(grid) == (5 if number == 5 else 2)
    assert not grid.errors
    assert [change.request != "" for change in changes(root)] == [True] * (number == 5)
    assert len(tuner.fit()) == len(grid)  # this Tuner knows of the change, and so does a restore
    assert len(tune.Tuner.restore(root).fit()) == len(grid)


def test_a_tuner_that_was_made_before_somebody_else_changed_the_settings_is_refused(
    make_tuner: Make, root: Path
) -> None:
    make_tuner(train, SPACE, num_samples=1).fit()
    old = tune.Tuner.restore(root)
    tune.Tuner.restore(root, tune_config=tune.TuneConfig(num_samples=2)).fit()
    with pytest.raises(tune.TuneError, match=r"changed by another driver.*Create the Tuner again"):
        old.fit()
    assert len(tune.Tuner.restore(root).fit()) == 2


# --- searchers and schedulers


class Counting(Searcher):
    """Suggests how many trials have ended by now."""

    def __init__(self) -> None:
        super().__init__("loss", "min")
        self.ended = 0

    def suggest(self, trial_id: str) -> dict[str, Any]:
        return {"x": self.ended}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self.ended += 1


class Remembering(Counting):
    """Its memory is part of snapshots."""

    def get_state(self) -> dict[str, Any]:
        return {"ended": self.ended}

    def set_state(self, state: dict[str, Any]) -> None:
        self.ended = state["ended"]


@pytest.mark.parametrize("searcher", [Counting, Remembering])
def test_a_searcher_keeps_what_it_knows(make_tuner: Make, root: Path, searcher: type[Counting]) -> None:
    make_tuner(train, {}, search_alg=searcher(), num_samples=3, max_concurrent_trials=1).fit()
    for number in (5, 7):
        grid = tune.Tuner.restore(root, tune_config=tune.TuneConfig(num_samples=number)).fit()
    assert [config["x"] for config in configs(grid)] == list(range(7))


def test_a_model_goes_on_from_what_it_has_learned(make_tuner: Make, root: Path) -> None:
    options = {"metric": "loss", "mode": "min", "seed": 3, "max_concurrent_trials": 1}
    make_tuner(train, SPACE, search_alg=OptunaSearch(), num_samples=12, **options).fit()
    grid = tune.Tuner.restore(root, tune_config=tune.TuneConfig(num_samples=24)).fit()
    assert len(grid) == 24
    values = [config["x"] for config in configs(grid)]
    assert sum(values[12:]) / 12 < sum(values[:10]) / 10  # the first ten are random


class Finite(Counting):
    """Has four ideas."""

    def suggest(self, trial_id: str) -> Any:
        self.asked = getattr(self, "asked", 0) + 1
        return {"x": self.asked} if self.asked <= 4 else self.FINISHED


def test_a_searcher_without_further_ideas_ends_the_experiment_however_many_are_wanted(
    make_tuner: Make, root: Path
) -> None:
    make_tuner(train, {}, search_alg=Finite(), num_samples=2, max_concurrent_trials=1).fit()
    for number in (6, 8):
        assert len(tune.Tuner.restore(root, tune_config=tune.TuneConfig(num_samples=number)).fit()) == 4


def save_steps(config: dict[str, Any]) -> None:
    checkpoint = tune.get_checkpoint()
    start = 0 if checkpoint is None else checkpoint.to_dict()["step"]
    for step in range(start, 6):
        tune.report({"loss": config["x"] - step}, checkpoint=tune.Checkpoint.from_dict({"step": step + 1}))


@pytest.mark.parametrize(
    "scheduler",
    [
        ASHAScheduler(max_t=6, grace_period=1),
        HyperBandScheduler(max_t=6),
        PopulationBasedTraining(perturbation_interval=2, hyperparam_mutations={"x": tune.uniform(0, 1)}),
        PopulationBasedTraining(perturbation_interval=2, hyperparam_mutations={"x": tune.uniform(0, 1)}, synch=True),
    ],
    ids=["asha", "hyperband", "pbt", "pbt synch"],
)
def test_schedulers_take_more_trials(make_tuner: Make, root: Path, scheduler: Any) -> None:
    make_tuner(save_steps, SPACE, num_samples=3, scheduler=scheduler, metric="loss", mode="min").fit()
    grid = tune.Tuner.restore(root, tune_config=tune.TuneConfig(num_samples=6)).fit()
    assert len(grid) == 6
    assert not grid.errors
    assert all(length >= 1 for length in lengths(grid))


# --- the other targets


def test_another_stop_rule_is_for_trials_that_have_not_ended(
    make_tuner: Make, root: Path, run_config: Callable[..., tune.RunConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    make_tuner(train_steps, SPACE, num_samples=2, stop={"training_iteration": 2}).fit()
    longer = run_config(stop={"training_iteration": 4}, verbose=1)
    grid = tune.Tuner.restore(root, tune_config=tune.TuneConfig(num_samples=3), run_config=longer).fit()
    assert lengths(grid) == [2, 2, 4]
    shown = capsys.readouterr().out
    assert "stop {'training_iteration': 2} -> {'training_iteration': 4} (for trials that have not ended)" in shown
    # It is stored, and the code of another rule may be corrected in its turn.
    grid = tune.Tuner.restore(root, tune_config=tune.TuneConfig(num_samples=4)).fit()
    assert lengths(grid) == [2, 2, 4, 4]


def rule(limit: int, *, broken: bool) -> Callable[[str, dict[str, Any]], bool]:
    def stop(trial_id: str, result: dict[str, Any]) -> bool:
        late = result["training_iteration"] > 2
        return bool(result["iteration" if broken and late else "training_iteration"] >= limit)

    return stop


def test_code_of_a_rule_that_was_changed_can_be_corrected(
    make_tuner: Make, root: Path, run_config: Callable[..., tune.RunConfig]
) -> None:
    make_tuner(train_steps, SPACE, stop={"training_iteration": 2}).fit()
    more = tune.TuneConfig(num_samples=2)
    with pytest.raises(KeyError, match="iteration"):
        tune.Tuner.restore(root, tune_config=more, run_config=run_config(stop=rule(3, broken=True))).fit()
    grid = tune.Tuner.restore(root, run_config=run_config(stop=rule(3, broken=False))).fit()
    assert lengths(grid) == [2, 3]
    assert len(changes(root)) == 1
    grid = tune.Tuner.restore(root, tune_config=tune.TuneConfig(num_samples=3)).fit()
    assert lengths(grid) == [2, 3, 3]
    grid = tune.Tuner.restore(
        root, tune_config=tune.TuneConfig(num_samples=4), run_config=run_config(stop={"training_iteration": 5})
    ).fit()
    assert lengths(grid) == [2, 3, 3, 5]


class Rows(tune.Stopper):
    """Ends the experiment after so many rows of all trials; told again, it counts them again."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.rows = 0

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self.rows += 1
        return False

    def stop_all(self) -> bool:
        return self.rows >= self.limit


def test_a_new_rule_is_told_what_happened_before(
    make_tuner: Make, root: Path, run_config: Callable[..., tune.RunConfig]
) -> None:
    make_tuner(train_steps, SPACE, num_samples=2).fit()
    more = tune.TuneConfig(num_samples=50)
    stopped = tune.Tuner.restore(root, tune_config=more, run_config=run_config(stop=Rows(12))).fit()
    assert sum("loss" in result.metrics for result in stopped) == 2  # twelve rows had been reported already
    grid = tune.Tuner.restore(root, run_config=run_config(stop=Rows(1000))).fit()
    assert len(grid) == 50


def wait_for(*flags: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not all(flag.exists() for flag in flags):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_used_up_budget_can_be_raised(
    make_tuner: Make, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flag = tmp_path / "flag"

    def forever(config: dict[str, Any]) -> None:
        while not flag.exists():
            tune.report({"loss": 1})
            time.sleep(0.01)
        tune.report({"loss": 0})

    make_tuner(forever, SPACE, num_samples=1, time_budget_s=0.5).fit()
    flag.touch()
    quiet = tune.Tuner.restore(
        root, tune_config=tune.TuneConfig(num_samples=2), run_config=tune.RunConfig(verbose=1)
    ).fit()
    assert len(quiet) == 1
    assert "nothing more is started" in capsys.readouterr().out
    grid = tune.Tuner.restore(root, tune_config=tune.TuneConfig(time_budget_s=1000)).fit()
    assert [result.metrics["loss"] for result in grid] == [0, 0]


def save_until_allowed(config: dict[str, Any]) -> None:
    """One trial ends by itself; the others do not end before they may, and continue where they were."""
    checkpoint = tune.get_checkpoint()
    step = 0 if checkpoint is None else checkpoint.to_dict()["step"]
    with open(Path(config["dir"]) / "starts", "a") as file:
        file.write(f"{config['g']}:{step}\n")
    while config["g"] != "ends" and not (Path(config["dir"]) / "may end").exists():
        step += 1
        tune.report({"step": step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))
    tune.report({"step": step + 1})


def starts(directory: Path) -> list[tuple[str, int]]:
    found = (line.split(":") for line in (directory / "starts").read_text().splitlines())
    return [(name, int(step)) for name, step in found]


class Steps(tune.Stopper):
    """Ends the experiment once a trial has reached a step."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reached = 0

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self.reached = max(self.reached, result["step"])
        return False

    def stop_all(self) -> bool:
        return self.reached >= self.limit


@pytest.mark.parametrize("way", ["restore", "if_exists"])
@pytest.mark.parametrize("rule", ["time_budget_s", "stop"])
def test_trials_that_the_old_rule_left_unfinished_run_after_all(
    make_tuner: Make,
    root: Path,
    tmp_path: Path,
    run_config: Callable[..., tune.RunConfig],
    time_begins: Callable[[Callable[[], bool]], None],
    way: str,
    rule: str,
) -> None:
    space = {"g": tune.grid_search(["ends", "cut", "waits", "waits too"]), "dir": str(tmp_path)}
    time_begins(lambda: len(list(root.glob("*/checkpoint_*"))) >= 1)
    old, new = ({"time_budget_s": 0.2}, {"time_budget_s": 1000}) if rule != "stop" else ({"stop": Steps(5)},) * 2
    new = {"stop": Steps(10**9)} if rule == "stop" else new
    fields = {"engine": tune.LocalEngine(cpus=1), "num_samples": 1}
    first = make_tuner(save_until_allowed, space, **fields, **old).fit()
    assert starts(tmp_path) == [("ends", 0), ("cut", 0)]
    assert len(first) == 4
    (tmp_path / "may end").touch()
    if way == "if_exists":
        tuner = make_tuner(save_until_allowed, space, if_exists="resume", **fields, **new)
    elif rule == "stop":
        tuner = tune.Tuner.restore(root, run_config=run_config(**new, engine=tune.LocalEngine(cpus=1)))
    else:
        tuner = tune.Tuner.restore(root, tune_config=tune.TuneConfig(**new))
    grid = tuner.fit()
    names = [name for name, _ in starts(tmp_path)]
    assert names == ["ends", "cut", "cut", "waits", "waits too"]
    assert first[1].metrics["step"] - 1 <= starts(tmp_path)[2][1] <= first[1].metrics["step"]
    assert [result.metrics["step"] for result in grid] == [1, starts(tmp_path)[2][1] + 1, 1, 1]
    assert [event.time_budget_s for event in changes(root)] == ([None] if rule == "stop" else [1000])
    tune.Tuner.restore(root).fit()
    assert len(starts(tmp_path)) == 5


@pytest.mark.parametrize(
    "policy",
    [
        {"search_alg": OptunaSearch()},
        {"scheduler": ASHAScheduler(max_t=6, grace_period=1)},
        {"scheduler": HyperBandScheduler(max_t=6)},
        {"scheduler": PopulationBasedTraining(perturbation_interval=2, hyperparam_mutations={"x": [1, 2]})},
    ],
    ids=["optuna", "asha", "hyperband", "pbt"],
)
def test_policies_accept_trials_that_are_taken_up_again(
    make_tuner: Make, root: Path, run_config: Callable[..., tune.RunConfig], policy: dict[str, Any]
) -> None:
    make_tuner(save_steps, SPACE, num_samples=6, metric="loss", mode="min", stop=Rows(8), **policy).fit()
    grid = tune.Tuner.restore(root, run_config=run_config(stop=Rows(10**6))).fit()
    assert len(grid) == 6
    assert not grid.errors
    assert all(length >= 1 for length in lengths(grid))


def test_more_may_run_at_once(make_tuner: Make, root: Path, tmp_path: Path) -> None:
    def meet(config: dict[str, Any]) -> dict[str, Any]:
        number = tune.get_context().get_trial_id()[-1]
        (tmp_path / number).touch()
        if number in "12":
            wait_for(tmp_path / "1", tmp_path / "2")
        return {"loss": 1}

    make_tuner(meet, SPACE, num_samples=1, max_concurrent_trials=1).fit()
    more = tune.TuneConfig(num_samples=3, max_concurrent_trials=2)
    assert not tune.Tuner.restore(root, tune_config=more).fit().errors
    unlimited = tune.TuneConfig(max_concurrent_trials=0, num_samples=4)
    assert len(tune.Tuner.restore(root, tune_config=unlimited).fit()) == 4
    assert open_state(root, Retention()).state.settings.max_concurrent == 0


def test_the_story_tells_of_the_change(make_tuner: Make, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_tuner(train, SPACE, num_samples=1).fit()
    tune.Tuner.restore(root, tune_config=tune.TuneConfig(num_samples=2)).fit()
    assert main(["show", str(root), "--story"]) == 0
    assert "The user changed: num_samples 1 -> 2." in capsys.readouterr().out
