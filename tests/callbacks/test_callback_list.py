"""The hooks and the list that calls them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from callback_world import World

from holdfast.callbacks import (
    Callback,
    CallbackList,
    CSVLoggerCallback,
    JsonLoggerCallback,
    LoggerCallback,
    TBXLoggerCallback,
    callbacks_from_paths,
    default_callbacks,
)
from holdfast.callbacks.file_writer import FileWriter
from holdfast.config.run import CALLBACK_HOOKS


class Recorder(Callback):
    """Writes down which hooks were called with what."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __getattribute__(self, name: str) -> Any:
        if name in CALLBACK_HOOKS:
            return lambda **arguments: self.calls.append((name, arguments))
        return super().__getattribute__(name)


class NeedsNothing(Callback):
    """Can be made from its name alone."""


def needs_something(argument: int) -> None:
    """Cannot."""


def test_every_hook_of_the_contract_exists_and_accepts_further_arguments() -> None:
    for hook in CALLBACK_HOOKS:
        parameters = inspect.signature(getattr(Callback, hook)).parameters
        assert parameters["info"].kind is inspect.Parameter.VAR_KEYWORD
    assert {"on_trial_restore", "on_checkpoint", "on_trial_recover"} <= set(CALLBACK_HOOKS)


def test_hooks_are_called_by_keyword_in_the_order_of_the_list() -> None:
    order: list[str] = []

    class Named(Callback):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_step_end(self, iteration: int, trials: Any, **info: Any) -> None:
            order.append(f"{self.name}{iteration}")

    CallbackList([Named("a"), Named("b")]).call("on_step_end", iteration=3, trials=[])
    assert order == ["a3", "b3"]


@pytest.mark.parametrize("hook", CALLBACK_HOOKS)
def test_a_hook_reaches_whoever_overrides_it(hook: str) -> None:
    recorder = Recorder()
    callbacks = CallbackList([Callback(), recorder])
    assert callbacks.wants(hook)
    callbacks.call(hook, iteration=1)
    assert recorder.calls == [(hook, {"iteration": 1})]


def test_hooks_that_nobody_overrides_are_not_wanted() -> None:
    callbacks = CallbackList([Callback(), LoggerCallback()])
    assert not any(callbacks.wants(hook) for hook in CALLBACK_HOOKS)


def test_a_logger_is_called_for_the_methods_that_it_overrides(tmp_path: Path) -> None:
    calls: list[Any] = []

    class Mine(LoggerCallback):
        def log_trial_restore(self, trial: Any) -> None:
            calls.append(("restore", trial))

        def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
            calls.append(("result", iteration, result))

        def log_trial_end(self, trial: Any, failed: bool = False) -> None:
            calls.append(("end", failed))

    world = World(tmp_path)
    trial = world.create()
    callbacks = CallbackList([Mine()])
    wanted = {hook for hook in CALLBACK_HOOKS if callbacks.wants(hook)}
    assert wanted == {"on_trial_restore", "on_trial_result", "on_trial_complete", "on_trial_error"}
    about = {"iteration": 1, "trials": world.trials, "trial": trial}
    callbacks.call("on_trial_start", **about)
    callbacks.call("on_trial_restore", **about)
    callbacks.on_trial_result(**about, result={"x": 1})
    callbacks.call("on_trial_complete", **about)
    callbacks.call("on_trial_error", **about)
    assert calls == [("restore", trial), ("result", 1, {"x": 1}), ("end", False), ("end", True)]


def test_an_exception_in_a_hook_reaches_the_caller() -> None:
    class Broken(Callback):
        def on_step_begin(self, iteration: int, trials: Any, **info: Any) -> None:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        CallbackList([Broken()]).call("on_step_begin", iteration=1, trials=[])


def test_state_is_kept_by_position(tmp_path: Path) -> None:
    class Counts(Callback):
        def __init__(self) -> None:
            self.count = 0

        def get_state(self) -> dict[str, Any] | None:
            return {"count": self.count}

        def set_state(self, state: dict[str, Any]) -> None:
            self.count = state["count"]

    first = Counts()
    first.count = 5
    state = CallbackList([Callback(), first]).get_state()
    assert state == {1: {"count": 5}}
    again = Counts()
    CallbackList([Callback(), again]).set_state({**state, 7: {"count": 1}})
    assert again.count == 5


def test_files_get_results_before_a_users_callback_can_change_them(tmp_path: Path) -> None:
    class Meddler(Callback):
        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            result["loss"] = "changed"

    world = World(tmp_path)
    world.create()
    trial = world.start()
    writer = FileWriter()
    callbacks = CallbackList([Meddler(), JsonLoggerCallback()], writer)
    callbacks.on_trial_result(1, world.trials, trial, world.report(loss=1))
    assert writer.close()
    assert '"loss":1' in Path(trial.path, "result.json").read_text()


def test_default_loggers_are_added_unless_given_or_disabled() -> None:
    kinds = [type(callback) for callback in default_callbacks(False, None)]
    assert kinds == [CSVLoggerCallback, JsonLoggerCallback, TBXLoggerCallback]

    class MyJson(JsonLoggerCallback):
        pass

    given = [NeedsNothing(), MyJson()]
    kinds = [type(callback) for callback in default_callbacks(False, given)]
    assert kinds == [NeedsNothing, MyJson, CSVLoggerCallback, TBXLoggerCallback]
    assert default_callbacks(True, given) == given


def test_callbacks_are_made_from_their_names() -> None:
    name = f"{__name__}.NeedsNothing"
    made = callbacks_from_paths(f"{name}, {name},")
    assert [type(callback).__name__ for callback in made] == ["NeedsNothing", "NeedsNothing"]
    assert callbacks_from_paths(()) == []


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("no_such_module_here.Cls", "ModuleNotFoundError"),
        (f"{__name__}.NoSuchClass", "AttributeError"),
        (f"{__name__}.needs_something", "TypeError"),
        ("builtins.dict", "not a Callback"),
        ("JustAName", "no module is named"),
    ],
)
def test_a_callback_that_cannot_be_made_is_a_value_error_that_names_it(path: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        callbacks_from_paths(path)
    assert path in str(caught.value)
    assert "unset RAY_TUNE_CALLBACKS" in str(caught.value)
