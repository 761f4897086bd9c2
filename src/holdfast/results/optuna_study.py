"""An experiment as an Optuna study, for Optuna's plots, importances and dashboard.

Owns how a trial becomes one of Optuna's: true times, intermediate values, states (a trial that a scheduler stopped
early is PRUNED, one in ERROR is FAIL) and distributions. Those are of the search space, as ``spec.json`` has it. What
it does not tell (functions, normally distributed numbers, experiments of older versions) is taken from the values that
were tried. Must never change the experiment, or import Optuna before it is asked for.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from holdfast.core.retention import lookup
from holdfast.core.state import Status, Trial
from holdfast.errors import InvalidInputError
from holdfast.results.best import check_mode, default_metric
from holdfast.results.early_stops import was_stopped_early
from holdfast.results.history import History
from holdfast.results.output_file import written_whole
from holdfast.search.optuna_space import load_optuna, multiple_of
from holdfast.space.exact import shown

LOG_SCALE = 100.0
"""Positive numbers whose largest is so many times the smallest are taken for a logarithmic scale."""
STEP_NOISE = 1e-8
"""How far from a multiple of its step Optuna lets a number be, in steps."""


def make_study(
    history: History,
    metric: str | None = None,
    mode: str | None = None,
    *,
    storage: Any = None,
    study_name: str | None = None,
) -> Any:
    """The study; see ``ResultGrid.to_optuna_study``."""
    metric, mode = metric or default_metric(history), mode or history.info.mode
    for name, value in (("metric", metric), ("mode", mode)):
        if not value:
            raise InvalidInputError(
                f"An Optuna study needs an objective, and the experiment names none: pass {name}=... (--{name})."
            )
    assert metric is not None
    optuna = load_optuna()
    study = optuna.create_study(
        storage=storage,
        study_name=study_name or history.info.name,
        direction="minimize" if check_mode(mode) == "min" else "maximize",
    )
    study.set_user_attr("experiment", history.shown)
    study.set_user_attr("metric", metric)
    trials = history.state.trials
    params = [_params(history, trial) for trial in trials]
    distributions = _distributions(optuna.distributions, params, history.spec.space or {})
    for trial, chosen in zip(trials, params, strict=True):
        study.add_trial(_frozen(optuna, history, trial, chosen, distributions, metric))
    return study


def write_study(history: History, out: Path, metric: str | None = None, mode: str | None = None) -> int:
    """Write the study as a journal file of Optuna, which appears whole or not at all; returns the number of trials.

    Raises:
        InvalidInputError: The experiment has no objective, or Optuna is missing.
        StorageError: The file cannot be written.
    """
    try:
        optuna = load_optuna()
    except ImportError:
        raise InvalidInputError(
            "An Optuna study needs optuna, which is not installed. Type: pip install 'holdfast[optuna]'"
        ) from None
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with written_whole(out) as file:
        try:
            file.touch()
            backend = optuna.storages.journal.JournalFileBackend(str(file))
            make_study(history, metric, mode, storage=optuna.storages.JournalStorage(backend))
        finally:
            optuna.logging.set_verbosity(level)
            with contextlib.suppress(OSError):  # Optuna's lock, if it was interrupted
                file.with_name(file.name + ".lock").unlink(missing_ok=True)
    return len(history.state.trials)


def _frozen(
    optuna: Any, history: History, trial: Trial, params: dict[str, Any], known: dict[str, Any], metric: str
) -> Any:
    intermediate = _intermediate(history, trial, metric)
    value = _finite(lookup(history.last(trial), metric)) if trial.metrics is not None else None
    state = _state(optuna.trial.TrialState, history, trial, value)
    final = state.is_finished()
    attributes = {"trial_id": trial.id, "name": history.name(trial), "status": trial.status, "reason": trial.reason}
    if trial.error is not None:
        attributes["error"] = f"{trial.error.type}: {trial.error.message}"
    waiting = state == optuna.trial.TrialState.WAITING
    return optuna.trial.FrozenTrial(
        number=trial.n,
        trial_id=trial.n,
        state=state,
        value=value if final and state != optuna.trial.TrialState.FAIL else None,
        datetime_start=None if waiting else _moment(trial.started_at or trial.created_at),
        datetime_complete=_moment(trial.ended_at or trial.last_at or trial.created_at) if final else None,
        params={} if waiting else params,
        distributions={} if waiting else {name: known[name] for name in params},
        user_attrs=attributes,
        system_attrs={"fixed_params": params} if waiting else {},
        intermediate_values=intermediate,
    )


def _state(states: Any, history: History, trial: Trial, value: float | None) -> Any:
    if trial.status == Status.ERROR:
        return states.FAIL
    if trial.status != Status.TERMINATED:
        return states.RUNNING if trial.rows else states.WAITING
    if value is None:
        return states.FAIL  # Optuna wants a number of every trial that is complete
    return states.PRUNED if was_stopped_early(history.state, trial) else states.COMPLETE


def _intermediate(history: History, trial: Trial, metric: str) -> dict[int, float]:
    found: dict[int, float] = {}
    for number, row in enumerate(history.rows(trial.n), start=1):
        value = lookup(row, metric)
        step = row.get("training_iteration")
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[step if isinstance(step, int) and step >= 0 else number] = float(value)
    return found


def _finite(value: Any) -> float | None:
    """The number, if Optuna takes it as an objective: anything but NaN."""
    if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value):
        return None
    return float(value)


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at)  # Optuna's times are local ones


def _params(history: History, trial: Trial) -> dict[str, Any]:
    """What the search chose, as Optuna can hold it: text, numbers, True, False and None."""
    chosen = history.view(trial).evaluated_params
    return {name: _plain(value) for name, value in chosen.items()}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value
    return str(shown(value))


def _distributions(kinds: Any, params: Sequence[dict[str, Any]], space: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    values: dict[str, list[Any]] = {}
    for chosen in params:
        for name, value in chosen.items():
            values.setdefault(name, []).append(value)
    return {
        name: _declared(kinds, space.get(name, {}), found) or _guessed(kinds, found, space.get(name, {}).get("kind"))
        for name, found in values.items()
    }


def _declared(kinds: Any, about: Mapping[str, Any], values: list[Any]) -> Any:
    """The distribution that the search space tells of; None if it tells of none, or values do not fit into it."""
    kind = about.get("kind")
    if kind in ("choice", "grid") and "more" not in about:
        known = {(type(option), option): option for option in about["options"]}
        if all((type(value), value) in known for value in values):
            return kinds.CategoricalDistribution(tuple(known.values()))
    elif kind in ("int", "float") and None not in (about["lower"], about["upper"]):
        wanted = (int,) if kind == "int" else (int, float)
        if all(type(value) in wanted for value in values):
            return (_whole if kind == "int" else _real)(kinds, about, values)
    return None


def _whole(kinds: Any, about: Mapping[str, Any], values: list[int]) -> Any:
    step, is_log = int(about.get("step", 1)), about["log"]
    low, high = about["lower"], about["upper"]
    if "step" in about:
        low, high = -(-low // step) * step, high // step * step
    else:
        high -= 1
    if is_log or any(not low <= value <= high or (value - low) % step for value in values):
        step = 1  # Optuna has no steps on a logarithmic scale; and what was tried must fit
    low, high = min(low, *values), max(high, *values)
    return kinds.IntDistribution(low, high, log=is_log and low > 0, step=step)


def _real(kinds: Any, about: Mapping[str, Any], values: list[float]) -> Any:
    step, is_log = about.get("step"), about["log"]
    low, high = float(about["lower"]), float(about["upper"])
    if step and not is_log:
        low, high = multiple_of(low, step), multiple_of(high, step)
        steps = [(value - low) / step for value in values]
        if low < high and all(low <= value <= high for value in values) and all(map(_is_whole, steps)):
            return kinds.FloatDistribution(low, high, step=step)
    low, high = float(min(low, *values)), float(max(high, *values))
    return kinds.FloatDistribution(low, high, log=is_log and low > 0)


def _is_whole(number: float) -> bool:
    return abs(number - round(number)) < STEP_NOISE


def _guessed(kinds: Any, values: list[Any], kind: str | None) -> Any:
    """A distribution that has all of these values."""
    types = {type(value) for value in values}
    if not types <= {int, float}:
        # Of equal options Optuna would take the first: True for 1.
        options = list({(type(value), value): value for value in values}.values())
        return kinds.CategoricalDistribution(sorted(options, key=lambda value: (str(type(value)), str(value))))
    low, high = min(values), max(values)
    is_log = kind != "normal" and low > 0 and high / low >= LOG_SCALE
    if types == {int}:
        return kinds.IntDistribution(low, high, log=is_log)
    return kinds.FloatDistribution(float(low), float(high), log=is_log)
