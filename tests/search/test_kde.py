"""BOHB's model of good and bad points."""

from __future__ import annotations

import pytest

from holdfast.search.kde import Density, KDESettings, fit
from holdfast.space.rng import Rng

numpy = pytest.importorskip("numpy")


def test_a_density_of_shares_is_a_mean_of_bells():
    density = Density(numpy.array([[0.2], [0.4]]), [0], 1e-3)
    width = 1.06 * numpy.std([0.2, 0.4], ddof=1) * 2 ** (-1 / 5)
    assert density.bandwidths == pytest.approx([width])
    bells = [
        numpy.exp(-0.5 * ((0.3 - center) / width) ** 2) / (width * numpy.sqrt(2 * numpy.pi)) for center in (0.2, 0.4)
    ]
    assert density.at(numpy.array([[0.3]])) == pytest.approx([sum(bells) / 2])


def test_a_density_integrates_to_one():
    density = Density(numpy.array([[0.5, 0.0], [0.52, 2.0], [0.48, 2.0]]), [0, 3], 1e-3)
    grid = numpy.linspace(0, 1, 2001)
    total = sum(density.at(numpy.array([[x, option] for x in grid])).mean() for option in (0.0, 1.0, 2.0))
    assert total == pytest.approx(1, abs=1e-2)


def test_draws_stay_in_the_cube_and_near_good_points():
    density = Density(numpy.array([[0.01, 1.0], [0.02, 1.0], [0.03, 1.0]]), [0, 4], 1e-3)
    places = [density.draw(Rng([1, n]), 3.0) for n in range(200)]
    assert all(0 <= x <= 1 and option in range(4) for x, option in places)
    assert sum(x < 0.2 for x, _ in places) > 190
    assert sum(option == 1 for _, option in places) > 190


def test_points_that_all_agree_keep_some_width():
    density = Density(numpy.array([[0.5], [0.5], [0.5]]), [0], 0.01)
    assert density.bandwidths == pytest.approx([0.01])


def test_there_is_no_model_of_too_few_points():
    points = [[n / 10] for n in range(10)]
    losses = [float(n) for n in range(10)]
    assert fit(points[:3], losses[:3], [0], KDESettings()) is None
    assert fit(points[:4], losses[:4], [0], KDESettings()) is not None
    assert fit(points, losses, [0], KDESettings(min_points_in_model=6)) is None


def test_failures_are_bad_points():
    points = [[n / 10] for n in range(10)]
    losses = [float("inf")] * 8 + [1.0, 2.0]
    model = fit(points, losses, [0], KDESettings())
    assert model is not None
    assert sorted(model.good.points.ravel().tolist()) == [0.8, 0.9]


def test_proposals_lie_where_points_are_good():
    points = [[n / 40] for n in range(40)]
    model = fit(points, [abs(x - 0.7) for (x,) in points], [0], KDESettings())
    assert model is not None
    places = [model.propose(Rng([2, n]), KDESettings())[0] for n in range(30)]
    assert all(0.5 < place < 0.9 for place in places)
