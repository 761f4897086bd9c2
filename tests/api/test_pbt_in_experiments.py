"""Population based training with real experiments: that it helps, and that nothing of it is lost or done twice."""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from experiment_tools import history, lines, statuses
from pbt_trainables import SPACE, STEPS, Climber, Data, climb, pbt

import holdfast as tune
from holdfast.core import events as ev
from holdfast.core.retention import Retention
from holdfast.core.state import State
from holdfast.core.transitions import apply
from holdfast.journal.reader import read_journal
from holdfast.schedulers import PB2, PopulationBasedTrainingReplay

SCRIPT = """
from pbt_trainables import SPACE, climb, pbt

tune.Tuner(
    climb,
    param_space={**SPACE, "dir": str(DIR), "steps": 100},
    tune_config=tune.TuneConfig(scheduler=pbt(synch=%r), num_samples=2, seed=1),
    run_config=config(checkpoint_config=tune.CheckpointConfig(num_to_keep=1)),
).fit()
"""


class Story:
    """What the journal says of copies, worked out from its events alone."""

    def __init__(self, root: Path) -> None:
        self.copies: list[list[Any]] = []
        """What the lines of ``pbt_global.txt`` must be."""

        self.loads: Counter[str] = Counter()
        """What trials must have loaded: those that started from a checkpoint, and its token."""

        self.state = State()
        for _, payload in read_journal(root):
            event = ev.decode(payload)
            self._take(event)
            apply(self.state, event, Retention())

    def _take(self, event: ev.AnyEvent) -> None:
        trials = self.state.trials
        if isinstance(event, ev.TrialReconfigured) and event.donor is not None:
            trial, parent = trials[event.n], trials[event.parent]
            record = trials[event.donor[0]].find(event.donor[1])
            assert record is not None
            row = [trial.tag, parent.tag, trial.iteration, record.iteration, parent.config, event.config]
            self.copies.append(row)
        elif isinstance(event, ev.TrialStarted) and event.source is not None:
            record = trials[event.source[0]].find(event.source[1])
            assert record is not None
            self.loads[f"{trials[event.n].id} {record.metrics['token']}"] += 1


def policy(root: Path, name: str) -> list[list[Any]]:
    return [json.loads(line) for line in lines(root / name)]


def assert_files_tell(root: Path, story: Story) -> None:
    """Each copy is there once, in order; and the file of a trial ends with the last copy that it became."""
    assert policy(root, "pbt_global.txt") == story.copies
    for trial in story.state.trials:
        own = policy(root, f"pbt_policy_{trial.id}.txt")
        last = [row for row in story.copies if row[0] == trial.tag][-1:]
        assert own[-1:] == last
        for row, following in itertools.pairwise(own):
            assert row[0] == following[1]
            assert row in story.copies


def assert_each_row_once(grid: tune.ResultGrid) -> None:
    for result in grid:
        assert result.metrics["training_iteration"] == result.config.get("steps", STEPS)
        assert len(history(result, "token")) == len(set(history(result, "token")))


def in_turn() -> dict[str, Any]:
    """One trial after the other, and every checkpoint there when it is wanted: copies depend on the seed alone."""
    return {
        "engine": tune.LocalEngine(cpus=1),
        "checkpoint_config": tune.CheckpointConfig(wait_for_commit=True),
    }


@pytest.mark.parametrize("synch", [False, True])
def test_a_population_reaches_what_no_fixed_config_reaches(make_tuner, root, tmp_path, synch):
    fixed = make_tuner(climb, {**SPACE, "dir": str(tmp_path)}, name="fixed").fit()
    assert max(result.metrics["q"] for result in fixed) < 0.6
    grid = make_tuner(
        climb,
        {**SPACE, "dir": str(tmp_path), "data": Data(), "steps": 100},
        scheduler=pbt(synch=synch),
        num_samples=2,
        seed=3,
        **in_turn(),
    ).fit()
    assert statuses(grid) == ["TERMINATED"] * 4
    assert grid.get_best_result("q", "max").metrics["q"] > 1.19
    assert_each_row_once(grid)
    assert_files_tell(root, Story(root))


@pytest.mark.parametrize("trainable", [climb, Climber])
def test_every_copy_loads_exactly_the_state_of_its_donor_though_one_checkpoint_is_kept(
    make_tuner, root, tmp_path, trainable
):
    grid = make_tuner(
        trainable,
        {**SPACE, "dir": str(tmp_path)},
        scheduler=pbt(perturbation_interval=2),
        num_samples=2,
        seed=5,
        checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
    ).fit()
    assert statuses(grid) == ["TERMINATED"] * 4
    story = Story(root)
    assert len(story.copies) >= 4
    assert Counter(lines(tmp_path / "loads")) == story.loads
    for result in grid:
        assert len(list(Path(result.path).glob("checkpoint_*"))) == 1


@pytest.mark.parametrize(("synch", "moved"), [(False, False), (True, True)])
def test_after_kill_9_in_the_middle_of_copies_nothing_is_lost_or_done_twice(drivers, root, tmp_path, synch, moved):
    driver = drivers.start(SCRIPT % synch)
    driver.wait_for_lines(root / "pbt_global.txt", 4)
    driver.kill()
    before = Story(root).copies
    if moved:
        (tmp_path / "elsewhere").mkdir()  # so that it is one rename
        shutil.move(root, tmp_path / "elsewhere" / "exp")
        root = tmp_path / "elsewhere" / "exp"
    grid = tune.Tuner.restore(str(root), climb).fit()
    assert statuses(grid) == ["TERMINATED"] * 4
    assert_each_row_once(grid)
    story = Story(root)
    assert story.copies[: len(before)] == before
    assert_files_tell(root, story)
    loaded = Counter(lines(tmp_path / "loads"))
    assert loaded <= story.loads  # an attempt may have been killed before it could load anything
    assert (story.loads - loaded).total() <= 4


def test_after_kill_9_again_and_again_the_policy_files_stay_exact(drivers, root, tmp_path):
    again = "from pbt_trainables import climb\ntune.Tuner.restore(STORAGE + '/exp', climb).fit()\n"
    for number, code in enumerate([SCRIPT % False, again, again], start=1):
        driver = drivers.start(code, TUNE_GLOBAL_CHECKPOINT_S="0.05")
        driver.wait_for_lines(root / "pbt_global.txt", 3 * number)
        driver.kill()
    grid = tune.Tuner.restore(str(root), climb).fit()
    assert statuses(grid) == ["TERMINATED"] * 4
    assert_files_tell(root, Story(root))


def test_a_replay_ends_where_the_trial_ended(make_tuner, root, tmp_path):
    """The trial of a replay has the configs of its ancestors at the same iterations, so it gets to the same place."""
    space = {**SPACE, "dir": str(tmp_path)}
    population = make_tuner(climb, space, scheduler=pbt(), num_samples=2, seed=4, **in_turn()).fit()
    best = population.get_best_result("q", "max")
    replay = PopulationBasedTrainingReplay(str(root / f"pbt_policy_{best.metrics['trial_id']}.txt"))
    (result,) = make_tuner(climb, {"dir": str(tmp_path)}, name="replayed", scheduler=replay).fit()
    assert result.metrics["training_iteration"] == STEPS
    assert result.metrics["q"] == best.metrics["q"]
    assert result.metrics["experiment_tag"].startswith(f"replay_pbt_policy_{best.metrics['trial_id']}.txt@perturbed[")


def test_bandits_choose_for_a_real_population(make_tuner, root, tmp_path):
    scheduler = PB2(
        time_attr="training_iteration",
        metric="q",
        mode="max",
        perturbation_interval=4,
        hyperparam_bounds={"h0": [0.0, 1.0], "h1": [0.0, 1.0]},
        quantile_fraction=0.5,
    )
    grid = make_tuner(Climber, {"dir": str(tmp_path)}, scheduler=scheduler, num_samples=4, seed=2, **in_turn()).fit()
    assert statuses(grid) == ["TERMINATED"] * 4
    story = Story(root)
    assert_files_tell(root, story)
    assert story.copies
    assert all(0 <= row[5][key] <= 1 for row in story.copies for key in ("h0", "h1"))
    assert Counter(lines(tmp_path / "loads")) == story.loads


def test_a_searcher_cannot_be_used_as_well(make_tuner):
    class Mine(tune.search.Searcher):
        def set_search_properties(self, metric: Any, mode: Any, config: Any, **spec: Any) -> bool:
            return True

    with pytest.raises(ValueError, match="Search algorithms cannot be used with"):
        make_tuner(climb, SPACE, scheduler=pbt(), search_alg=Mine())


def test_frames_tell_which_rows_a_copy_has_trained_again(make_tuner, root, tmp_path):
    pytest.importorskip("pandas")
    grid = make_tuner(
        climb, {**SPACE, "dir": str(tmp_path), "steps": 12}, num_samples=1, scheduler=pbt(synch=True), seed=1
    ).fit()
    story = Story(root)
    copied = {row[0] for row in story.copies}
    assert copied, "nobody was copied"
    for read in (grid, tune.ResultGrid.from_path(root)):
        for result in read:
            frame = result.metrics_dataframe
            if result.metrics["experiment_tag"].partition("@")[0] not in copied:
                assert "lineage" not in frame
                continue
            mine = [row for row in story.copies if row[0] == result.metrics["experiment_tag"].partition("@")[0]]
            assert not frame.duplicated(["lineage", "training_iteration"]).any()
            assert 1 <= frame["lineage"].max() <= len(mine)  # the last copy may have had nothing left to do
            assert frame["lineage"].is_monotonic_increasing
            assert frame["copied_from"].isna().tolist() == (frame["lineage"] == 0).tolist()
            ids = {other.trial_id for other in read}
            assert set(frame["copied_from"].dropna()) <= ids - {result.trial_id}
    analysis = tune.ExperimentAnalysis(root)
    assert any("lineage" in frame for frame in analysis.trial_dataframes.values())
