"""When trials are answered: at once if only our own loggers are told, else after every callback has had its say."""

import holdfast as tune
from holdfast.callbacks import CSVLoggerCallback, JsonLoggerCallback
from holdfast.controller import loop as loop_module
from holdfast.controller.notify import Notifier

ANSWERED, TOLD = "answered", "told"


def train(config):
    for step in range(3):
        tune.report({"step": step})


class Quiet(tune.Callback):
    pass


class OwnJson(JsonLoggerCallback):
    """A user's subclass may do more than write."""


def order_of(tmp_path, monkeypatch, callbacks):
    """In which order things happened to reports, as a set of adjacent pairs."""
    happened = []
    tell, carry_out = Notifier._reported, loop_module.Controller._carry_out

    def reported(self, event, results):
        happened.append(TOLD)
        tell(self, event, results)

    def carried_out(self, command):
        if type(command).__name__ == "Reply":
            happened.append(ANSWERED)
        carry_out(self, command)

    monkeypatch.setitem(Notifier.after_turn.__globals__["_TELL"], loop_module.ev.Reported, reported)
    monkeypatch.setattr(loop_module.Controller, "_carry_out", carried_out)
    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    run_config = tune.RunConfig(storage_path=str(tmp_path), verbose=0, callbacks=callbacks)
    tune.Tuner(train, run_config=run_config).fit()
    assert len(happened) == 6
    return {tuple(happened[at : at + 2]) for at in range(0, 6, 2)}


def test_a_trial_goes_on_while_result_files_are_written(tmp_path, monkeypatch):
    callbacks = [JsonLoggerCallback(), CSVLoggerCallback()]
    assert order_of(tmp_path, monkeypatch, callbacks) == {(ANSWERED, TOLD)}


def test_a_trial_waits_for_callbacks_of_the_user(tmp_path, monkeypatch):
    assert order_of(tmp_path, monkeypatch, [JsonLoggerCallback(), Quiet()]) == {(TOLD, ANSWERED)}


def test_a_trial_waits_for_loggers_of_the_user(tmp_path, monkeypatch):
    assert order_of(tmp_path, monkeypatch, [OwnJson()]) == {(TOLD, ANSWERED)}
