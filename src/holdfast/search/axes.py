"""A parameter's domain as the numbers that libraries for optimisation search over.

Whatever the domain, what a library sees is a float, a whole number, or the number of an option, with bounds that are
both included: a quantized domain is counted in steps, a choice by the index of its options. Owns the way there and
back. Must never choose a value, and knows no library.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

from holdfast.errors import InvalidInputError
from holdfast.search.parameters import TAIL
from holdfast.space.domains import Categorical, Domain, Float, Integer, LogUniform, Normal, Quantized, Uniform

Kind = Literal["float", "int", "option", "normal"]


@dataclass(frozen=True)
class Axis:
    """One parameter, as a library sees it."""

    name: str
    domain: Domain
    kind: Kind
    lower: float = 0
    """Of an unbounded one, its mean."""

    upper: float = 0
    log: bool = False
    step: float = 0
    """What one unit of an "int", or the grain of a "normal", is worth; 0 if it is not quantized."""

    sd: float = 0
    """Of an unbounded one, its standard deviation."""

    @property
    def is_fixed(self) -> bool:
        """Has it only one value, so that there is nothing to search?"""
        return self.sd == 0 if self.kind == "normal" else self.lower == self.upper

    def value(self, raw: Any) -> Any:
        """The domain's value for a library's number; of a choice, the index of the option."""
        if self.kind == "normal":
            return _multiple(round(float(raw) / self.step), self.step) if self.step else float(raw)
        if self.kind == "float":
            return min(max(float(raw), self.lower), self.upper)
        count = min(max(raw if isinstance(raw, int) else round(float(raw)), int(self.lower)), int(self.upper))
        if not self.step:
            return count
        value = _multiple(count, self.step)
        if isinstance(self.domain, Integer):
            return int(value)
        # The bounds may carry rounding noise themselves, and are never passed for it.
        assert isinstance(self.domain, Float)
        return min(max(float(value), self.domain.lower), self.domain.upper)

    def raw(self, value: Any) -> float | int:
        """A library's number for one of the domain's values; of a choice, ``value`` is the index of the option."""
        if self.kind in ("float", "normal"):
            return float(value)
        return round(float(value) / self.step) if self.step else int(value)

    def middle(self) -> float | int:
        """A number that stands for "no matter"."""
        return self.from_share(0.5)

    def share(self, raw: float) -> float:
        """Where a number lies between the bounds, from 0 to 1, as the domain is sampled."""
        if self.kind == "normal":
            return min(max(NormalDist(self.lower, self.sd).cdf(raw), TAIL), 1 - TAIL)
        low, high, at = self._stretched(self.lower), self._stretched(self.upper), self._stretched(raw)
        if self.kind != "float":
            # A whole number is the middle of a cell, and the cells fill the range.
            low, high = self._stretched(self.lower - 0.5), self._stretched(self.upper + 0.5)
        return (at - low) / (high - low) if high > low else 0.5

    def from_share(self, share: float) -> float | int:
        """The opposite of ``share``."""
        if self.kind == "normal":
            return NormalDist(self.lower, self.sd).inv_cdf(min(max(share, TAIL), 1 - TAIL))
        ends = (self.lower, self.upper) if self.kind == "float" else (self.lower - 0.5, self.upper + 0.5)
        low, high = map(self._stretched, ends)
        at = low + share * (high - low)
        raw = math.exp(at) if self.log else at
        if self.kind == "float":
            return min(max(raw, self.lower), self.upper)
        return min(max(round(raw), int(self.lower)), int(self.upper))

    def _stretched(self, raw: float) -> float:
        return math.log(raw) if self.log else raw


def axis_of(name: str, domain: Domain, who: str) -> Axis:
    """The axis of a domain.

    Raises:
        InvalidInputError: Nobody knows how it is distributed.
    """
    if isinstance(domain, Categorical):
        return Axis(name, domain, "option", 0, len(domain) - 1)
    sampler: Any = domain.get_sampler()
    step: float = 0
    if isinstance(sampler, Quantized):
        sampler, step = sampler.sampler, sampler.q
    if isinstance(sampler, Normal):
        return Axis(name, domain, "normal", sampler.mean, step=step, sd=sampler.sd)
    log = isinstance(sampler, LogUniform)
    if (log or isinstance(sampler, Uniform)) and isinstance(domain, Float):
        if step:
            return Axis(name, domain, "int", round(domain.lower / step), round(domain.upper / step), log, step)
        return Axis(name, domain, "float", domain.lower, domain.upper, log)
    if (log or isinstance(sampler, Uniform)) and isinstance(domain, Integer):
        if step > 1:
            q = int(step)
            return Axis(name, domain, "int", -(-domain.lower // q), domain.upper // q, log, q)
        return Axis(name, domain, "int", domain.lower, domain.upper - 1, log)
    raise InvalidInputError(
        f"{who} cannot search over {name!r}: it does not know how {domain!r} is distributed. Use a domain such as "
        "tune.uniform(...) or tune.choice(...)."
    )


def refuse(axis: Axis, who: str, what: str, instead: str) -> InvalidInputError:
    """The error for a domain that a library does not have."""
    return InvalidInputError(
        f"{who} cannot search over {what} at {axis.name!r} ({axis.domain!r}): its library has nothing like it. "
        f"{instead}"
    )


def _multiple(count: int, step: float) -> float:
    """``count * step`` without the noise of multiplying: 3 * 0.1 is 0.30000000000000004."""
    digits = next((d for d in range(17) if round(step, d) == step), None)
    return count * step if digits is None else round(count * step, digits)
