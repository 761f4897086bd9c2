"""Domains as Optuna's distributions, and back.

What Optuna has no distribution for (normally distributed values, steps on a logarithmic scale) is searched by its
quantile, a number between 0 and 1. An option that is not a plain value, or that another one equals, is searched by its
number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import import_module
from statistics import NormalDist
from typing import Any

from holdfast.errors import InvalidInputError
from holdfast.search.parameters import TAIL, Parameters, index_of, value_at
from holdfast.space.domains import Categorical, Domain, Float, Integer, LogUniform, Normal, Quantized, Uniform
from holdfast.space.nested import SCALARS
from holdfast.space.rng import Rng

MAX_DIGITS = 12
"""A step with more decimals than this has no exact multiples that Optuna could count."""

SEEDS = 1 << 32
"""NumPy's older generators, which samplers use, take seeds below this."""


def load_optuna() -> Any:
    """The library.

    Raises:
        ImportError: It is not installed.
    """
    try:
        return import_module("optuna")
    except ImportError as error:
        raise ImportError(
            "OptunaSearch needs optuna, which is not installed. Type: pip install 'holdfast[optuna]'"
        ) from error


class Native(Domain):
    """A distribution that the user took from Optuna."""

    def __init__(self, distribution: Any) -> None:
        self.distribution = distribution

    @property
    def domain_str(self) -> str:
        """The distribution as text."""
        return str(self.distribution)

    def is_valid(self, value: Any) -> bool:
        """Whether ``value`` is a number within the bounds."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and bool(self.distribution.low <= value <= self.distribution.high)


def with_domains(space: Mapping[str, Any]) -> dict[str, Any]:
    """A space with domains in place of Optuna's distributions."""
    kinds = load_optuna().distributions

    def converted(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: converted(value) for key, value in node.items()}
        if isinstance(node, list | tuple):
            values = [converted(value) for value in node]
            return tuple(values) if type(node) is tuple else values
        if isinstance(node, kinds.CategoricalDistribution):
            return Categorical(node.choices)
        return Native(node) if isinstance(node, kinds.BaseDistribution) else node

    return {key: converted(value) for key, value in space.items()}


def distribution_of(domain: Domain) -> Any:
    """What Optuna samples instead of the domain."""
    kinds = load_optuna().distributions
    if isinstance(domain, Native):
        return domain.distribution
    if isinstance(domain, Categorical):
        choices = domain.categories if _are_plain(domain.categories) else range(len(domain))
        return kinds.CategoricalDistribution(tuple(choices))
    if _is_searched_by_quantile(domain):
        return kinds.FloatDistribution(0.0, 1.0)
    sampler, step = _sampler_of(domain)
    logarithmic = isinstance(sampler, LogUniform)
    if isinstance(domain, Float):
        if step:
            return kinds.FloatDistribution(multiple_of(domain.lower, step), multiple_of(domain.upper, step), step=step)
        return kinds.FloatDistribution(domain.lower, domain.upper, log=logarithmic)
    assert isinstance(domain, Integer)
    if step > 1:
        q = int(step)
        return kinds.IntDistribution(-(-domain.lower // q) * q, domain.upper // q * q, step=q)
    return kinds.IntDistribution(domain.lower, domain.upper - 1, log=logarithmic)


def distributions_of(domains: Mapping[str, Domain]) -> dict[str, Any]:
    """The distributions that draw the very values of these domains.

    Raises:
        InvalidInputError: There is none for one of them.
    """
    for name, domain in domains.items():
        searched_otherwise = isinstance(domain, Categorical) and not _are_plain(domain.categories)
        if searched_otherwise or (not isinstance(domain, Categorical | Native) and _is_searched_by_quantile(domain)):
            raise InvalidInputError(
                f"Optuna has no distribution for {name!r} ({domain!r}). Give the space to param_space as it is."
            )
    return {name: distribution_of(domain) for name, domain in domains.items()}


def ask(trial: Any, name: str, domain: Domain) -> Any:
    """A value that Optuna suggests for the domain; of a choice, the number of the option."""
    kinds = load_optuna().distributions
    distribution = distribution_of(domain)
    if isinstance(distribution, kinds.CategoricalDistribution):
        given = trial.suggest_categorical(name, distribution.choices)
    else:
        suggest = trial.suggest_int if isinstance(distribution, kinds.IntDistribution) else trial.suggest_float
        # Optuna wants no step beside a logarithm, not even the one that it has put into the distribution itself.
        more = {"log": True} if distribution.log else {"step": distribution.step}
        given = suggest(name, distribution.low, distribution.high, **more)
    return value_of(domain, given)


def value_of(domain: Domain, given: Any) -> Any:
    """The domain's value for what Optuna gave; of a choice, the number of the option."""
    if isinstance(domain, Categorical):
        return index_of(domain, given) if _are_plain(domain.categories) else int(given)
    if isinstance(domain, Native):
        return given
    if _is_searched_by_quantile(domain):
        return value_at(domain, float(given))
    if isinstance(domain, Integer):
        return int(given)
    step = _sampler_of(domain)[1]
    return multiple_of(given, step) if step else float(given)


def given_for(domain: Domain, value: Any) -> Any:
    """What Optuna would have given for a value of the domain; for a choice, ``value`` is the number of the option."""
    if isinstance(domain, Categorical):
        return domain.categories[value] if _are_plain(domain.categories) else int(value)
    if isinstance(domain, Native):
        return value
    if _is_searched_by_quantile(domain):
        return _quantile_of(domain, float(value))
    return int(value) if isinstance(domain, Integer) else float(value)


def distributions_for(parameters: Parameters, given: Mapping[str, Any]) -> dict[str, Any]:
    """The distributions of all parameters that count if Optuna has given these.

    Raises:
        ValueError: One is missing, or is no option of its choice.
    """
    found: dict[str, Any] = {}

    def pick(name: str, domain: Domain) -> Any:
        if name not in given:
            raise ValueError(f"{name!r} is missing")
        found[name] = distribution_of(domain)
        value = value_of(domain, given[name])
        if isinstance(domain, Categorical) and (value is None or not 0 <= value < len(domain)):
            raise ValueError(f"{name!r} is {given[name]!r}, which is not within {domain.domain_str}")
        return value

    parameters.choose(pick)
    return found


def seed_all(sampler: Any, seed: int) -> None:
    """Give a seed to every generator of a sampler that has none: Optuna makes those only when they are first used."""
    lazy = type(load_optuna().samplers.RandomSampler()._rng)
    seen: set[int] = set()
    count = 0

    def visit(node: Any) -> None:
        nonlocal count
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, lazy):
            if node._rng is None:
                node.rng.seed(Rng([seed, count]).integers(0, SEEDS))
            count += 1
        elif type(node).__module__.startswith("optuna.samplers") or hasattr(node, "sample_independent"):
            for value in getattr(node, "__dict__", {}).values():
                visit(value)

    visit(sampler)


def _are_plain(options: list[Any]) -> bool:
    """Can Optuna itself tell these options apart? For it, 1 and True are one, and so it is for NaN and NaN."""
    plain = all(type(option) in SCALARS and option == option for option in options)
    return plain and len(set(options)) == len(options)


def _sampler_of(domain: Domain) -> tuple[Any, float]:
    """How the domain is sampled, and its step; 0 if it has none."""
    sampler = domain.get_sampler()
    return (sampler.sampler, sampler.q) if isinstance(sampler, Quantized) else (sampler, 0)


def _is_searched_by_quantile(domain: Domain) -> bool:
    sampler, step = _sampler_of(domain)
    if isinstance(sampler, LogUniform):
        return step > (1 if isinstance(domain, Integer) else 0)
    if isinstance(sampler, Uniform):
        return isinstance(domain, Float) and step > 0 and _decimals(step) is None
    return True


def _quantile_of(domain: Any, value: float) -> float:
    sampler, _ = _sampler_of(domain)
    if isinstance(sampler, Normal):
        share = NormalDist(sampler.mean, sampler.sd).cdf(value) if sampler.sd else 0.5
        return min(max(share, TAIL), 1 - TAIL)
    lower, upper = float(domain.lower), float(domain.upper)
    if isinstance(sampler, LogUniform):
        lower, upper, value = math.log(lower), math.log(upper), math.log(value)
    return min(max((value - lower) / (upper - lower), 0.0), 1.0) if upper > lower else 0.0


def _decimals(step: float) -> int | None:
    return next((count for count in range(MAX_DIGITS + 1) if round(step, count) == step), None)


def multiple_of(value: float, step: float) -> float:
    """The multiple of ``step`` next to a value, without the noise of multiplying."""
    decimals = _decimals(step)
    multiple = round(value / step) * step
    return multiple if decimals is None else round(multiple, decimals)
