"""HyperBand in a real experiment: trials of a band exist before there is room for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import holdfast as tune
from holdfast.schedulers import HyperBandScheduler


def train(config: dict[str, Any]) -> None:
    for step in range(1, 82):
        tune.report({"loss": config["x"] / step})


class Order(tune.Callback):
    """Notes in which order trials start."""

    def __init__(self) -> None:
        self.started: list[str] = []

    def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.started.append(trial.trial_id.rpartition("_")[2])


def test_the_widest_bracket_runs_first_although_it_is_filled_last(make_tuner: Callable[..., tune.Tuner]) -> None:
    order = Order()
    make_tuner(
        train,
        {"x": tune.uniform(0, 1)},
        num_samples=5 + 8 + 15 + 34 + 81,
        metric="loss",
        mode="min",
        scheduler=HyperBandScheduler(max_t=81, reduction_factor=3),
        stop={"training_iteration": 1},
        callbacks=[order],
        engine=tune.LocalEngine(cpus=1),
    ).fit()
    widest, next_one = range(62, 143), range(28, 62)
    assert order.started[: 81 + 34] == [f"{n:05d}" for n in (*widest, *next_one)]
