"""Search with HEBO: a Gaussian process whose acquisition is optimised for several goals at once.

Owns the batches that HEBO proposes, and its random numbers, which it takes from global generators. Must never import
HEBO before somebody makes a ``HEBOSearch``, or leave a global generator changed.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.errors import InvalidInputError
from holdfast.search.adapter import ChosenPoint, LibrarySearcher, Raw, checked_rewards, load_library
from holdfast.search.axes import Axis
from holdfast.search.replayable import plain
from holdfast.search.searcher import Suggestion


class HEBOSearch(LibrarySearcher):
    """Heteroscedastic evolutionary Bayesian optimisation, by HEBO.

    Every domain can be used. Normally distributed ones are searched by their quantile.

    Args:
        space: The search space, if ``param_space`` has none: domains, or a ``DesignSpace`` of HEBO's.
        metric: What to optimise; None takes the experiment's.
        mode: "min" or "max"; None takes the experiment's.
        points_to_evaluate: Configurations to try first. What they leave out is drawn at random.
        evaluated_rewards: The metric's values for ``points_to_evaluate``, if they are known: these are then learned
            from rather than tried.
        random_state_seed: Instead of the experiment's seed.
        max_concurrent: How many trials may be open at once. HEBO proposes as many together as are free.
        kwargs: Further arguments of HEBO, such as ``model_name`` and ``rand_sample``.

    A trial that failed, or whose metric is missing, NaN or infinite, counts as bad as the worst trial so far.

    Durability: continues exactly where it was.

    Raises:
        ImportError: HEBO is not installed.
        InvalidInputError: The arguments do not go together.

    Example:
        >>> from holdfast import uniform
        >>> search = HEBOSearch({"x": uniform(0, 1)}, metric="loss", mode="min")  # doctest: +SKIP
    """

    _seed_argument = "random_state_seed"

    def __init__(
        self,
        space: Any = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        evaluated_rewards: Sequence[Any] | None = None,
        random_state_seed: int | None = None,
        max_concurrent: int = 8,
        **kwargs: Any,
    ) -> None:
        designs = _library("hebo.design_space.design_space")
        if isinstance(max_concurrent, bool) or not isinstance(max_concurrent, int) or max_concurrent < 1:
            raise InvalidInputError(f"`max_concurrent` must be at least 1, got {max_concurrent!r}.")
        if space is not None and not self._is_of_domains(space) and not isinstance(space, designs.DesignSpace):
            raise InvalidInputError(f"`space` must be a dict of domains or a DesignSpace of HEBO's, got {space!r}.")
        rewards = checked_rewards(points_to_evaluate, evaluated_rewards)
        super().__init__(space, metric, mode, None if rewards else points_to_evaluate, random_state_seed)
        for point, reward in zip(points_to_evaluate or (), rewards, strict=False):
            self.add_evaluated_point(point, reward)
        # Not a public name: how many trials to make in advance is none of its business.
        self._max_concurrent = max_concurrent
        self._kwargs = kwargs
        self._optimizer: Any = None
        self._batch: list[Raw] = []  # proposals that nobody has asked for yet
        self._calls = 0

    def _make(self, seed: int) -> None:
        designs = _library("hebo.design_space.design_space")
        space = self._own_space
        if self._parameters is not None:
            space = designs.DesignSpace().parse([_design(axis) for axis in self._searched])
        try:
            with self._generators():
                made = _library("hebo.optimizers.hebo").HEBO
                self._optimizer = made(space, **{"scramble_seed": seed, **self._kwargs})
        except TypeError as error:
            raise InvalidInputError(f"HEBO does not take {self._kwargs!r}: {error}.") from error

    @contextlib.contextmanager
    def _generators(self) -> Iterator[None]:
        """Let HEBO draw from generators of our own."""
        import numpy

        torch = _library("torch")
        self._calls += 1
        seed = self._seed_for(2, self._calls)
        before = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
        random.seed(seed)
        numpy.random.seed(seed)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            numpy.random.set_state(before[1])
            torch.set_rng_state(before[2])

    # --- asking and telling

    def _ask(self) -> ChosenPoint | Suggestion:
        free = self._max_concurrent - len(self._open)
        if free < 1:
            return None
        if not self._batch:
            with self._generators():
                found = self._optimizer.suggest(n_suggestions=free)
            self._batch = [dict(plain(row)) for row in found.to_dict("records")]
        raw = self._batch.pop(0)
        return ChosenPoint(raw, raw if self._parameters is None else self._from_design(raw))

    def _adopt(self, raw: Raw) -> Raw:
        if self._parameters is None:
            return raw
        filled = self._filled(raw)
        return {
            axis.name: axis.share(filled[axis.name]) if axis.kind == "normal" else filled[axis.name]
            for axis in self._searched
        }

    def _from_design(self, raw: Raw) -> Raw:
        return {
            axis.name: axis.from_share(raw[axis.name]) if axis.kind == "normal" else raw[axis.name]
            for axis in self._searched
        }

    def _tell(self, key: Raw, loss: float | None) -> None:
        if loss is None and not math.isfinite(self._worst):
            return  # there is nothing yet that it could be as bad as
        import numpy

        frame = _library("pandas").DataFrame([key])
        self._optimizer.observe_new_data(frame, numpy.array([[self._loss_or_worst(loss)]]))


def _design(axis: Axis) -> dict[str, Any]:
    """A parameter as HEBO writes it."""
    if axis.kind == "option":
        return {"name": axis.name, "type": "cat", "categories": list(range(int(axis.upper) + 1))}
    if axis.kind == "normal":
        return {"name": axis.name, "type": "num", "lb": 0.0, "ub": 1.0}
    kind = {(False, False): "num", (False, True): "pow", (True, False): "int", (True, True): "pow_int"}
    found = kind[axis.kind == "int", axis.log]
    return {"name": axis.name, "type": found, "lb": axis.lower, "ub": axis.upper, **({"base": 10} if axis.log else {})}


def _library(module: str) -> Any:
    return load_library(module, "HEBOSearch", "hebo")
