"""Domains: the sets a hyperparameter is drawn from, and the samplers that draw.

Owns bounds, validity and distributions. Must never own a generator or touch global random state: a
sampler uses the ``RandomSource`` it is given. Domains never change; every method returns a new one.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable
from math import exp, floor, inf, isfinite, log, nextafter
from typing import Any, ClassVar, Protocol, TypeVar

from holdfast.errors import InvalidInputError, InvalidTypeError, UsageError
from holdfast.space.bounds import (
    check_log_bounds,
    check_order,
    check_step,
    divides,
    finite,
    number,
    option_list,
    shown,
    whole,
)
from holdfast.space.rng import RandomSource, as_random_source

D = TypeVar("D", bound="Domain")


class Sampler(Protocol):
    """Draws one value of a domain."""

    def draw(self, domain: Any, rng: RandomSource) -> Any:
        """One value, decided by ``rng`` alone."""
        ...


class Domain:
    """Base of everything a value can be drawn from."""

    sampler: Sampler | None = None
    """How to draw, if that was chosen; ``get_sampler()`` falls back to the domain's default."""

    default_sampler: ClassVar[Sampler]

    @property
    def domain_str(self) -> str:
        """The domain as short text, for messages."""
        raise NotImplementedError

    def is_valid(self, value: Any) -> bool:
        """Whether this domain contains ``value``."""
        raise NotImplementedError

    def is_grid(self) -> bool:
        """Whether all values are tried, rather than some drawn."""
        return False

    def is_function(self) -> bool:
        """Whether the value is what a function of the other values returns."""
        return False

    def instead_of_options(self, call: str) -> str:
        """What to write instead of this domain as the argument of ``call``, which takes a list of options."""
        return f"It draws already: write it without {call}."

    def get_sampler(self) -> Sampler:
        """The sampler that draws from this domain."""
        return self.sampler or self.default_sampler

    def draw(self, rng: RandomSource) -> Any:
        """One value, decided by ``rng`` alone."""
        return self.get_sampler().draw(self, rng)

    def sample(self, config: dict[str, Any] | None = None, size: int = 1, random_state: Any = None) -> Any:
        """Draw from this domain.

        Args:
            config: Values already drawn; only ``sample_from`` functions look at it.
            size: How many values to draw.
            random_state: None (fresh entropy), a seed, an ``Rng``, a ``random.Random``, or a NumPy
                ``Generator`` or ``RandomState``.

        Returns:
            One value, or a list of them if ``size`` is not 1.

        Example:
            >>> Float(0, 1).uniform().sample(random_state=42)
            0.7739560485559633
        """
        count = whole(size, "size")
        if count < 1:
            raise InvalidInputError(f"size must be at least 1, got {size!r}.")
        rng = as_random_source(random_state)
        values = [self._sample_one(config, rng) for _ in range(count)]
        return values[0] if count == 1 else values

    def _sample_one(self, config: dict[str, Any] | None, rng: RandomSource) -> Any:
        return self.draw(rng)

    def _with(self: D, sampler: Sampler) -> D:
        if self.sampler is not None:
            raise InvalidInputError(
                f"A domain has one sampler: {self!r} cannot also be {sampler!r}. "
                f"Build a second domain from its bounds {self.domain_str} instead."
            )
        new = copy.copy(self)
        new.sampler = sampler
        return new

    def __repr__(self) -> str:
        inside = self.domain_str
        text = type(self).__name__ + (inside if inside.startswith("(") else f"({inside})")
        return text if self.sampler is None else f"{text}.{self.sampler!r}"


class Uniform:
    """Every value of the domain is equally likely."""

    def draw(self, domain: Any, rng: RandomSource) -> Any:
        """One value, decided by ``rng`` alone."""
        if isinstance(domain, Float):
            value = rng.uniform(domain.lower, domain.upper)
            # The product inside `uniform` may round up to the bound that the range leaves out.
            return value if value < domain.upper else nextafter(domain.upper, domain.lower)
        if isinstance(domain, Integer):
            return rng.integers(domain.lower, domain.upper)
        return domain.categories[rng.integers(0, len(domain.categories))]

    def __repr__(self) -> str:
        return "uniform()"


class LogUniform:
    """The logarithm of the value is uniform: every order of magnitude is equally likely."""

    def draw(self, domain: Any, rng: RandomSource) -> Any:
        """One value, decided by ``rng`` alone."""
        lower, upper = domain.lower, domain.upper
        value = exp(rng.uniform(log(lower), log(upper)))
        # exp(log(x)) may miss x by a rounding error, on either side.
        if isinstance(domain, Integer):
            return min(max(floor(value), lower), upper - 1)
        return min(max(value, lower), upper)

    def __repr__(self) -> str:
        return "loguniform()"


class Normal:
    """Normally distributed around ``mean`` with standard deviation ``sd``."""

    def __init__(self, mean: float = 0.0, sd: float = 1.0) -> None:
        self.mean = finite(mean, "mean")
        self.sd = finite(sd, "sd")
        if self.sd < 0:
            raise InvalidInputError(f"A standard deviation is not negative, got sd={sd!r}: write sd={-sd!r}.")

    def draw(self, domain: Any, rng: RandomSource) -> float:
        """One value, decided by ``rng`` alone."""
        return float(rng.normal(self.mean, self.sd))

    def __repr__(self) -> str:
        return f"normal({self.mean}, {self.sd})"


class Quantized:
    """Another sampler's values, as multiples of ``q`` within the domain's bounds, both inclusive.

    Attributes:
        sampler: The sampler behind it.
        q: The step.
    """

    def __init__(self, sampler: Sampler, q: float) -> None:
        self.sampler = sampler
        self.q = q
        self._digits = next((d for d in range(17) if round(q, d) == q), None)

    def get_sampler(self) -> Sampler:
        """The sampler whose values are rounded."""
        return self.sampler

    def draw(self, domain: Any, rng: RandomSource) -> Any:
        """One value, decided by ``rng`` alone."""
        if isinstance(domain, Integer):
            return self._draw_integer(domain, rng)
        value = round(self.sampler.draw(domain, rng) / self.q) * self.q
        # 3 * 0.1 is 0.30000000000000004: cut the noise that the user's own q does not have.
        value = value if self._digits is None else round(value, self._digits)
        # Bounds may carry such noise themselves, and are never passed for it.
        return value if isinstance(self.sampler, Normal) else min(max(value, domain.lower), domain.upper)

    def _draw_integer(self, domain: Integer, rng: RandomSource) -> int:
        q = int(self.q)
        if q == 1:
            return int(self.sampler.draw(domain, rng))
        first, last = -(-domain.lower // q), domain.upper // q
        if isinstance(self.sampler, Uniform):
            # Rounding a uniform int would starve both ends (and never reach the upper one if q is
            # most of the range), so each multiple is drawn with the same chance.
            return rng.integers(first, last + 1) * q
        value = exp(rng.uniform(log(domain.lower), log(domain.upper)))
        return min(max(round(value / q), first), last) * q

    def __repr__(self) -> str:
        return f"{self.sampler!r}.quantized({self.q})"


class Float(Domain):
    """Real numbers between two bounds; None leaves a side open."""

    default_sampler = Uniform()

    def __init__(self, lower: float | None, upper: float | None) -> None:
        self.lower = -inf if lower is None else number(lower, "lower")
        self.upper = inf if upper is None else number(upper, "upper")
        check_order(self.lower, self.upper)

    @property
    def domain_str(self) -> str:
        """The bounds as text."""
        return f"({self.lower}, {self.upper})"

    def is_valid(self, value: Any) -> bool:
        """Whether ``value`` is a number within the bounds and, if quantized, a multiple of the step."""
        try:
            given = number(value, "value")
        except UsageError:
            return False
        if not self.lower <= given <= self.upper:
            return False
        q = self.sampler.q if isinstance(self.sampler, Quantized) else None
        return q is None or divides(q, given)

    def instead_of_options(self, call: str) -> str:
        """What to write instead of this domain as the argument of ``call``, which takes a list of options."""
        return f"It draws already: write it without {call}."

    def get_sampler(self) -> Sampler:
        """The sampler that draws from this domain."""
        if self.sampler is None:
            self._check_finite()
        return super().get_sampler()

    def uniform(self) -> Float:
        """This domain, sampled uniformly."""
        self._check_finite()
        return self._with(Uniform())

    def loguniform(self, base: float | None = None) -> Float:
        """This domain, sampled log-uniformly. ``base`` has no effect and is only accepted for old code."""
        check_log_bounds(self.lower, self.upper)
        return self._with(LogUniform())

    def normal(self, mean: float = 0.0, sd: float = 1.0) -> Float:
        """This domain, sampled from a normal distribution (which ignores the bounds)."""
        return self._with(Normal(mean, sd))

    def quantized(self, q: float) -> Float:
        """This domain, rounded to multiples of ``q``, upper bound included.

        Raises:
            InvalidInputError: ``q`` is not positive, or a bound is not a multiple of it.
        """
        step = finite(q, "q")
        if step <= 0:
            raise InvalidInputError(f"q must be above 0, got {q!r}: it is the step between two values.")
        calls = {Uniform: "quniform", LogUniform: "qloguniform"}
        check_step(self.lower, self.upper, step, calls.get(type(self.get_sampler()), ""))
        return _quantize(self, step)

    def _check_finite(self) -> None:
        if not isfinite(self.upper - self.lower):
            raise InvalidInputError(
                f"A uniform domain needs two finite bounds, got {self.domain_str}. "
                f"Give both, or use randn(mean, sd) for an unbounded value."
            )


class Integer(Domain):
    """Whole numbers from ``lower`` up to, but not including, ``upper`` (including it once quantized)."""

    default_sampler = Uniform()

    def __init__(self, lower: int, upper: int) -> None:
        self.lower = whole(lower, "lower")
        self.upper = whole(upper, "upper")
        check_order(self.lower, self.upper)

    @property
    def domain_str(self) -> str:
        """The bounds as text."""
        return f"({self.lower}, {self.upper})"

    def is_valid(self, value: Any) -> bool:
        """Whether ``value`` is a whole number that this domain can yield."""
        try:
            number = whole(value, "value")
        except UsageError:
            return False
        q = int(self.sampler.q) if isinstance(self.sampler, Quantized) else 1
        if q == 1:
            return self.lower <= number < self.upper
        return self.lower <= number <= self.upper and number % q == 0

    def uniform(self) -> Integer:
        """This domain, sampled uniformly."""
        self._check_not_empty()
        return self._with(Uniform())

    def loguniform(self, base: float | None = None) -> Integer:
        """This domain, sampled log-uniformly. ``base`` has no effect and is only accepted for old code."""
        check_log_bounds(self.lower, self.upper)
        self._check_not_empty()
        return self._with(LogUniform())

    def quantized(self, q: int) -> Integer:
        """This domain as multiples of ``q``, upper bound included unless ``q`` is 1.

        Raises:
            InvalidInputError: ``q`` is not positive, or no multiple of it lies within the bounds.
        """
        step = whole(q, "q")
        if step < 1:
            raise InvalidInputError(f"q must be at least 1, got {q!r}: it is the step between two values.")
        if step == 1:
            self._check_not_empty()
        elif -(-self.lower // step) > self.upper // step:
            raise InvalidInputError(
                f"No multiple of q={q!r} lies within {self.domain_str}. "
                f"Write for example upper={-(-self.lower // step) * step}, or a smaller q."
            )
        return _quantize(self, step)

    def _check_not_empty(self) -> None:
        if self.lower == self.upper:
            raise InvalidInputError(
                f"No whole number lies within {self.domain_str}, because the upper bound is left out. "
                f"Use upper={self.upper + 1} to get {self.lower}."
            )


class Categorical(Domain):
    """One of a list of options, which may be anything, nested spaces included."""

    default_sampler = Uniform()

    def __init__(self, categories: Iterable[Any]) -> None:
        self.categories: list[Any] = option_list(categories, "choice")

    @property
    def domain_str(self) -> str:
        """The options as text."""
        return str(self.categories)

    def is_valid(self, value: Any) -> bool:
        """Whether ``value`` is one of the options, or lies within one that is a space itself."""
        return any(_matches(option, value) for option in self.categories)

    def instead_of_options(self, call: str) -> str:
        """What to write instead of this domain as the argument of ``call``, which takes a list of options."""
        return f"It draws already: write it without {call}, or {call}({shown(self.categories)})."

    def uniform(self) -> Categorical:
        """This domain, sampled uniformly."""
        return self._with(Uniform())

    def __len__(self) -> int:
        return len(self.categories)

    def __getitem__(self, item: int) -> Any:
        return self.categories[item]


class _Call:
    """The sampler of a function: it calls it."""

    def draw(self, domain: Any, rng: RandomSource) -> Any:
        return domain.call(None)

    def __repr__(self) -> str:
        return "call()"


class Function(Domain):
    """What a function returns, called with the values drawn before it or with nothing.

    Raises:
        InvalidTypeError: ``func`` cannot be called.
        InvalidInputError: It takes more than one argument.
    """

    default_sampler = _Call()

    def __init__(self, func: Callable[..., Any]) -> None:
        if not callable(func):
            example = "Write for example sample_from(lambda config: 2 * config['x'])."
            raise InvalidTypeError(
                f"sample_from needs a function, got {shown(func)} ({type(func).__name__}). "
                f"{'It draws already: leave sample_from out.' if isinstance(func, Domain) else example}"
            )
        self.func = func
        self.takes_config = _takes_config(func)

    def is_function(self) -> bool:
        """Whether the value is what a function of the other values returns."""
        return True

    @property
    def domain_str(self) -> str:
        """The function's name."""
        return f"{getattr(self.func, '__qualname__', repr(self.func))}()"

    def is_valid(self, value: Any) -> bool:
        """Always true: what a function may return is not known."""
        return True

    def call(self, config: Any) -> Any:
        """The function's value; ``config`` is passed on if the function takes an argument."""
        return self.func(config) if self.takes_config else self.func()

    def _sample_one(self, config: dict[str, Any] | None, rng: RandomSource) -> Any:
        return self.call({} if config is None else config)


def _quantize(domain: D, q: float) -> D:
    if isinstance(domain.sampler, Quantized):
        raise InvalidInputError(
            f"A domain is quantized once: {domain!r} already has q={domain.sampler.q!r}. Drop one of the two."
        )
    new = copy.copy(domain)
    new.sampler = Quantized(domain.get_sampler(), q)
    return new


def _takes_config(func: Callable[..., Any]) -> bool:
    """Whether to pass the config: to any function that can take one positional argument."""
    try:
        parameters = list(inspect.signature(func).parameters.values())
    except (TypeError, ValueError):
        return False  # builtins without a signature, such as numpy.random.rand, draw by themselves
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(needed) > 1 or (needed and needed[0] not in {p.name for p in positional}):
        raise InvalidInputError(
            f"A sample_from function takes no argument or one (the config drawn so far), but "
            f"{getattr(func, '__qualname__', func)!r} needs {needed}. Give the others defaults or bind them."
        )
    return bool(positional)


def _matches(option: Any, value: Any) -> bool:
    if option is value:
        return True
    if isinstance(option, Domain):
        return option.is_valid(value)
    if isinstance(option, dict) and len(option) == 1 and "grid_search" in option:
        return any(_matches(each, value) for each in option["grid_search"])
    if isinstance(option, dict) and isinstance(value, dict):
        return option.keys() == value.keys() and all(_matches(option[k], value[k]) for k in option)
    if isinstance(option, list | tuple) and isinstance(value, list | tuple):
        return len(option) == len(value) and all(map(_matches, option, value))
    try:
        return bool(option == value)
    except Exception:  # arrays answer with an array, whose truth is an error
        return False
