"""Population based bandits: population based training whose mutations are chosen by a model of what has helped so far.

Owns the model: a Gaussian process whose kernel forgets with time, in NumPy. Its choice is one of a set of candidates
that depends on the seed alone, so that the last bits of a floating point sum, which differ between machines, hardly
ever decide anything.
"""

from __future__ import annotations

import itertools
import math
import numbers
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import InvalidInputError
from holdfast.schedulers import explore
from holdfast.schedulers.base import number
from holdfast.schedulers.pbt import PopulationBasedTraining
from holdfast.space.domains import Float
from holdfast.space.exact import unpack
from holdfast.space.nested import Path, joined
from holdfast.space.rng import Rng

if TYPE_CHECKING:
    from holdfast.schedulers.view import ExperimentView
    from holdfast.views.trials import TrialView

MAX_POINTS = 500
"""What is older is forgotten."""

FITTED_POINTS = 100
"""The most recent ones decide the kernel's parameters; its cost grows with the cube of their number."""

CANDIDATES = 160
ROUNDS = 3
DECIMALS = 9
"""To which values are rounded before they are compared."""

LENGTH_SCALES = (0.1, 0.2, 0.4, 0.8)
FORGETTING = (0.001, 0.05, 0.3)
NOISES = (0.01, 0.2)


class PB2(PopulationBasedTraining):
    """Population based training that chooses new values by a Gaussian process bandit instead of at random.

    Good for small populations: few trials cannot afford many bad mutations. Values are numbers between bounds.

    Durability: as of ``PopulationBasedTraining``.

    Args:
        time_attr: The key of results that measures training; must grow.
        metric: What is compared; by default that of ``TuneConfig``.
        mode: "min" or "max".
        perturbation_interval: How long, in ``time_attr``, a trial trains between two comparisons.
        hyperparam_bounds: For each key of the config that is mutated, ``[lowest, highest]``; may be nested. A key that
            a trial's config lacks is drawn from here when the trial is created.
        quantile_fraction: How many are the best, and how many the worst.
        log_config: Keep ``pbt_global.txt`` and ``pbt_policy_<trial id>.txt`` in the experiment's directory.
        require_attrs: Refuse results without ``time_attr`` or ``metric``; otherwise they are ignored, with a warning.
        synch: Compare all trials at the same time: those that are there wait for the others.
        custom_explore_fn: Called with the new config; returns the config to use.

    Raises:
        InvalidInputError: The bounds are no bounds.
        RuntimeError: NumPy is not installed.

    Example:
        >>> pb2 = PB2(
        ...     time_attr="training_iteration", metric="loss", mode="min", perturbation_interval=4,
        ...     hyperparam_bounds={"lr": [1e-4, 1e-1]},
        ... )
    """

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        hyperparam_bounds: dict[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
        custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        if not hyperparam_bounds:
            raise InvalidInputError(
                "`hyperparam_bounds` must be specified to use the PB2 scheduler: "
                'for example hyperparam_bounds={"lr": [1e-4, 1e-1]}.'
            )
        _import_numpy()
        super().__init__(
            time_attr=time_attr,
            metric=metric,
            mode=mode,
            perturbation_interval=perturbation_interval,
            hyperparam_mutations=_as_domains(hyperparam_bounds, ()),
            quantile_fraction=quantile_fraction,
            resample_probability=0.0,
            custom_explore_fn=custom_explore_fn,
            log_config=log_config,
            require_attrs=require_attrs,
            synch=synch,
        )
        domains = dict(explore.leaves(self._mutations))
        self._paths = list(domains)
        self._bounds = [(domain.lower, domain.upper) for domain in domains.values()]
        self._points: deque[PB2Point] = deque(maxlen=MAX_POINTS)
        self._last: dict[int, PB2Observation] = {}
        self._adopted: dict[int, PB2Observation] = {}  # what a copy has of its donor, until it starts
        self._chosen: list[list[float]] = []  # at ``_chosen_at``, by trials that have not reported since
        self._chosen_at = -math.inf

    # --- what it learns from

    def on_trial_start(self, view: ExperimentView, trial: TrialView) -> None:
        super().on_trial_start(view, trial)
        observation = self._adopted.pop(trial.n, None)
        if observation is not None:
            # As recorded, not as chosen just now: when the past is told again the record stands.
            self._last[trial.n] = observation._replace(values=self._values(trial))

    def _learn(self, trial: TrialView, time: float, score: float | None) -> None:
        """One more step of a trial with these values: how much has it gained, and from where?"""
        values, before = self._values(trial), self._last.get(trial.n)
        if score is None or not math.isfinite(score) or values is None:
            self._last.pop(trial.n, None)
            return
        if before is not None and before.values == values and time > before.time:
            gain = (score - before.score) / (time - before.time)
            self._points.append(PB2Point(time, before.score, values, gain))
        self._last[trial.n] = PB2Observation(time, score, values)

    def _values(self, trial: TrialView) -> list[float] | None:
        """The trial's values of what is mutated; None if one of them is no number."""
        found = (number(unpack(explore.find(trial.record.config, path))) for path in self._paths)
        values = [value for value in found if value is not None]
        return values if len(values) == len(self._paths) else None

    def on_trial_add(self, view: ExperimentView, trial: TrialView) -> None:
        super().on_trial_add(view, trial)
        self._last.pop(trial.n, None)

    def _leaves(self, view: ExperimentView, trial: TrialView) -> None:
        self._last.pop(trial.n, None)
        self._adopted.pop(trial.n, None)
        super()._leaves(view, trial)

    # --- what it chooses

    def _new_config(self, view: ExperimentView, trial: TrialView, donor: TrialView, rng: Rng) -> dict[str, Any]:
        config = explore.fill(view.plain_config(donor), self._mutations, rng)[0]
        observation = self._last.get(donor.n)
        if observation is not None:
            self._adopted[trial.n] = observation
            if self._points:
                self._choose(config, observation, rng)
        return self._custom(config, rng, trial)

    def _choose(self, config: dict[str, Any], observation: PB2Observation, rng: Rng) -> None:
        newest = max(point.time for point in self._points)
        if newest > self._chosen_at:
            self._chosen, self._chosen_at = [], newest
        points = sorted(self._points, key=lambda point: point.time)
        values = choose(points, observation, self._bounds, self._chosen, self._interval, rng)
        self._chosen.append(values)
        for path, value in zip(self._paths, values, strict=True):
            old = unpack(explore.find(config, path))
            is_int = isinstance(old, numbers.Integral) and not isinstance(old, bool)
            new = round(value) if is_int else value
            explore.place(config, path, explore.plain(type(old)(new) if is_int else new, f"the choice of {path!r}"))

    # --- memory

    def get_state(self) -> dict[str, Any] | None:
        state = super().get_state()
        assert state is not None
        return {
            **state,
            "points": [list(point) for point in self._points],
            "last": [[n, *observation] for n, observation in self._last.items()],
            "adopted": [[n, *observation] for n, observation in self._adopted.items()],
            "chosen": [list(values) for values in self._chosen],
            "chosen_at": self._chosen_at,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._points = deque((PB2Point(*point) for point in state["points"]), maxlen=MAX_POINTS)
        self._last = {n: PB2Observation(*observation) for n, *observation in state["last"]}
        self._adopted = {n: PB2Observation(*observation) for n, *observation in state["adopted"]}
        self._chosen = [list(values) for values in state["chosen"]]
        self._chosen_at = state["chosen_at"]


class PB2Observation(NamedTuple):
    """A trial when it was last compared."""

    time: float
    score: float
    values: list[float] | None


class PB2Point(NamedTuple):
    """What values have done to a trial that had ``before`` and was ``time`` old in the end: gain per unit of time."""

    time: float
    before: float
    values: list[float]
    gain: float


def choose(
    points: list[PB2Point],
    now: PB2Observation,
    bounds: list[tuple[float, float]],
    chosen: list[list[float]],
    interval: float,
    rng: Rng,
) -> list[float]:
    """The values with the highest upper confidence bound for a trial that stands where ``now`` says.

    Args:
        points: What was learnt, oldest first.
        now: Where the trial continues from.
        bounds: Lowest and highest of each value.
        chosen: Values that others are about to try; what they will teach need not be learnt twice.
        interval: How much time counts as one step of forgetting.
        rng: Decides the candidates.
    """
    np = _import_numpy()
    lowest = np.array([low for low, _ in bounds])
    width = np.array([max(high - low, 1e-12) for low, high in bounds])
    befores = [*(point.before for point in points), now.score]
    floor, spread = min(befores), max(max(befores) - min(befores), 1e-12)

    def place(time: float, before: float, values: list[float]) -> Any:
        unit = np.clip((np.array(values) - lowest) / width, 0.0, 1.0)
        return np.concatenate(([time / interval, (before - floor) / spread], unit))

    seen = np.array([place(point.time, point.before, point.values) for point in points])
    gains = np.array([point.gain for point in points])
    gains = np.clip((gains - gains.mean()) / (gains.std() + 1e-8), -2.0, 2.0)
    kernel = fit(seen[-FITTED_POINTS:], gains[-FITTED_POINTS:])
    tried = np.array([place(now.time, now.score, values) for values in chosen])
    known = np.concatenate((seen, tried)) if chosen else seen
    model = GaussianProcess(kernel, seen, gains)
    posterior = GaussianProcess(kernel, known, np.zeros(len(known))) if chosen else model
    context = place(now.time, now.score, [low for low, _ in bounds])
    kappa = math.sqrt(0.2 + max(0.0, math.log(0.4 * len(seen))))

    def acquisition(units: Any) -> Any:
        where = np.concatenate((np.tile(context[:2], (len(units), 1)), units), axis=1)
        return np.round(model.mean(where) + kappa * posterior.deviation(where), DECIMALS)

    best = _best_of(acquisition, len(bounds), np.random.default_rng(rng.integers(0, 1 << 63)))
    return [float(min(max(value, low), high)) for value, (low, high) in zip(lowest + best * width, bounds, strict=True)]


def _best_of(acquisition: Callable[[Any], Any], dimensions: int, generator: Any) -> Any:
    """The point of the unit cube with the highest acquisition: looked for everywhere, then around the best so far."""
    np = _import_numpy()
    units = generator.random((CANDIDATES, dimensions))
    best, best_value = units[0], -math.inf
    for round_number in range(ROUNDS):
        acquired = acquisition(units)
        place = int(np.argmax(acquired))
        if acquired[place] > best_value:
            best, best_value = units[place], float(acquired[place])
        step = 0.3 ** (round_number + 1)
        units = np.clip(best + step * (2.0 * generator.random((CANDIDATES, dimensions)) - 1.0), 0.0, 1.0)
    return best


class Kernel(NamedTuple):
    """Squared exponential in everything but time, which lets the past fade."""

    variance: float
    length: float
    forgetting: float
    noise: float

    def between(self, left: Any, right: Any) -> Any:
        """The covariances of points; their first coordinate is time."""
        np = _import_numpy()
        x, y = left[:, 1:], right[:, 1:]
        apart = (x**2).sum(axis=1)[:, None] + (y**2).sum(axis=1)[None, :] - 2.0 * (x @ y.T)
        ages = np.abs(left[:, None, 0] - right[None, :, 0])
        fading = 0.5 * ages * math.log1p(-self.forgetting)
        return self.variance * np.exp(fading - 0.5 * np.maximum(apart, 0.0) / self.length**2)

    def among(self, points: Any) -> Any:
        """The covariances of noisy observations."""
        np = _import_numpy()
        return self.between(points, points) + self.variance * self.noise * np.eye(len(points))


def fit(points: Any, values: Any) -> Kernel:
    """The most likely kernel of a grid. For each shape the best variance follows by itself."""
    np = _import_numpy()
    best, best_likelihood = Kernel(1.0, LENGTH_SCALES[2], FORGETTING[1], NOISES[0]), -math.inf
    for length, forgetting, noise in itertools.product(LENGTH_SCALES, FORGETTING, NOISES):
        kernel = Kernel(1.0, length, forgetting, noise)
        root = np.linalg.cholesky(kernel.among(points))
        variance = max(float((np.linalg.solve(root, values) ** 2).sum()) / len(values), 1e-3)
        halves = np.log(np.diag(root)).sum() + 0.5 * len(values) * math.log(variance)
        likelihood = round(-float(halves), DECIMALS)
        if likelihood > best_likelihood:
            best, best_likelihood = kernel._replace(variance=variance), likelihood
    return best


class GaussianProcess:
    """A Gaussian process that has seen some values."""

    def __init__(self, kernel: Kernel, points: Any, values: Any) -> None:
        np = _import_numpy()
        self._kernel, self._points = kernel, points
        self._inverse = np.linalg.inv(kernel.among(points))
        self._weights = self._inverse @ values

    def mean(self, points: Any) -> Any:
        return self._kernel.between(points, self._points) @ self._weights

    def deviation(self, points: Any) -> Any:
        np = _import_numpy()
        known = self._kernel.between(points, self._points)
        return np.sqrt(np.maximum(self._kernel.variance - ((known @ self._inverse) * known).sum(axis=1), 0.0))


def _as_domains(bounds: Any, path: Path) -> Any:
    if isinstance(bounds, dict):
        return {key: _as_domains(value, (*path, key)) for key, value in bounds.items()}
    where = f"`hyperparam_bounds` at {joined(path)!r}" if path else "`hyperparam_bounds`"
    if not isinstance(bounds, list | tuple) or len(bounds) != 2:
        raise InvalidInputError(
            f"{where} must be a list or tuple of size 2, the lowest and the highest value, but got {bounds!r} instead."
        )
    low, high = bounds
    if not all(isinstance(bound, int | float) and math.isfinite(bound) for bound in bounds):
        raise InvalidInputError(f"{where} must be two finite numbers, got {bounds!r}.")
    if low > high:
        raise InvalidInputError(
            f"{where} must be [lowest, highest], but {low!r} is above {high!r}. Write [{high!r}, {low!r}]."
        )
    return Float(low, high).uniform()


def _import_numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise RuntimeError(
            "PB2 needs NumPy, which is not installed: pip install numpy. PopulationBasedTraining works without it."
        ) from error
    return numpy
