"""The lists of a driver's steps: complete, without a stranger, and followed by every driver."""

from __future__ import annotations

import inspect

import pytest

from holdfast.controller.driver import Driver
from holdfast.controller.lifecycle import LEAVING, OPENING, STARTING, DriverLife

STEPS = (*OPENING, *STARTING, *LEAVING)
PARTS = {"first_records", "epoch_recorded", "needed_change", "resumed", "sweep", "take"}  # of steps, or of all of them


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_every_step_is_a_method_that_says_what_it_relies_on(step: object) -> None:
    assert inspect.getdoc(getattr(DriverLife, step.name))  # type: ignore[attr-defined]
    assert step.relies_on  # type: ignore[attr-defined]


def test_every_method_of_a_drivers_life_is_a_step_or_a_part_of_one() -> None:
    methods = {name for name, _ in inspect.getmembers(DriverLife, inspect.isfunction) if not name.startswith("_")}
    assert methods - PARTS == {step.name for step in STEPS}


def test_no_driver_has_an_order_of_its_own() -> None:
    assert "take" not in vars(Driver)
    assert not Driver.__abstractmethods__
