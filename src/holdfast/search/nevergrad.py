"""Search with any optimiser of Nevergrad.

Owns the way from a space to Nevergrad's and back, and a log of what the optimiser was asked and told: some of
Nevergrad's optimisers run in a thread of their own and cannot be stored, but can be asked and told the same again. Must
never import Nevergrad before somebody makes a ``NevergradSearch``.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.search.adapter import ChosenPoint, LibrarySearcher, Raw, load_library
from holdfast.search.axes import Axis
from holdfast.search.replayable import plain
from holdfast.search.searcher import Suggestion
from holdfast.search.spaces import has_domains

DEFAULT_OPTIMIZER = "NGOpt"
"""Nevergrad's own choice: it looks at the space and at its arguments, and picks one."""

WORKERS = 8
"""How many trials at once an optimiser is made for if nobody says so. It may be asked for more; but one that is made
for a single one waits for each result, and would wait for ever if it were asked again before."""

BUDGET = 100
"""How many trials an optimiser is made for if nobody says so. Not the experiment's number of samples: that may grow
later, and a search that is told its past again must be the same one."""

ASKED, ADOPTED, TOLD = "asked", "adopted", "told"


class NevergradSearch(LibrarySearcher):
    """Evolution strategies, particle swarms and other gradient-free optimisers, by Nevergrad.

    Every domain can be used.

    Args:
        optimizer: A class of ``nevergrad.optimizers``, its name, or an instance, which has a space of its own. None
            means ``NGOpt``.
        optimizer_kwargs: Arguments of the class, such as ``budget`` (about how many trials there will be, 100 if not
            given) and ``num_workers`` (how many at once, 8 if not given). With ``num_workers=1``, and with optimisers
            that can do nothing else, there is one trial at a time.
        space: The search space, if ``param_space`` has none: domains, or a parametrization of Nevergrad's. For an
            instance whose parametrization is one array: the names of its elements.
        metric: What to optimise; None takes the experiment's.
        mode: "min" or "max"; None takes the experiment's.
        points_to_evaluate: Configurations to try first. What they leave out is drawn at random.

    A trial that failed, or whose metric is missing, NaN or infinite, counts as bad as the worst trial so far.

    Durability: continues exactly where it was. Optimisers that Nevergrad cannot store are asked and told the same
    again.

    Raises:
        ImportError: Nevergrad is not installed.
        InvalidInputError: The arguments do not go together.

    Example:
        >>> from holdfast import uniform
        >>> search = NevergradSearch("OnePlusOne", space={"x": uniform(0, 1)}, metric="loss", mode="min")
        >>> 0 <= search.suggest("a")["x"] <= 1
        True
    """

    def __init__(
        self,
        optimizer: Any = None,
        optimizer_kwargs: Mapping[str, Any] | None = None,
        space: Any = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        library = _library()
        kind = _checked_kind(optimizer)
        if isinstance(kind, library.optimizers.base.Optimizer):
            if optimizer_kwargs:
                raise InvalidInputError(
                    f"optimizer_kwargs={dict(optimizer_kwargs)!r} have no effect: the optimizer already exists. Give "
                    "its class instead of an instance, or leave them out."
                )
            space = _own_space(kind, space)
        elif space is not None:
            space = _checked_space(space)
        super().__init__(space, metric, mode, points_to_evaluate, None)
        self._kind = kind
        self._kwargs = dict(optimizer_kwargs or {})
        self._optimizer: Any = None
        self._candidates: dict[int, Any] = {}  # number -> what the optimiser was asked for and not yet told of
        self._log: list[tuple[Any, ...]] = []
        self._count = 0

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        if not self._begun:
            self._kwargs.setdefault("num_workers", max_concurrent)
        return False

    def _make(self, seed: int) -> None:
        if isinstance(self._kind, _library().optimizers.base.Optimizer):
            self._optimizer = _copied(self._kind)
            _seed(self._optimizer.parametrization, seed)
            return
        space = _copied(self._own_space) if self._parameters is None else _parametrization(self._searched)
        _seed(space, seed)  # before the optimiser is made, which may draw from it at once
        try:
            self._optimizer = self._kind(parametrization=space, **self._arguments())
        except TypeError as error:
            raise InvalidInputError(f"optimizer_kwargs={self._kwargs!r} do not fit {self._kind!r}: {error}.") from error

    def _arguments(self) -> dict[str, Any]:
        workers = 1 if getattr(self._kind, "no_parallelization", False) else WORKERS
        return {"budget": BUDGET, "num_workers": workers, **self._kwargs}

    # --- asking and telling

    def _ask(self) -> ChosenPoint | Suggestion:
        if self._optimizer.num_workers == 1 and self._candidates:
            return None
        try:
            number = self._play(ASKED)
        except _library().errors.NevergradEarlyStopping:
            return self.FINISHED
        return ChosenPoint(number, self._raw_of(self._candidates[number]))

    def _adopt(self, raw: Raw) -> int:
        return self._play(ADOPTED, raw if self._parameters is None else self._filled(raw))

    def _tell(self, key: int, loss: float | None) -> None:
        self._play(TOLD, key, self._loss_or_worst(loss))

    def _play(self, move: str, *given: Any) -> int:
        """Ask or tell the optimiser, and write it down."""
        number = self._move(move, *given)
        self._log.append((move, *given))
        return number

    def _move(self, move: str, *given: Any) -> int:
        if move == TOLD:
            number, loss = given
            try:
                self._optimizer.tell(self._candidates.pop(number), loss)
            except _library().errors.TellNotAskedNotSupportedError:
                pass  # this optimiser learns only from points that it chose itself
            return int(number)
        if move == ADOPTED:
            candidate = self._optimizer.parametrization.spawn_child(new_value=self._value_of(given[0]))
        else:
            candidate = _in_daemon(self._optimizer.ask)
        self._candidates[self._count] = candidate
        self._count += 1
        return self._count - 1

    def _raw_of(self, candidate: Any) -> Raw:
        if isinstance(self._own_space, list):
            return dict(zip(self._own_space, map(float, candidate.value), strict=True))
        # The value of an Instrumentation is its positional arguments, and those with names.
        return dict(plain(candidate.value if isinstance(candidate.value, dict) else candidate.value[1]))

    def _value_of(self, raw: Raw) -> Any:
        if isinstance(self._own_space, list):
            return [raw[name] for name in self._own_space]
        return raw if isinstance(self._optimizer.parametrization, _library().p.Dict) else ((), raw)

    # --- its memory

    def get_state(self) -> dict[str, Any]:
        """Everything; what Nevergrad cannot store is left out, and found again through the log."""
        import cloudpickle

        state = super().get_state()
        # One pickle, because the optimiser and its candidates know each other.
        try:
            state["_stored"] = bytes(cloudpickle.dumps((self._optimizer, self._candidates)))
        except Exception:
            state["_stored"] = b""
        for part in ("_optimizer", "_candidates", "_kind"):
            state.pop(part)
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        state = dict(state)
        stored = state.pop("_stored")
        super().set_state(state)
        if stored:
            self._optimizer, self._candidates = pickle.loads(stored)
            return
        self._candidates, self._count = {}, 0
        self._make(self._seed_for(0))
        for move in self._log:
            self._move(*move)


def _checked_kind(optimizer: Any) -> Any:
    """What makes the optimiser, or the optimiser."""
    optimizers = _library().optimizers
    if optimizer is None:
        optimizer = DEFAULT_OPTIMIZER
    if isinstance(optimizer, str):
        if optimizer not in optimizers.registry:
            raise InvalidInputError(
                f"Nevergrad has no optimizer {optimizer!r}. Look at sorted(nevergrad.optimizers.registry)."
            )
        return optimizers.registry[optimizer]
    made = isinstance(optimizer, optimizers.base.Optimizer | optimizers.base.ConfiguredOptimizer)
    if not made and not (isinstance(optimizer, type) and issubclass(optimizer, optimizers.base.Optimizer)):
        raise InvalidTypeError(
            f"`optimizer` must be a class of nevergrad.optimizers, its name or an instance, got {optimizer!r}."
        )
    return optimizer


def _in_daemon(function: Callable[[], Any]) -> Any:
    """Call a function in a thread that does not keep the process alive.

    Some optimisers start a thread of their own when they are first asked, and leave it waiting for results. A thread
    that a daemon started is one too; one that the main thread started would never let the process end.
    """
    found: list[Any] = []

    def call() -> None:
        try:
            found.append((function(), None))
        except Exception as error:
            found.append((None, error))

    thread = threading.Thread(target=call, name="holdfast-nevergrad", daemon=True)
    thread.start()
    thread.join()
    answer, error = found[0]
    if error is not None:
        raise error
    return answer


def _seed(parametrization: Any, seed: int) -> None:
    if getattr(parametrization, "_random_state", None) is None:  # else the user has seeded it
        parametrization.random_state.seed(seed)


def _copied(given: Any) -> Any:
    """A copy of the user's object, which stays as it is, so that everything can be told again to another copy."""
    import cloudpickle

    try:
        return pickle.loads(cloudpickle.dumps(given))
    except Exception:
        return given  # it cannot be stored either


def _own_space(optimizer: Any, space: Any) -> Any:
    """The space of an optimiser that was made already: its own, or the names of an array's elements."""
    if space is None:
        return _checked_space(optimizer.parametrization)
    if isinstance(space, list) and all(isinstance(name, str) for name in space):
        if optimizer.dimension != len(space):
            raise InvalidInputError(f"`space` names {space}, but the optimizer has {optimizer.dimension} parameters.")
        return space
    raise InvalidInputError(
        f"The optimizer has a space already, but `space` is {space!r}. Leave it out, or give the optimizer's class."
    )


def _checked_space(space: Any) -> Any:
    parameters = _library().p
    if isinstance(space, Mapping) and has_domains(space):
        return space
    if isinstance(space, Mapping):
        space = parameters.Dict(**space)
    if isinstance(space, parameters.Parameter) and space.dimension == 0:
        raise InvalidInputError(f"The space of NevergradSearch has nothing to choose: {space!r}.")
    if not isinstance(space, parameters.Dict | parameters.Instrumentation):
        raise InvalidInputError(
            f"`space` must give names to its parameters, got {space!r}. Write {{'x': tune.uniform(0, 1)}} or "
            "nevergrad.p.Dict(x=...); for an optimizer that searches over an array, space=['x', ...]."
        )
    return space


def _parametrization(axes: list[Axis]) -> Any:
    parameters = _library().p
    return parameters.Dict(**{axis.name: _parameter(parameters, axis) for axis in axes})


def _parameter(parameters: Any, axis: Axis) -> Any:
    if axis.kind == "option":
        return parameters.Choice(range(int(axis.upper) + 1))
    if axis.kind == "normal":
        return parameters.Scalar(init=axis.lower).set_mutation(sigma=axis.sd)
    kind = parameters.Log if axis.log else parameters.Scalar
    parameter = kind(lower=axis.lower, upper=axis.upper)
    return parameter.set_integer_casting() if axis.kind == "int" else parameter


def _library() -> Any:
    return load_library("nevergrad", "NevergradSearch", "nevergrad")
