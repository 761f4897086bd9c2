"""Searches end to end: an experiment that is killed all the time tries what it would have tried undisturbed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from experiment_tools import Drivers
from searcher_experiments import SEARCHES, TRIALS
from warm_drivers import WarmDrivers

import holdfast as tune
from holdfast.core import events as ev
from holdfast.journal.reader import read_journal
from holdfast.search import Searcher

Make = Callable[..., tune.Tuner]

KILL_EVERY = 10  # writes of the journal; each has one event or several
MAX_LIVES = 60


def events(root: Path) -> list[ev.AnyEvent]:
    return [ev.decode(payload) for _, payload in read_journal(root)]


def configurations(root: Path) -> bytes:
    """All configurations that became trials, in order."""
    return msgspec.msgpack.encode([event.config for event in events(root) if isinstance(event, ev.TrialCreated)])


def endings(root: Path) -> list[tuple[int, str]]:
    """How trials have ended, in order."""
    ends = (ev.TrialTerminated, ev.TrialErrored)
    return [(event.n, type(event).__name__) for event in events(root) if isinstance(event, ends)]


def live(drivers: Drivers, root: Path, name: str, modules: Path | None = None, **environment: str) -> tuple[int, str]:
    """One driver's life: exit code and output; ``modules`` is where it lists what it had imported."""
    code = f"import searcher_experiments\nsearcher_experiments.live({str(root)!r}, {name!r})\n"
    if modules is not None:
        code += f"import warm_drivers\nwarm_drivers.list_modules({str(modules)!r})\n"
    return drivers.start(code, **environment).end()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "snapshots"), [*((name, False) for name in SEARCHES), ("tpe", True), ("cma-es", True), ("sobol", True)]
)
def test_an_experiment_killed_every_few_events_tries_the_same_configurations(
    drivers: Drivers, storage: Path, tmp_path: Path, name: str, snapshots: bool
) -> None:
    """The driver that nobody kills is a fresh process: were a choice to depend on the order of a set, it would show."""
    pytest.importorskip(SEARCHES[name].needs)
    whole, killed, modules = storage / "whole", storage / "killed", tmp_path / "modules"
    code, output = live(drivers, whole, name, modules)
    assert code == 0, output
    assert len(endings(whole)) == TRIALS

    crash = {"HOLDFAST_CRASH": f"journal.after_write:{KILL_EVERY}"}
    if snapshots:
        crash["TUNE_GLOBAL_CHECKPOINT_S"] = "0"
    lives = 0
    with WarmDrivers(tmp_path, name, modules) as warm:
        while True:
            code, output = warm.live(killed, **crash)
            lives += 1
            assert code in (0, -9), output
            assert "does not give the same suggestions" not in output, output
            if code == 0:
                break
            assert lives < MAX_LIVES
    assert lives > 4
    assert configurations(killed) == configurations(whole)
    assert endings(killed) == endings(whole)


def test_a_search_killed_in_the_middle_goes_on_exactly(drivers: Drivers, storage: Path) -> None:
    whole, killed = storage / "whole", storage / "killed"
    assert live(drivers, whole, "tpe")[0] == 0
    assert live(drivers, killed, "tpe", HOLDFAST_CRASH="journal.after_write:30")[0] == -9
    assert 0 < len(endings(killed)) < TRIALS
    assert live(drivers, killed, "tpe")[0] == 0
    assert configurations(killed) == configurations(whole)


def test_limiters_do_not_wait_for_trials_that_a_restore_gave_up(make_tuner: Any, root: Path, tmp_path: Path) -> None:
    """Its one live trial is skipped, never reports again, and must not hold the others up."""
    from api_trainables import Crash, Crashed

    def train(config: dict[str, Any]) -> None:
        for step in range(3):
            tune.report({"loss": config["x"] + step})

    limiter = tune.search.ConcurrencyLimiter(tune.search.SobolSearch(), 1)
    tuner = make_tuner(
        train,
        {"x": tune.uniform(0, 1)},
        num_samples=4,
        search_alg=limiter,
        metric="loss",
        mode="min",
        callbacks=[Crash(tmp_path, 2)],
    )
    with pytest.raises(Crashed):
        tuner.fit()
    grid = tune.Tuner.restore(str(root), train, resume_unfinished=False).fit()
    assert len(grid) == 4
    assert sum(result.metrics.get("training_iteration") == 3 for result in grid) == 3


class Clueless(Searcher):
    def __init__(self) -> None:
        super().__init__("loss", "min")

    def set_search_properties(self, *_: Any, **__: Any) -> bool:
        return True

    def suggest(self, trial_id: str) -> dict[str, Any]:
        raise KeyError("no idea")

    def on_trial_complete(self, *_: Any, **__: Any) -> None:
        """Never called."""


@pytest.mark.parametrize("verbose", [0, 1])
def test_a_search_that_fails_at_its_start_is_an_error_and_no_interruption(
    make_tuner: Make, verbose: int, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyError, match="no idea"):
        make_tuner(lambda config: None, {"x": tune.uniform(0, 1)}, search_alg=Clueless(), verbose=verbose).fit()
    said = caplog.text + capsys.readouterr().out
    assert re.search(r"exp ended with an error.*the search failed: KeyError: 'no idea'", said)
    assert "interrupted" not in said
    assert "unfinished: 0" not in said
