"""A callback, stopper or function that cannot be stored is named, with the way to what is to blame inside it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from api_trainables import noop

import holdfast as tune
from holdfast.callbacks import LoggerCallback
from holdfast.errors import NotSerializableError
from holdfast.schedulers import FIFOScheduler
from holdfast.search import Searcher
from holdfast.stopper import MaximumIterationStopper

LOCK = threading.Lock()


class Client:
    def __init__(self) -> None:
        self.pool = {"conn": [threading.Lock()]}


class Notifies(tune.Callback):
    def __init__(self) -> None:
        self.client = Client()


class Logs(LoggerCallback):
    def __init__(self) -> None:
        self.lines = (line for line in "abc")


class Judges(tune.Stopper):
    def __init__(self) -> None:
        self.guard = threading.Lock()

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return False


class Searches(Searcher):
    def __init__(self) -> None:
        super().__init__("score", "max")
        self.guard = threading.Lock()


class Schedules(FIFOScheduler):
    def __init__(self) -> None:
        self.guard = threading.Lock()


class Reports(tune.CLIReporter):
    def __init__(self) -> None:
        super().__init__()
        self.guard = threading.Lock()


CASES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "callback": (
        {"callbacks": [tune.Callback(), Notifies()]},
        "RunConfig.callbacks[1] (Notifies) is not serializable",
        "RunConfig.callbacks[1].client.pool['conn'][0]: lock",
        "in setup()",
    ),
    "logger": (
        {"callbacks": [Logs()]},
        "RunConfig.callbacks[0] (Logs) is not serializable",
        "RunConfig.callbacks[0].lines: generator",
        "in setup()",
    ),
    "stopper": (
        {"stop": Judges()},
        "RunConfig.stop (Judges) is not serializable",
        "RunConfig.stop.guard: lock",
        "__getstate__()",
    ),
    "one of many stoppers": (
        {"stop": [MaximumIterationStopper(3), Judges()]},
        "RunConfig.stop[1] (Judges) is not serializable",
        "RunConfig.stop[1].guard: lock",
        "__getstate__()",
    ),
    "stop function": (
        {"stop": lambda trial_id, result: LOCK.locked()},
        "RunConfig.stop (<lambda>) is not serializable",
        "RunConfig.stop, global variable 'LOCK': lock",
        "inside the function",
    ),
    "reporter": (
        {"progress_reporter": Reports()},
        "RunConfig.progress_reporter (Reports) is not serializable",
        "RunConfig.progress_reporter.guard: lock",
        "in setup()",
    ),
    "searcher": (
        {"search_alg": Searches()},
        "TuneConfig.search_alg (Searches) is not serializable",
        "TuneConfig.search_alg.guard: lock",
        "__getstate__()",
    ),
    "scheduler": (
        {"scheduler": Schedules()},
        "TuneConfig.scheduler (Schedules) is not serializable",
        "TuneConfig.scheduler.guard: lock",
        "__getstate__()",
    ),
    "name creator": (
        {"trial_name_creator": lambda trial: str(LOCK)},
        "TuneConfig.trial_name_creator (<lambda>) is not serializable",
        "TuneConfig.trial_name_creator, global variable 'LOCK': lock",
        "inside the function",
    ),
    "sample_from": (
        {"space": {"net": {"width": tune.sample_from(lambda config: LOCK.locked())}}},
        "param_space['net']['width'] (Function) is not serializable",
        "param_space['net']['width'].func, global variable 'LOCK': lock",
        "inside the function",
    ),
}


@pytest.mark.parametrize(("given", "owner", "way", "advice"), CASES.values(), ids=CASES)
def test_what_cannot_be_stored_is_named_with_the_way_to_it(make_tuner, storage, given, owner, way, advice):
    with pytest.raises(NotSerializableError) as caught:
        make_tuner(noop, **given)
    first, second, third = str(caught.value).splitlines()
    assert first.startswith(owner)
    assert second.strip() == way
    assert advice in third
    assert not storage.exists() or not list(storage.iterdir())


class RefusesToBePickled(tune.Callback):
    def __reduce__(self) -> Any:
        raise RuntimeError("not me")


def test_an_object_that_refuses_by_itself_is_named_alone(make_tuner):
    with pytest.raises(NotSerializableError, match=r"RunConfig\.callbacks\[0\] \(RefusesToBePickled\).*not me"):
        make_tuner(noop, callbacks=[RefusesToBePickled()])


class OpensInSetup(tune.Callback):
    def setup(self, **info: Any) -> None:
        self.lock = threading.Lock()

    def on_trial_complete(self, **info: Any) -> None:
        assert self.lock.acquire(timeout=1)


def test_what_is_made_in_setup_needs_no_pickle(make_tuner, storage):
    assert make_tuner(noop, callbacks=[OpensInSetup()]).fit().num_errors == 0
    assert tune.Tuner.restore(storage / "exp", param_space={}).fit().num_errors == 0
