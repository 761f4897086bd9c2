"""Search with Ax: Sobol points, then Bayesian optimisation by BoTorch.

Owns the way from a space to Ax's and back, and the differences between Ax's two clients. Must never import Ax before
somebody makes an ``AxSearch``.
"""

from __future__ import annotations

import inspect
import logging
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.retention import lookup
from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.messages.warn import warn_user
from holdfast.schedulers.base import number
from holdfast.search.adapter import ChosenPoint, LibrarySearcher, Raw, load_library
from holdfast.search.axes import Axis, refuse
from holdfast.search.replayable import plain
from holdfast.search.searcher import Suggestion
from holdfast.space.domains import Categorical, Domain, Float, Integer

LATER = ("DataRequiredError", "MaxParallelismReachedException")
"""Ax's errors that mean "not before more trials have ended"."""


class AxSearch(LibrarySearcher):
    """Bayesian optimisation with BoTorch, by Ax.

    Normally distributed domains cannot be used. Quantized ones are counted in steps, so constraints on them cannot be
    used either.

    Args:
        space: The search space, if ``param_space`` has none: domains, or a list of dicts as ``AxClient`` takes them.
        metric: What to optimise; None takes the experiment's.
        mode: "min" or "max"; None takes the experiment's.
        points_to_evaluate: Configurations to try first. What they leave out is drawn at random.
        parameter_constraints: Inequalities between parameters, ``"x3 >= x4"`` or ``"x3 + x4 >= 2"``. Points to evaluate
            are not checked.
        outcome_constraints: Inequalities that other metrics should fulfil, ``"m1 <= 3."``. Every result must have them.
        ax_client: A client of Ax's (``ax.api.client.Client``, or the older ``AxClient``). If its experiment is set up
            already, that has the space, the metric and the mode.
        ax_kwargs: Arguments of ``Client`` and of its ``configure_generation_strategy``, such as
            ``initialization_budget``; and ``verbose_logging``. Ignored if there is an ``ax_client``.

    A trial that failed, or one of whose metrics is missing, NaN or infinite, is told to Ax as failed.

    Durability: continues exactly where it was.

    Raises:
        ImportError: Ax is not installed.
        InvalidInputError: The arguments do not go together, or the space has something that Ax has nothing like.

    Example:
        >>> from holdfast import uniform
        >>> search = AxSearch({"x": uniform(0, 1)}, metric="loss", mode="min")  # doctest: +SKIP
    """

    def __init__(
        self,
        space: Any = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        parameter_constraints: Sequence[str] | None = None,
        outcome_constraints: Sequence[str] | None = None,
        ax_client: Any = None,
        **ax_kwargs: Any,
    ) -> None:
        _sorted_out({key: value for key, value in ax_kwargs.items() if key != "verbose_logging"})
        made = _experiment_of(ax_client)
        if made is not None:
            metric, mode = _objective_of(made, metric, mode)
            if space is not None or parameter_constraints or outcome_constraints:
                raise InvalidInputError(
                    "The experiment of `ax_client` is set up already, with a space and constraints of its own. Leave "
                    "`space` and constraints out, or give a new client."
                )
            space = made.search_space
        elif space is not None:
            space = _domains(space)
        self._constraints = list(parameter_constraints or ())
        self._outcomes = list(outcome_constraints or ())
        self._client = ax_client
        self._arguments = ax_kwargs
        self._results: Mapping[str, Any] = {}  # of the trial that is being told
        super().__init__(space, metric, mode, points_to_evaluate, None)

    def _check_axis(self, axis: Axis) -> None:
        if axis.kind == "normal":
            instead = (
                "Use tune.uniform(...) there, or HyperOptSearch or OptunaSearch, which can search over every domain."
            )
            raise refuse(axis, "AxSearch", "a normal distribution", instead)
        for constraint in self._constraints if axis.step or axis.kind == "option" else ():
            if axis.name in re.split(r"[\s*+<>=-]+", constraint):
                raise InvalidInputError(
                    f"AxSearch cannot keep the constraint {constraint!r}: {axis.name!r} ({axis.domain!r}) is searched "
                    "by the number of steps, or of the option. Use tune.uniform(...) or tune.randint(...) there."
                )

    def _make(self, seed: int) -> None:
        if self._client is not None and getattr(self._client, "_random_seed", 0) is None:
            self._client._random_seed = seed
        if not self._arguments.pop("verbose_logging", False):
            _library("ax.utils.common.logger").set_ax_logger_levels(logging.WARNING)
        if self._parameters is None:
            return  # the client has an experiment already
        kinds = _library("ax.api.configs")
        made, strategy = _sorted_out(self._arguments)
        client = self._client or _library("ax.api.client").Client(**{"random_seed": seed, **made})
        client.configure_experiment(
            parameters=[_parameter(kinds, axis) for axis in self._searched], parameter_constraints=self._constraints
        )
        sign = "-" if self._mode == "min" else ""
        client.configure_optimization(objective=f"{sign}{self._metric}", outcome_constraints=self._outcomes)
        if strategy:
            client.configure_generation_strategy(**{"initialization_random_seed": seed, **strategy})
        self._client = client

    # --- asking

    def _ask(self) -> ChosenPoint | Suggestion:
        errors = _library("ax.exceptions.core")
        try:
            if self._is_old:
                raw, index = self._client.get_next_trial()
            else:
                ((index, raw),) = self._client.get_next_trials(max_trials=1).items()
        except errors.OptimizationComplete:
            return self.FINISHED
        except errors.AxError as error:
            if type(error).__name__ not in LATER:
                raise
            if self._open:
                return None
            warn_user(f"Ax needs more results before it continues, but no trial is left: {error} The search is over.")
            return self.FINISHED
        return ChosenPoint(index, dict(plain(raw)))

    @property
    def _is_old(self) -> bool:
        """Is it an ``AxClient``, which Ax will do without?"""
        return not hasattr(self._client, "mark_trial_failed")

    def _adopt(self, raw: Raw) -> int:
        if self._parameters is not None:
            raw = {axis.name: self._filled(raw)[axis.name] for axis in self._searched}
        attached = self._client.attach_trial(parameters=raw)
        return int(attached[1] if self._is_old else attached)

    # --- telling

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self._results = result or {}
        super().on_trial_complete(trial_id, result, error)
        self._results = {}

    def _tell(self, key: int, loss: float | None) -> None:
        experiment = _experiment_of(self._client)
        data: dict[str, float | None] = {str(self._metric): -loss if loss is not None and self._mode == "max" else loss}
        for name in sorted(experiment.optimization_config.metric_names - data.keys()):
            value = number(lookup(self._results, name))
            data[name] = value if value is not None and math.isfinite(value) else None
        if None not in data.values():
            self._client.complete_trial(trial_index=key, raw_data=data)
        elif self._is_old:
            self._client.log_trial_failure(trial_index=key)
        else:
            self._client.mark_trial_failed(trial_index=key)


def _experiment_of(client: Any) -> Any:
    """The experiment of a client, if it is set up."""
    if client is None or isinstance(client, _library("ax.api.client").Client):
        return getattr(client, "_maybe_experiment", None)
    try:
        return client.experiment
    except AssertionError:
        raise InvalidInputError(
            "The experiment of an AxClient must be set up: call its create_experiment(...). Or give an "
            "ax.api.client.Client, which takes the place of AxClient."
        ) from None
    except AttributeError:
        raise InvalidTypeError(f"`ax_client` must be an ax.api.client.Client, got {client!r}.") from None


def _objective_of(experiment: Any, metric: str | None, mode: str | None) -> tuple[str, str]:
    """What an experiment optimises."""
    if experiment.optimization_config is None or len(experiment.optimization_config.objective.metric_names) != 1:
        raise InvalidInputError(
            "The experiment of `ax_client` must have one objective: call configure_optimization(...)."
        )
    objective = experiment.optimization_config.objective
    found = objective.metric_names[0], "min" if objective.minimize else "max"
    if (metric or found[0], mode or found[1]) != found:
        raise InvalidInputError(
            f"The experiment of `ax_client` optimises {found[0]!r} with mode {found[1]!r}, but metric={metric!r} and "
            f"mode={mode!r} were given. Leave them out."
        )
    return found


def _parameter(kinds: Any, axis: Axis) -> Any:
    if axis.kind == "option":
        options = list(range(int(axis.upper) + 1))
        return kinds.ChoiceParameterConfig(name=axis.name, values=options, parameter_type="int", is_ordered=False)
    return kinds.RangeParameterConfig(
        name=axis.name,
        bounds=(axis.lower, axis.upper),
        parameter_type=axis.kind,
        scaling="log" if axis.log else "linear",
    )


def _domains(space: Any) -> Any:
    """A space in which the dicts that ``AxClient`` takes have become domains."""
    if isinstance(space, Mapping):
        return space
    if not isinstance(space, list | tuple) or not all(isinstance(each, Mapping) and "name" in each for each in space):
        raise InvalidInputError(f"`space` must be a dict of domains, or a list of dicts with a `name`, got {space!r}.")
    return {each["name"]: _domain(each) for each in space}


def _domain(given: Mapping[str, Any]) -> Domain | Any:
    match given:
        case {"type": "fixed", "value": value}:
            return value
        case {"type": "choice", "values": [*options]}:
            return Categorical(options).uniform()
        case {"type": "range", "bounds": [low, high]}:
            is_int = given.get("value_type") == "int" or (
                "value_type" not in given and isinstance(low, int) and isinstance(high, int)
            )
            domain = Integer(low, high + 1) if is_int else Float(low, high)
            return domain.loguniform() if given.get("log_scale") else domain.uniform()
    raise InvalidInputError(
        f"AxSearch does not know the parameter {dict(given)!r}. Write for example {{'name': 'x', 'type': 'range', "
        "'bounds': [0.0, 1.0]}."
    )


def _sorted_out(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of ``Client``, and those of its ``configure_generation_strategy``.

    Raises:
        InvalidInputError: One is of neither.
    """
    client = _library("ax.api.client").Client
    known = [inspect.signature(each).parameters for each in (client, client.configure_generation_strategy)]
    unknown = [key for key in arguments if key == "self" or not any(key in names for names in known)]
    if unknown:
        raise InvalidInputError(
            f"AxSearch does not take {unknown[0]!r}. There are {[*known[0], *list(known[1])[1:]]}; or set up a client "
            "and give it as ax_client."
        )
    made, strategy = ({key: value for key, value in arguments.items() if key in names} for names in known)
    return made, strategy


def _library(module: str) -> Any:
    return load_library(module, "AxSearch", "ax")
