"""A search space as named parameters, those inside the options of choices included.

A choice may have options with domains of their own, ``choice([{"kind": "svm", "c": uniform(0, 1)}, ...])``. Then the
choice is one parameter, and each domain inside an option is another that counts only if the option was chosen; its
name is that of the choice with the option's number, ``model[0]/c``.

Owns names, conditions and the way between a config and its parameters. Must never choose a value itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

from holdfast.search.spaces import Filler, domains_of
from holdfast.space.domains import Categorical, Domain
from holdfast.space.exact import VALUE, is_exact, is_mapping, pack, shown
from holdfast.space.nested import Path, Slot, carve, copy_tree, joined
from holdfast.space.objects import extract_objects, pack_space

Pick = Callable[[str, Domain], Any]
"""Name and domain of a parameter -> its value; of a choice, the number of the option."""

TAIL = 1e-9
"""How near to 0 and 1 a quantile of an unbounded domain may come."""

_ABSENT = object()


class Quantile:
    """A source of random numbers that is always at the same place of every distribution.

    Drawing from a domain with it gives the value below which that share of all draws lies.

    Args:
        share: Between 0 and 1.
    """

    def __init__(self, share: float) -> None:
        self._share = share

    def random(self) -> float:
        """The share itself."""
        return self._share

    def uniform(self, low: float, high: float) -> float:
        """A number between the bounds."""
        return low + (high - low) * self._share

    def integers(self, low: int, high: int) -> int:
        """A whole number, ``high`` left out."""
        return min(low + int(self._share * (high - low)), high - 1)

    def normal(self, mean: float, sd: float) -> float:
        """A normally distributed number."""
        return NormalDist(mean, sd).inv_cdf(min(max(self._share, TAIL), 1 - TAIL)) if sd else mean


@dataclass
class Reading:
    """The parameters that a config comes from."""

    values: dict[str, Any] = field(default_factory=dict)
    """By name; of a choice, the number of the option."""

    missing: list[str] = field(default_factory=list)
    """Names of parameters for which the config has no value."""

    outside: dict[str, Any] = field(default_factory=dict)
    """Values that are not of the parameter's domain, by name."""


class Parameters:
    """The parameters of a space.

    Args:
        space: The space, plain data and domains.
        who: The searcher's name, for messages.

    Raises:
        InvalidInputError: It holds a grid or a function.
    """

    def __init__(self, space: Mapping[str, Any], who: str) -> None:
        # Tagged, as configs are: so options are compared with what was recorded, and suggestions keep their types.
        space = pack_space(space)
        self.domains = domains_of(space, who)
        self._filler = Filler(space, who)
        slots: list[Slot] = []
        carve(dict(space), (), slots)
        self._paths: dict[str, Path] = {joined(slot.path): slot.path for slot in slots}
        self._inside: dict[str, Parameters] = {}
        """What is still to be chosen once an option is, by the name of the option, ``model[0]``."""
        for name, domain in self.domains.items():
            for index, option in enumerate(domain.categories if isinstance(domain, Categorical) else ()):
                inside = Parameters({_option(name, index): option}, who)
                if inside.domains:
                    self._inside[_option(name, index)] = inside

    def path_of(self, name: str) -> Path | None:
        """Where a parameter stands in the space; None if there is none of this name, or it is inside an option."""
        return self._paths.get(name)

    def has_below(self, name: str) -> bool:
        """Are there parameters below this place?"""
        return any(other.startswith(f"{name}/") for other in self._paths)

    def all(self) -> dict[str, Domain]:
        """Every parameter there may be, whatever is chosen."""
        found = {}
        for name, domain in self.domains.items():
            found[name] = domain
            for index in range(len(domain) if isinstance(domain, Categorical) else 0):
                inside = self._inside.get(_option(name, index))
                found.update(inside.all() if inside is not None else {})
        return found

    def choose(self, pick: Pick) -> dict[str, Any]:
        """Values for all places of the space, by path.

        Args:
            pick: Called once for every parameter that counts, in the order in which they are written.
        """
        values = {}
        for name, domain in self.domains.items():
            value = pick(name, domain)
            values[name] = self._chosen(name, domain, value, pick) if isinstance(domain, Categorical) else value
        return values

    def _chosen(self, name: str, domain: Categorical, index: int, pick: Pick) -> Any:
        option = _option(name, index)
        inside = self._inside.get(option)
        if inside is None:
            return copy_tree(domain.categories[index])
        return inside.config(inside.choose(pick))[option]

    def config(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The whole space with these values, by path, in it."""
        return self._filler.config(values)

    def read(self, config: Mapping[str, Any]) -> Reading:
        """The parameters that a config comes from.

        Args:
            config: Nested as the space is, or flat with paths as keys. A place that still has a domain counts as
                missing.
        """
        reading = Reading()
        config = pack(dict(config), lambda value, _: value)
        flat = config[VALUE] if is_mapping(config) else config
        for name, domain in self.domains.items():
            value = flat[name] if name in flat else _at(config, self._paths[name])
            if value is _ABSENT or isinstance(value, Domain):
                reading.missing.append(name)
            elif isinstance(domain, Categorical):
                self._read_choice(name, domain, value, reading)
            elif domain.is_valid(value):
                reading.values[name] = value
            else:
                reading.outside[name] = value
        return reading

    def _read_choice(self, name: str, domain: Categorical, value: Any, reading: Reading) -> None:
        index = index_of(domain, value)
        if index is None:
            reading.outside[name] = value
            return
        reading.values[name] = index
        option = _option(name, index)
        if option in self._inside:
            below = self._inside[option].read({option: value})
            reading.values.update(below.values)
            reading.missing += below.missing
            reading.outside.update(below.outside)


def index_of(domain: Categorical, value: Any) -> int | None:
    """The number of the option that a value is, or lies within; None if it is none of them."""
    for index, option in enumerate(domain.categories):
        if option is value or (type(option) is type(value) and bool(option == value)):
            return index
    for index, option in enumerate(domain.categories):
        if Categorical([option]).is_valid(value):
            return index
    for index, option in enumerate(domain.categories):
        if is_exact(option) and shown(option) == shown(value):
            return index  # it comes from a file that knows no tuples
    return None


def value_at(domain: Domain, share: float) -> Any:
    """The value below which this share of the domain's draws lies; of a choice, the number of the option."""
    if isinstance(domain, Categorical):
        return Quantile(share).integers(0, len(domain))
    return domain.draw(Quantile(share))


def has_objects(value: Mapping[str, Any]) -> bool:
    """Is there anything in it that is not plain data?"""
    return bool(extract_objects(value)[1])


def _option(name: str, index: int) -> str:
    return f"{name}[{index}]"


def _at(tree: Any, path: Path) -> Any:
    for part in path:
        if isinstance(tree, str):
            return _ABSENT
        try:
            tree = tree[part]
        except (KeyError, IndexError, TypeError):
            return _ABSENT
    return tree
