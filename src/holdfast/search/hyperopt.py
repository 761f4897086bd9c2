"""Search with HyperOpt's Tree of Parzen Estimators.

Owns the way from a space to HyperOpt's and back, and HyperOpt's list of trials. Must never import HyperOpt before
somebody makes a ``HyperOptSearch``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import InvalidInputError
from holdfast.search.adapter import ChosenPoint, LibrarySearcher, Raw, load_library
from holdfast.search.axes import Axis
from holdfast.search.parameters import Parameters
from holdfast.search.replayable import plain
from holdfast.space.domains import Categorical, Domain

CANDIDATES = 24
"""How many draws from the good trials' distribution TPE takes the best of; HyperOpt's own default."""


class HyperOptSearch(LibrarySearcher):
    """Tree of Parzen Estimators, by HyperOpt.

    Every domain can be used. A choice whose options have domains of their own becomes a conditional space: TPE learns
    about a parameter only from trials in which it counted.

    Args:
        space: The search space, if ``param_space`` has none: domains, or a dict of HyperOpt's ``hp`` expressions.
        metric: What to optimise; None takes the experiment's.
        mode: "min" or "max"; None takes the experiment's.
        points_to_evaluate: Configurations to try first. What they leave out is drawn at random. For a space of
            HyperOpt's own: values by label, of a choice the number of the option.
        n_initial_points: How many trials are drawn at random before TPE begins.
        random_state_seed: Instead of the experiment's seed.
        gamma: Which share of the trials counts as good, between 0 and 1.

    A trial that failed, or whose metric is missing, NaN or infinite, counts as worse than any other.

    Durability: continues exactly where it was.

    Raises:
        ImportError: HyperOpt is not installed.
        InvalidInputError: The arguments do not go together.

    Example:
        >>> from holdfast import uniform
        >>> search = HyperOptSearch({"x": uniform(0, 1)}, metric="loss", mode="min", random_state_seed=1)
        >>> 0 <= search.suggest("a")["x"] <= 1
        True
    """

    _knows_dicts = True
    _seed_argument = "random_state_seed"

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        n_initial_points: int = 20,
        random_state_seed: int | None = None,
        gamma: float = 0.25,
    ) -> None:
        _library()
        if isinstance(n_initial_points, bool) or not isinstance(n_initial_points, int) or n_initial_points < 1:
            raise InvalidInputError(f"n_initial_points must be a whole number above 0, got {n_initial_points!r}.")
        if not isinstance(gamma, int | float) or not 0 < gamma < 1:
            raise InvalidInputError(f"gamma must be between 0 and 1, got {gamma!r}. HyperOpt's own default is 0.25.")
        if space is not None and not (isinstance(space, Mapping) and space):
            raise InvalidInputError(
                f"`space` must be a dict of domains or of hp expressions, got {space!r}. Write {{'name': expression}}."
            )
        super().__init__(space, metric, mode, points_to_evaluate, random_state_seed)
        self._n_initial_points = n_initial_points
        self._gamma = gamma
        self._domain: Any = None
        self._trials: Any = None

    def _make(self, seed: int) -> None:
        hyperopt = _library()
        space = self._own_space if self._parameters is None else _expressions(self._parameters.domains, self._axes)
        self._domain = hyperopt.base.Domain(_nothing, space)
        if not self._domain.params:
            raise InvalidInputError(f"The space of HyperOptSearch has nothing to choose: {space!r}.")
        self._trials = hyperopt.Trials()

    def _ask(self) -> ChosenPoint:
        tpe = _library("hyperopt.tpe")
        (number,) = self._trials.new_trial_ids(1)
        (document,) = tpe.suggest(
            [number],
            self._domain,
            self._trials,
            self._seed_for(2, number),
            n_startup_jobs=self._n_initial_points,
            n_EI_candidates=CANDIDATES,
            gamma=self._gamma,
            verbose=False,
        )
        self._insert(document)
        chosen = {label: values[0] for label, values in document["misc"]["vals"].items() if len(values)}
        return ChosenPoint(number, chosen)

    def _adopt(self, raw: Raw) -> int:
        (number,) = self._trials.new_trial_ids(1)
        misc = {"tid": number, "cmd": self._domain.cmd, "workdir": None, "idxs": {}, "vals": {}}
        for label in self._domain.params:
            misc["idxs"][label] = [number] if label in raw else []
            misc["vals"][label] = [raw[label]] if label in raw else []
        (document,) = self._trials.new_trial_docs([number], [None], [self._domain.new_result()], [misc])
        self._insert(document)
        return int(number)

    def _tell(self, key: int, loss: float | None) -> None:
        base = _library("hyperopt.base")
        # HyperOpt numbers its trials by their place in the list.
        document = self._trials._dynamic_trials[key]
        document["state"] = base.JOB_STATE_DONE
        document["result"] = {"status": base.STATUS_FAIL} if loss is None else {"status": base.STATUS_OK, "loss": loss}
        self._trials.refresh()

    def _insert(self, document: dict[str, Any]) -> None:
        self._trials.insert_trial_docs([document])
        self._trials.refresh()

    def _config(self, raw: Raw, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        if self._parameters is not None:
            return super()._config(raw, given)
        pyll = _library("hyperopt.pyll")
        memo = self._domain.memo_from_config(raw)
        return dict(plain(pyll.rec_eval(self._domain.expr, memo=memo, print_node_on_error=False)))


def _expressions(domains: Mapping[str, Domain], axes: Mapping[str, Axis]) -> dict[str, Any]:
    """Parameters as expressions of HyperOpt, labelled by their names."""
    hp = _library("hyperopt.hp")
    found: dict[str, Any] = {}
    for name, domain in domains.items():
        axis = axes[name]
        if isinstance(domain, Categorical):
            # What an option evaluates to does not matter: its number is what TPE remembers.
            spaces = [{f"{name}[{index}]": option} for index, option in enumerate(domain.categories)]
            options = [_expressions(Parameters(each, "HyperOptSearch").domains, axes) for each in spaces]
            found[name] = options[0] if axis.is_fixed else hp.choice(name, options)
        elif not axis.is_fixed:
            found[name] = _expression(hp, axis)
    return found


def _expression(hp: Any, axis: Axis) -> Any:
    if axis.kind == "normal":
        if axis.step:
            return hp.qnormal(axis.name, axis.lower, axis.sd, axis.step)
        return hp.normal(axis.name, axis.lower, axis.sd)
    if axis.kind == "int":
        low, high = axis.lower - 0.5, axis.upper + 0.5  # so that both ends get their share
        if axis.log:
            return hp.qloguniform(axis.name, math.log(low), math.log(high), 1)
        return hp.quniform(axis.name, low, high, 1)
    if axis.log:
        return hp.loguniform(axis.name, math.log(axis.lower), math.log(axis.upper))
    return hp.uniform(axis.name, axis.lower, axis.upper)


def _nothing(config: Any) -> None:
    """HyperOpt's domains want a function to minimise; trials are run by the experiment instead."""


def _library(module: str = "hyperopt") -> Any:
    return load_library(module, "HyperOptSearch", "hyperopt")
