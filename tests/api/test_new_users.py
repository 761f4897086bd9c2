"""Mistakes that everybody makes once: each is answered at once, with the value and the way out."""

from __future__ import annotations

import pytest
from api_trainables import count, noop

import holdfast as tune
from holdfast.config.run import CALLBACK_HOOKS
from holdfast.errors import InvalidInputError, InvalidTypeError, StorageError, TuneError


def nothing_was_made(storage) -> bool:
    return not storage.exists() or not list(storage.iterdir())


class WithoutStep(tune.Trainable):
    def setup(self, config):
        self.x = 1


class Inherits(WithoutStep):
    def step(self):
        return {"x": self.x}


class InheritsFurther(Inherits):
    pass


def test_a_class_without_step_is_refused_before_anything_starts(make_tuner, storage):
    with pytest.raises(InvalidInputError, match=r"WithoutStep does not implement step\(\).*def step\(self\)"):
        make_tuner(WithoutStep)
    assert nothing_was_made(storage)


@pytest.mark.parametrize("kind", [Inherits, InheritsFurther, tune.with_resources(InheritsFurther, {"cpu": 1})])
def test_an_inherited_step_will_do(make_tuner, kind):
    (result,) = make_tuner(kind, stop={"training_iteration": 1}).fit()
    assert result.metrics["x"] == 1


def test_the_older_name_of_step_will_do(make_tuner):
    with pytest.warns(DeprecationWarning, match="_train"):

        class Older(tune.Trainable):
            def _train(self):
                return {"x": 1}

    make_tuner(Older)


def test_an_object_of_a_trainable_class_is_told_to_be_the_class(make_tuner):
    with pytest.raises(InvalidTypeError, match=r"Pass the class itself: Tuner\(Inherits\)"):
        make_tuner(Inherits())


def test_a_call_in_place_of_a_function_is_recognised(run_config):
    with pytest.raises(TuneError, match=r"Got None.*leave the brackets out: Tuner\(train\)"):
        tune.Tuner(None, run_config=run_config())


@pytest.mark.parametrize(
    ("unknown", "words"),
    [
        ("config", r"no argument 'config'. The search space is param_space"),
        ("num_samples", r"tune_config=tune\.TuneConfig\(num_samples=\.\.\.\)"),
        ("storage_path", r"run_config=tune\.RunConfig\(storage_path=\.\.\.\)"),
        ("budget", r"It has: trainable, param_space, tune_config, run_config"),
    ],
)
def test_an_argument_that_tuner_does_not_have_is_told_its_place(unknown, words):
    with pytest.raises(TypeError, match=words):
        tune.Tuner(noop, **{unknown: 3})


@pytest.mark.parametrize(
    ("kind", "typo", "meant"),
    [
        (tune.TuneConfig, "num_sample", "num_samples"),
        (tune.RunConfig, "storagepath", "storage_path"),
        (tune.FailureConfig, "max_failure", "max_failures"),
        (tune.CheckpointConfig, "num_to_keeep", "num_to_keep"),
        (tune.LocalEngine, "cpu", "cpus"),
    ],
)
def test_a_typo_in_a_setting_is_answered_with_what_was_meant(kind, typo, meant):
    with pytest.raises(TypeError, match=f"{kind.__name__} has no setting '{typo}'. Did you mean '{meant}'"):
        kind(**{typo: 1})


def test_a_dict_in_place_of_a_config_is_answered_with_the_config():
    with pytest.raises(InvalidInputError, match=r"Write run_config=tune\.RunConfig\(name='x', verbose=0\)"):
        tune.Tuner(noop, run_config={"name": "x", "verbose": 0})


def test_a_domain_that_was_not_called_is_named_with_its_place(make_tuner, storage):
    with pytest.raises(InvalidInputError, match=r"function uniform itself at 'net/lr'. Call it: uniform\(\.\.\.\)"):
        make_tuner(noop, {"net": {"lr": tune.uniform}})
    assert nothing_was_made(storage)


@pytest.mark.parametrize("wrong", ["json", 5, {}, None, print, object()])
def test_what_has_no_hook_is_no_callback(wrong):
    with pytest.raises(InvalidInputError, match=r"callbacks\[1\] must be a callback object, got .*tune\.Callback"):
        tune.RunConfig(callbacks=[tune.Callback(), wrong])


def test_the_hooks_that_settings_know_are_those_of_a_callback():
    hooks = {name for name in vars(tune.Callback) if name == "setup" or name.startswith("on_")}
    assert set(CALLBACK_HOOKS) == hooks


def test_a_callback_need_not_be_derived_from_callback():
    class OnItsOwn:
        def on_trial_result(self, **info): ...

    assert len(tune.RunConfig(callbacks=[OnItsOwn()]).callbacks) == 1


def test_a_file_in_place_of_the_storage_directory_is_named(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(StorageError) as caught:
        tune.Tuner(noop, run_config=tune.RunConfig(name="exp", storage_path=file))
    assert str(caught.value).startswith(f"The experiment cannot be written at {file / 'exp'}: Not a directory. Choose")


@pytest.mark.parametrize("method", ["restore", "can_restore"])
@pytest.mark.parametrize("wrong", [None, 5, b"bytes"])
def test_a_path_must_be_a_path(method, wrong):
    with pytest.raises(TypeError, match=rf"Tuner\.{method}\(\) needs the directory of an experiment, got {wrong!r}"):
        getattr(tune.Tuner, method)(wrong)


def test_a_list_is_no_search_space(make_tuner):
    with pytest.raises(InvalidInputError, match=r"`param_space` must be a dict, got list: \[1, 2\]"):
        make_tuner(count, [1, 2])


def test_zero_samples_are_refused():
    with pytest.raises(InvalidInputError, match=r"num_samples must be -1 .* or an integer >= 1, got 0"):
        tune.TuneConfig(num_samples=0)


@pytest.mark.parametrize(("asked", "meant"), [("cpus", "cpu"), ("GPUs", "gpu"), ("memroy", "memory")])
def test_a_resource_that_is_nearly_a_known_one_is_guessed(make_tuner, asked, meant):
    with pytest.raises(InvalidInputError, match=f"asks for '{asked}'.*Did you mean '{meant}'"):
        make_tuner(tune.with_resources(noop, {asked: 1})).fit()
