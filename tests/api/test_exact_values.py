"""A trial sees exactly the Python values of the search space, and so does everybody who reads its config."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from exact_kinds import OBJECTS, PLAIN, VALUES, Color, Layer, Level, Point, check, double, same, space, train
from hypothesis import example, given, settings
from hypothesis import strategies as st

import holdfast as tune
from holdfast.core import events as ev
from holdfast.errors import InvalidInputError
from holdfast.journal.reader import read_journal
from holdfast.space.exact import misfit, pack, shown, unpack


def see(config):
    tune.report({"loss": 1.0, "seen": repr(config["x"])})


# --- end to end


def test_trials_and_results_have_the_values_of_the_space(make_tuner):
    check(make_tuner(train, space()).fit())


def test_values_survive_a_kill_and_a_restore_in_another_process(drivers, root, tmp_path):
    script = """
import exact_kinds
class Die(tune.Callback):
    def on_trial_result(self, iteration, trials, trial, result, **info):
        if not (DIR / "go").exists() and len([t for t in trials if t.last_result.get("step")]) > 5:
            os._exit(9)
tune.Tuner(exact_kinds.train, param_space=exact_kinds.space(), run_config=config(callbacks=[Die()])).fit()
"""
    assert drivers.start(script).end()[0] == 9
    (tmp_path / "go").touch()
    resumed = drivers.start(
        f"import exact_kinds\ngrid = tune.Tuner.restore({str(root)!r}).fit()\nexact_kinds.check(grid)\nprint('fine')"
    )
    code, output = resumed.end()
    assert (code, output.split()[-1:]) == (0, ["fine"]), output
    read = f"import exact_kinds\nexact_kinds.check(tune.Tuner.restore({str(root)!r}).get_results())\nprint('fine')"
    code, output = drivers.start(read).end()
    assert (code, output.split()[-1:]) == (0, ["fine"]), output


def test_options_of_choices_and_grids_keep_their_types(make_tuner):
    for option in (tune.choice, tune.grid_search):
        options = [(1, 1), np.float32(0.5), Color.RED, Level.LOW, {1: (2,)}]
        grid = make_tuner(see, {"x": option(options)}, num_samples=6, if_exists="new").fit()
        for result in grid:
            found = [value for value in options if same(value, result.config["x"])]
            assert [result.metrics["seen"]] == [repr(value) for value in found]


def test_points_to_evaluate_keep_their_types(make_tuner):
    points = [{"x": (1, 2)}, {"x": np.float32(0.25)}, {"x": Color.BLUE}, {"x": Point(1, 2)}]
    search = tune.search.BasicVariantGenerator(points_to_evaluate=points)
    options = [point["x"] for point in points]
    grid = make_tuner(see, {"x": tune.choice(options)}, num_samples=4, search_alg=search).fit()
    assert [result.metrics["seen"] for result in grid] == list(map(repr, options))
    assert all(map(same, [result.config["x"] for result in grid], options))


@pytest.mark.parametrize("name", ["optuna", "bohb", "sobol"])
def test_learning_searchers_keep_the_types_of_options(make_tuner, name):
    options = [(1, 1), (1, 2), np.int64(3), frozenset({1}), Color.RED, {2: "b"}]
    space = {"x": tune.choice(options), "t": (tune.uniform(0, 1), {5: tune.randint(0, 9)})}
    grid = make_tuner(see, space, num_samples=8, search_alg=name, metric="loss", mode="min").fit()
    for result in grid:
        config = result.config
        assert result.metrics["seen"] == repr(config["x"])
        assert any(same(config["x"], option) for option in options)
        assert [type(config["t"]), type(config["t"][0]), type(config["t"][1][5])] == [tuple, float, int]


def test_points_for_a_learning_searcher_may_have_tuples(make_tuner):
    search = tune.search.OptunaSearch(points_to_evaluate=[{"x": (1, 2), "y": 0.5}, {"x": [1, 1]}])
    space = {"x": tune.choice([(1, 1), (1, 2)]), "y": tune.uniform(0, 1)}
    first, second, third = make_tuner(see, space, num_samples=3, search_alg=search, metric="loss", mode="min").fit()
    assert (first.config["x"], first.config["y"]) == ((1, 2), 0.5)
    assert second.config["x"] == [1, 1]  # as the user wrote it
    assert type(third.config["x"]) is tuple


class Picky(tune.search.Searcher):
    """A searcher of the user's: what it sees and suggests are Python values."""

    def set_search_properties(self, metric, mode, config, **spec):
        self.options = config["x"].categories
        self.seen = []
        return True

    def suggest(self, trial_id):
        assert all(type(option) is tuple for option in self.options)
        assert all(type(value) is tuple for value in self.seen)
        return {"x": self.options[len(self.seen) % 2], "n": np.int64(2), "level": Level.LOW, "made": (1, {2: 3})}

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.seen.append(result["config"]["x"])


def test_searchers_of_the_user_see_and_suggest_python_values(make_tuner):
    space = {"x": tune.choice([(1, 1), (1, 2)]), "n": tune.randint(0, 9)}
    grid = make_tuner(see, space, num_samples=4, search_alg=Picky(), max_concurrent_trials=1).fit()
    assert [result.config["x"] for result in grid] == [(1, 1), (1, 2)] * 2
    for result in grid:
        assert type(result.config["n"]) is int  # a domain of numbers yields numbers of Python's
        assert same(result.config["level"], Level.LOW)
        assert same(result.config["made"], (1, {2: 3}))


class Reader(tune.Callback):
    def __init__(self):
        self.seen = []

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.seen += [trial.config["x"], result["config"]["x"], trial.evaluated_params["x"]]


def test_callbacks_see_python_values(make_tuner):
    reader = Reader()
    make_tuner(see, {"x": tune.choice([(1, Color.RED)])}, callbacks=[reader]).fit()
    assert len(reader.seen) == 3
    assert all(same(value, (1, Color.RED)) for value in reader.seen)


class Changing(tune.schedulers.FIFOScheduler):
    """Gives the trial another config once, made of the one that it has."""

    def on_trial_result(self, view, trial, result):
        assert type(trial.config["x"]) is tuple
        if result["step"] == 2 and "changed" not in trial.config:
            view.reconfigure_trial(trial, {**trial.config, "x": (*trial.config["x"], np.float32(0.5)), "changed": True})
            return self.PAUSE
        return self.CONTINUE


def note_types(config):
    checkpoint = tune.get_checkpoint()
    done = 0 if checkpoint is None else checkpoint.to_dict()["step"]
    for step in range(done + 1, 5):
        wrong = not same(config["x"], (1, Color.RED, np.float32(0.5)) if "changed" in config else (1, Color.RED))
        wrong = wrong or config["kind"] is not Layer
        saved = tune.Checkpoint.from_dict({"step": step})
        tune.report({"step": step, "wrong": wrong}, checkpoint=saved)


def test_schedulers_of_the_user_may_give_a_config_of_python_values(make_tuner):
    (result,) = make_tuner(note_types, {"x": (1, Color.RED), "kind": Layer}, scheduler=Changing()).fit()
    assert result.error is None
    assert not any(row["wrong"] for row in result.metrics_history)
    assert same(result.config["x"], (1, Color.RED, np.float32(0.5)))
    assert result.config["kind"] is Layer


class Population(tune.Trainable):
    def setup(self, config):
        self.level = 0.0

    def step(self):
        kinds = [type(self.config[key]) for key in ("shape", "width", "rate", "layers")]
        ok = kinds == [tuple, int, np.float32, dict] and same(self.config["kept"], (Color.RED, double))
        ok = ok and type(self.config["layers"][1]) is int
        self.level += self.config["bonus"]
        return {"score": self.level, "wrong": not ok}

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "level").write_text(str(self.level))

    def load_checkpoint(self, checkpoint_dir):
        self.level = float(Path(checkpoint_dir, "level").read_text())

    def reset_config(self, new_config):
        self.config = new_config
        return True


def test_values_keep_their_types_when_trials_are_copied_and_mutated(make_tuner):
    scheduler = tune.schedulers.PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={
            "shape": [(1, 1), (1, 2), (2, 2)],
            "width": tune.randint(8, 64),
            "rate": tune.uniform(0.1, 1.0),
            "layers": {1: tune.randint(1, 9)},
        },
        resample_probability=0.0,
        synch=True,
    )
    space = {
        "bonus": tune.grid_search([0.0, 1.0, 2.0, 3.0]),
        "shape": (1, 2),
        "width": 16,
        "rate": np.float32(0.5),
        "layers": {1: 5},
        "kept": (Color.RED, double),
    }
    grid = make_tuner(
        Population, space, metric="score", mode="max", scheduler=scheduler, stop={"training_iteration": 12}, seed=3
    ).fit()
    assert not grid.errors
    assert not any(row["wrong"] for result in grid for row in result.metrics_history)
    shapes = {row["config"]["shape"] for result in grid for row in result.metrics_history}
    assert len(shapes) > 1  # something was mutated


# --- what is stored, and what readers without the user's code see


def test_what_is_stored_is_plain_data_and_read_without_the_users_code(make_tuner, root):
    make_tuner(see, {"x": tune.grid_search(VALUES)}).fit()
    created = [event for _, payload in read_journal(root) if isinstance(event := ev.decode(payload), ev.TrialCreated)]
    json.dumps([event.config for event in created])
    results = list(tune.ResultGrid.from_path(root))
    assert all(same(result.config["x"], value) for result, value in zip(results, PLAIN, strict=False))
    for result, value in zip(results[len(PLAIN) :], OBJECTS, strict=True):
        if not isinstance(value, dict | tuple):
            assert result.config["x"]["type"] == f"{type(value).__module__}.{type(value).__qualname__}"


def test_files_and_frames_show_lists_for_tuples(make_tuner):
    grid = make_tuner(see, {"x": tune.choice([(1, (2, 3))]), "n": {1: np.float64(0.5)}}).fit()
    (result,) = grid
    expected = {"x": [1, [2, 3]], "n": {"1": 0.5}}
    assert json.loads(Path(result.path, "params.json").read_text()) == expected
    rows = Path(result.path, "result.json").read_text().splitlines()
    assert [json.loads(row)["config"] for row in rows] == [expected]
    frame = grid.get_dataframe()
    assert frame["config/x"].tolist() == [(1, (2, 3))]
    assert frame["config/n/1"].tolist() == [0.5]
    assert "x=1_2_3" in result.path


def test_a_named_tuple_with_something_to_choose_in_it_is_refused(make_tuner, root):
    with pytest.raises(InvalidInputError, match="Point with something to choose in it at 'x'"):
        make_tuner(see, {"x": Point(tune.uniform(0, 1), 2)}).fit()
    assert not root.exists()


# --- any plain data

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.complex_numbers(allow_nan=False)
)
KEYS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3), max_leaves=4
)
DATA = st.recursive(
    SCALARS | st.builds(np.float32, st.floats(width=32, allow_nan=False)) | st.sets(KEYS, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.dictionaries(st.sampled_from(["__exact__", "value", "keys", "type"]), inner)
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(DATA)
def test_any_plain_data_comes_back_as_it_was(value):
    def refuse(node, path):
        raise AssertionError(f"{node!r} is no plain data")

    packed = ev.decode(ev.encode(ev.TrialCreated(0.0, 0, "id", {"x": pack(value, refuse)}, "tag"))).config["x"]
    assert same(unpack(packed), value)
    assert same(unpack(pack(packed, refuse)), value)  # packing again changes nothing
    json.dumps(shown(packed))


TAGS = ["int", "str", "complex", "Path", "tuple", "set", "dict", "numpy.int8", "numpy.float32", "numpy.str_", "numpy.x"]


@settings(max_examples=300, deadline=None)
@given(st.fixed_dictionaries({"__exact__": st.sampled_from(TAGS), "value": DATA}, optional={"keys": DATA}) | DATA)
@example({"__exact__": "dict", "value": {}, "keys": {"__exact__": None}})
@example({"__exact__": "OrderedDict", "value": {"__exact__": 1}, "keys": {}})
@example({"__exact__": "dict", "value": {}, "keys": {0j: None}})
@example({"__exact__": "set", "value": [set()]})
@example({"__exact__": "set", "value": [([],)]})
@example({"__exact__": "set", "value": [{"__exact__": []}]})
def test_readers_take_whatever_looks_like_a_tag_in_a_space(value):
    packed = pack({"x": [value]}, lambda node, path: {"__object__": str(path), "type": "T"})
    assert misfit(ev.decode(ev.encode(ev.TrialCreated(0.0, 0, "id", packed, "tag"))).config) is None
    unpack(packed)
