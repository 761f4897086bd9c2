"""When trials are answered: at once if only our own loggers are told, else after every callback has had its say."""

import time

import holdfast as tune
from holdfast.callbacks import CSVLoggerCallback, JsonLoggerCallback
from holdfast.controller import loop as loop_module
from holdfast.controller.callback_edge import CallbackEdge
from holdfast.core import commands as cmd
from holdfast.trainable.spool_writer import MAX_SPOOL_INTERVAL_S

ANSWERED, TOLD = "answered", "told"


def train(config):
    for step in range(3):
        time.sleep(2 * MAX_SPOOL_INTERVAL_S)  # those that come faster need not wait at all
        tune.report({"step": step})


class Quiet(tune.Callback):
    pass


class OwnJson(JsonLoggerCallback):
    """A user's subclass may do more than write."""


def order_of(tmp_path, monkeypatch, callbacks):
    """In which order things happened to reports, as a set of adjacent pairs."""
    happened = []
    tell, carry_out = CallbackEdge.reported, loop_module.Controller._carry_out

    def reported(self, event):
        happened.append(TOLD)
        tell(self, event)

    def carried_out(self, command):
        if type(command).__name__ == "Reply":
            happened.append(ANSWERED)
        carry_out(self, command)

    monkeypatch.setattr(CallbackEdge, "reported", reported)
    monkeypatch.setattr(loop_module.Controller, "_carry_out", carried_out)
    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    run_config = tune.RunConfig(storage_path=str(tmp_path), verbose=0, callbacks=callbacks)
    tune.Tuner(train, run_config=run_config).fit()
    assert len(happened) == 6
    return {tuple(happened[at : at + 2]) for at in range(0, 6, 2)}


def test_a_trial_goes_on_while_result_files_are_written(tmp_path, monkeypatch):
    callbacks = [JsonLoggerCallback(), CSVLoggerCallback()]
    assert order_of(tmp_path, monkeypatch, callbacks) == {(ANSWERED, TOLD)}


def test_one_answer_holds_for_all_reports_before_it():
    sent = []
    controller = loop_module.Controller.__new__(loop_module.Controller)
    controller._carry_out = sent.append
    go = [cmd.Reply(n, 1, ordinal, ahead=64) for n, ordinal in ((0, 1), (0, 2), (1, 1), (0, 3))]
    stop = [cmd.Reply(0, 1, ordinal, "stop") for ordinal in (4, 5)]
    halt = cmd.Halt(0, 1)
    controller._dispatch([])
    controller._dispatch([*go, *stop, halt])
    assert sent == [go[1], go[2], go[3], stop[1], halt]


def test_a_trial_waits_for_callbacks_of_the_user(tmp_path, monkeypatch):
    assert order_of(tmp_path, monkeypatch, [JsonLoggerCallback(), Quiet()]) == {(TOLD, ANSWERED)}


def test_a_trial_waits_for_loggers_of_the_user(tmp_path, monkeypatch):
    assert order_of(tmp_path, monkeypatch, [OwnJson()]) == {(TOLD, ANSWERED)}
