"""The model of BOHB: two kernel density estimates over the unit cube, one of good points and one of bad ones.

A point is an array with one number for each parameter: the share of its range, or of an unordered one the number of
the option. Owns the estimates and the way to draw from them. Must never keep a generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

from holdfast.space.rng import Rng

SMALLEST = 1e-32
"""Densities below this are all the same."""


class KDESettings(NamedTuple):
    """How the model is made and drawn from; the names and defaults of BOHB's authors."""

    min_points_in_model: int | None = None
    """Results that it takes to make a model; None for one more than there are parameters."""

    top_n_percent: int = 15
    """Which share of the points is good."""

    num_samples: int = 64
    """How many points are drawn to take the most promising one."""

    random_fraction: float = 1 / 3
    """How often a point is drawn at random instead."""

    bandwidth_factor: float = 3.0
    """How much wider than the estimate the draws are."""

    min_bandwidth: float = 1e-3
    """Keeps some width where all good points agree."""


class Density:
    """A kernel density estimate: normal kernels for shares, and Aitchison and Aitken's for options.

    Args:
        points: One a row.
        options: For each column the number of options; 0 for a share.
        min_bandwidth: The smallest width.
    """

    def __init__(self, points: Any, options: Sequence[int], min_bandwidth: float) -> None:
        import numpy

        self.points = points
        self.options = options
        count, width = points.shape
        # The normal reference rule: right for normal data, and good enough for any.
        rule = 1.06 * points.std(axis=0, ddof=min(1, count - 1)) * count ** (-1.0 / (4 + width))
        highest = [1.0 if n == 0 else (n - 1) / n for n in options]
        self.bandwidths = numpy.minimum(numpy.maximum(rule, min_bandwidth), highest)

    def at(self, places: Any) -> Any:
        """The density at each of several places."""
        import numpy

        product = numpy.ones((len(places), len(self.points)))
        for column, options in enumerate(self.options):
            width = self.bandwidths[column]
            distance = places[:, column, None] - self.points[None, :, column]
            if options:
                product *= numpy.where(distance == 0, 1 - width, width / (options - 1))
            else:
                product *= numpy.exp(-0.5 * (distance / width) ** 2) / (width * (2 * numpy.pi) ** 0.5)
        return product.mean(axis=1)

    def draw(self, rng: Rng, factor: float) -> list[float]:
        """A place near one of the points.

        Args:
            rng: Decides everything.
            factor: How much wider than the estimate.
        """
        near = self.points[rng.integers(0, len(self.points))]
        place = []
        for column, options in enumerate(self.options):
            center, width = float(near[column]), float(self.bandwidths[column])
            if options:
                keep = rng.random() >= width
                place.append(center if keep else float(rng.integers(0, options)))
            else:
                bell = NormalDist(center, width * factor)
                low, high = bell.cdf(0.0), bell.cdf(1.0)
                share = min(max(low + rng.random() * (high - low), 1e-12), 1 - 1e-12)
                place.append(min(max(bell.inv_cdf(share), 0.0), 1.0))
        return place


class KDEModel(NamedTuple):
    """What is known about good and bad points."""

    good: Density
    bad: Density

    def propose(self, rng: Rng, settings: KDESettings) -> list[float]:
        """The most promising of many places near good points."""
        import numpy

        places = [self.good.draw(rng, settings.bandwidth_factor) for _ in range(settings.num_samples)]
        rows = numpy.array(places)
        ratio = numpy.maximum(self.bad.at(rows), SMALLEST) / numpy.maximum(self.good.at(rows), SMALLEST)
        return places[int(ratio.argmin())]


def fit(
    points: Sequence[Sequence[float]], losses: Sequence[float], options: Sequence[int], settings: KDESettings
) -> KDEModel | None:
    """A model of these results; None if they are too few.

    Args:
        points: The places.
        losses: How they did: less is better, and infinite if they failed.
        options: For each parameter the number of options; 0 for a share.
        settings: How many points are good, and how many are needed.
    """
    least = max(settings.min_points_in_model or 0, len(options) + 1)
    good = max(least, settings.top_n_percent * len(points) // 100)
    if len(points) < good + least:
        return None
    import numpy

    rows = numpy.array(points, dtype=float)
    order = numpy.argsort(numpy.array(losses, dtype=float), kind="stable")
    width = settings.min_bandwidth
    return KDEModel(Density(rows[order[:good]], options, width), Density(rows[order[good:]], options, width))
