"""Search with the Gaussian process of ``bayesian-optimization``.

Owns the random beginning, duplicates and their end, and the differences between versions of the library. Must never
import it before somebody makes a ``BayesOptSearch``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import InvalidInputError
from holdfast.messages.warn import warn_user
from holdfast.search.adapter import ChosenPoint, LibrarySearcher, Raw, load_library
from holdfast.search.axes import Axis, refuse
from holdfast.search.searcher import Suggestion
from holdfast.search.spaces import has_domains
from holdfast.space.domains import Float

UTILITIES = {"ucb": "UpperConfidenceBound", "ei": "ExpectedImprovement", "poi": "ProbabilityOfImprovement"}
"""Kinds of ``utility_kwargs``, and the classes that newer versions of the library have for them."""


class BayesOptSearch(LibrarySearcher):
    """Bayesian optimisation with a Gaussian process, by ``bayesian-optimization``.

    Only ``tune.uniform`` can be used.

    Args:
        space: The search space, if ``param_space`` has none: domains, or bounds, ``{"x": (0, 1)}``.
        metric: What to optimise; None takes the experiment's.
        mode: "min" or "max"; None takes the experiment's.
        points_to_evaluate: Configurations to try first. What they leave out is drawn at random.
        utility_kwargs: ``kind`` ("ucb", "ei" or "poi"), ``kappa`` and ``xi`` of what is maximised to find the next
            point. None means ``{"kind": "ucb", "kappa": 2.576, "xi": 0.0}``.
        random_state: The seed; None takes the experiment's.
        random_search_steps: How many trials are drawn at random first. The process learns from them when all have
            ended; meanwhile no further trial is suggested. Points to evaluate count among them.
        verbose: Passed to the library.
        patience: After the same configuration was suggested more often than this, the search is over.
        skip_duplicate: Do not run a configuration again that was suggested before.
        analysis: Another experiment to learn from before the first trial: an ``ExperimentAnalysis`` or a
            ``ResultGrid``. ``metric`` must be given then.
        repeat_float_precision: Configurations are the same one if they agree in so many decimals of where they lie
            between the bounds, whatever the bounds are.

    A trial that failed, or whose metric is missing, NaN or infinite, counts as bad as the worst trial so far.

    Durability: continues exactly where it was.

    Raises:
        ImportError: The library is not installed.
        InvalidInputError: The arguments do not go together, or the space has something else than ``tune.uniform``.

    Example:
        >>> from holdfast import uniform
        >>> search = BayesOptSearch({"x": uniform(0, 1)}, metric="loss", mode="min")
        >>> 0 <= search.suggest("a")["x"] <= 1
        True
    """

    _seed_argument = "random_state"
    _has_warned = False  # of the end; a class attribute, because memories of older versions lack it

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        utility_kwargs: Mapping[str, Any] | None = None,
        random_state: int | None = 42,
        random_search_steps: int = 10,
        verbose: int = 0,
        patience: int = 5,
        skip_duplicate: bool = True,
        analysis: Any = None,
        repeat_float_precision: int = 5,
    ) -> None:
        _library()
        if isinstance(patience, bool) or not isinstance(patience, int) or patience <= 0:
            raise InvalidInputError(f"`patience` must be larger than 0, got {patience!r}.")
        if not isinstance(random_search_steps, int) or random_search_steps < 0:
            raise InvalidInputError(
                f"random_search_steps must be 0 or a whole number above, got {random_search_steps!r}."
            )
        super().__init__(_domains(space), metric, mode, points_to_evaluate, random_state)
        self._utility = _checked_utility(utility_kwargs)
        self._steps = random_search_steps
        self._verbose = verbose
        self._patience = patience
        self._skip_duplicate = skip_duplicate
        self._precision = repeat_float_precision
        self._optimizer: Any = None
        self._acquisition: Any = None  # of versions before 2.0
        self._waiting: list[tuple[Raw, float | None]] | None = []  # results of the random beginning, until it ends
        self._seen: dict[tuple[float, ...], int] = {}  # configuration -> how often it was suggested
        self._registered: set[tuple[float, ...]] = set()
        self._is_stuck = False  # until it knows more, it will suggest what was suggested before
        if analysis is not None:
            if metric is None:
                raise InvalidInputError("BayesOptSearch(analysis=...) needs `metric`: what was optimised there.")
            self.add_evaluated_trials(analysis, metric)

    def _check_axis(self, axis: Axis) -> None:
        if axis.kind != "float" or axis.log:
            what = "a logarithmic range" if axis.log else "a normal distribution" if axis.kind == "normal" else "steps"
            raise refuse(
                axis,
                "BayesOptSearch",
                "a choice" if axis.kind == "option" else what,
                "Use tune.uniform(...) there, or HyperOptSearch or OptunaSearch, which can search over every domain.",
            )

    def _make(self, seed: int) -> None:
        library = _library()
        given: dict[str, Any] = {
            "f": None,
            "pbounds": {axis.name: (axis.lower, axis.upper) for axis in self._searched},
            # Not `seed`, which is derived: the same random_state should mean what it means in the library's documents.
            "random_state": (self._seed or 0) % (1 << 32),
            "verbose": self._verbose,
            "allow_duplicate_points": not self._skip_duplicate,
        }
        if hasattr(library, "UtilityFunction"):
            self._acquisition = library.UtilityFunction(**self._utility)
        else:
            given["acquisition_function"] = _acquisition(self._utility)
        self._optimizer = library.BayesianOptimization(**given)

    # --- asking

    def _ask(self) -> ChosenPoint | Suggestion:
        if self._waiting is not None and self._asked >= self._steps:
            if self._open:
                return None  # the random beginning has not ended
            self._end_beginning()
        if self._is_stuck and self._open:
            return None
        while True:
            raw = self._proposal()
            times = self._seen.get(self._place(raw), 0) + 1
            if times > 1 and self._skip_duplicate and self._open:
                self._is_stuck = True  # it will think of something else when it knows more
                return None
            self._seen[self._place(raw)] = times
            if times > self._patience:
                self._warn_end()
                return self.FINISHED
            if times == 1 or not self._skip_duplicate:
                return ChosenPoint(raw, raw)

    def _proposal(self) -> Raw:
        if self._acquisition is None:
            found = self._optimizer.suggest()
        else:
            self._acquisition.update_params()
            found = self._optimizer.suggest(self._acquisition)
        return {name: float(value) for name, value in found.items()}

    def _warn_end(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn_user(
                f"BayesOptSearch has ended the search after {self._asked} suggestions, because it keeps "
                f"suggesting the same configuration (more than patience={self._patience} times). For more trials "
                "set a larger patience or repeat_float_precision, more random_search_steps, or another searcher."
            )

    def _place(self, raw: Raw) -> tuple[float, ...]:
        # Shares of the ranges, not values: all of uniform(1e-7, 4e-6) is 0.0 in five decimals.
        return tuple(round(axis.share(raw[axis.name]), self._precision) for axis in self._searched)

    def _adopt(self, raw: Raw) -> Raw:
        filled = self._filled(raw)
        self._seen.setdefault(self._place(filled), 1)
        return filled

    # --- telling

    def _tell(self, key: Raw, loss: float | None) -> None:
        if self._waiting is None:
            self._register(key, loss)
        else:
            self._waiting.append((key, loss))

    def _end_beginning(self) -> None:
        waiting, self._waiting = self._waiting or [], None
        for raw, loss in waiting:
            self._register(raw, loss)

    def _register(self, raw: Raw, loss: float | None) -> None:
        if loss is None and not math.isfinite(self._worst):
            return  # there is nothing yet that it could be as bad as
        place = tuple(raw[axis.name] for axis in self._searched)
        if self._skip_duplicate and place in self._registered:
            return  # the library would refuse it
        self._registered.add(place)
        self._is_stuck = False
        self._optimizer.register(params=raw, target=-self._loss_or_worst(loss))


def _domains(space: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A space in which bounds, as the library writes them, have become domains."""
    if space is None or (isinstance(space, Mapping) and has_domains(space)):
        return space
    found: dict[str, Any] = {}
    for name, bounds in space.items() if isinstance(space, Mapping) else [("space", space)]:
        if not isinstance(bounds, list | tuple) or len(bounds) != 2:
            raise InvalidInputError(
                f"`space` must be a dict of domains or of bounds, got {bounds!r} for {name!r}. Write for example "
                "{'x': tune.uniform(0, 1)} or {'x': (0, 1)}."
            )
        found[name] = Float(*bounds).uniform()
    return found


def _checked_utility(given: Mapping[str, Any] | None) -> dict[str, Any]:
    utility = {"kind": "ucb", "kappa": 2.576, "xi": 0.0} if given is None else {"kappa": 2.576, "xi": 0.0, **given}
    known = {"kind", "kappa", "xi", "kappa_decay", "kappa_decay_delay"}
    if utility.get("kind") not in UTILITIES or not utility.keys() <= known:
        raise InvalidInputError(
            f"utility_kwargs must have a `kind` of {list(UTILITIES)} and may have {sorted(known - {'kind'})}, got "
            f"{dict(given or {})!r}."
        )
    return utility


def _acquisition(utility: Mapping[str, Any]) -> Any:
    """What the versions from 2.0 on have instead of ``UtilityFunction``."""
    made = getattr(load_library("bayes_opt.acquisition", "BayesOptSearch", "bayesopt"), UTILITIES[utility["kind"]])
    given = {"kappa": utility["kappa"]} if utility["kind"] == "ucb" else {"xi": utility["xi"]}
    return made(
        **given,
        exploration_decay=utility.get("kappa_decay"),
        exploration_decay_delay=utility.get("kappa_decay_delay"),
    )


def _library() -> Any:
    return load_library("bayes_opt", "BayesOptSearch", "bayesopt")
