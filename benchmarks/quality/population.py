"""Population-based training on the toy problem of its paper: schedules that change on the way, against fixed ones."""

from __future__ import annotations

import statistics
from typing import Any

from holdfast.schedulers import create_scheduler
from holdfast.space import choice, sample_from
from holdfast.testing.virtual import VirtualExperiment

STEPS, RATE, START = 400, 0.01, 0.9
MEMBERS = 4
KILL_EVERY = 100


def toy(config: dict[str, Any], step: int, state: Any) -> tuple[float, dict[str, Any], Any] | None:
    """The objective is 1.2 - t0^2 - t1^2, but training follows the gradient of 1.2 - h0 t0^2 - h1 t1^2."""
    if step > STEPS:
        return None
    t0, t1 = state or (START, START)
    t0, t1 = t0 - 2 * RATE * config["h0"] * t0, t1 - 2 * RATE * config["h1"] * t1
    return 1.0, {"q": 1.2 - t0 * t0 - t1 * t1}, (t0, t1)


def fixed(h0: float, h1: float) -> float:
    """What a configuration that never changes reaches."""
    state: Any = None
    for step in range(1, STEPS + 1):
        outcome = toy({"h0": h0, "h1": h1}, step, state)
        assert outcome is not None
        _, metrics, state = outcome
    return float(metrics["q"])


def play(seed: int, **more: Any) -> float:
    """The best of a population whose members train either t0 or t1 at a time."""
    points = VirtualExperiment(
        curve=toy,
        space={"h0": choice([0, 1]), "h1": sample_from(lambda config: 1 - config["h0"])},
        scheduler=lambda: create_scheduler(
            "pbt",
            time_attr="training_iteration",
            perturbation_interval=4,
            hyperparam_mutations={"h0": [0, 1]},
            custom_explore_fn=one_at_a_time,
            synch=True,  # all have the same score at first, and nobody falls behind: only then are equals compared
        ),
        num_samples=MEMBERS,
        slots=MEMBERS,
        metric="q",
        mode="max",
        seed=seed,
        **more,
    ).run()
    return max(point.metrics["q"] for point in points)


def one_at_a_time(config: dict[str, Any]) -> dict[str, Any]:
    """A member trains one of the two, as in the paper: that is why no fixed choice can solve the problem."""
    return {**config, "h1": 1 - config["h0"]}


def run(quick: bool) -> dict[str, Any]:
    """What PBT reaches over seeds, and what fixed choices do."""
    seeds = 5 if quick else 20
    reached = [play(seed) for seed in range(seeds)]
    killed = [play(seed, kill_every=KILL_EVERY) for seed in range(min(seeds, 5))]
    return {
        "toy": [
            {"who": "fixed h0=1, h1=0", "q": fixed(1, 0)},
            {"who": "fixed h0=0, h1=1", "q": fixed(0, 1)},
            {"who": f"PBT, {MEMBERS} members, median of {seeds} seeds", "q": statistics.median(reached)},
            {"who": "PBT, worst seed", "q": min(reached)},
            {"who": f"PBT, driver killed every {KILL_EVERY} reports, worst seed", "q": min(killed)},
        ]
    }
