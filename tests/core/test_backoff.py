"""The one formula for delays between tries, and the delays that its users have promised."""

import math

import pytest

from holdfast.controller import checkpoint_jobs
from holdfast.core import trial_delays
from holdfast.core.backoff import Backoff
from holdfast.shipping import shipper
from holdfast.storage import options
from holdfast.sync import synced_copy


def test_without_a_failure_there_is_no_delay():
    assert Backoff(0.5, 8.0).delay_s(0) == 0.0


def test_a_delay_doubles_with_each_failure_and_stays_at_the_longest():
    assert [Backoff(0.5, 3.0).delay_s(failures) for failures in range(1, 7)] == [0.5, 1.0, 2.0, 3.0, 3.0, 3.0]


def test_a_delay_grows_by_the_factor():
    assert [Backoff(1.0, 50.0, factor=3.0).delay_s(failures) for failures in range(1, 6)] == [1.0, 3.0, 9.0, 27.0, 50.0]


def test_the_longest_delay_may_be_shorter_than_the_first():
    assert Backoff(5.0, 1.0).delay_s(1) == 1.0


@pytest.mark.parametrize("longest_s", [8.0, math.inf])
def test_more_failures_than_a_float_can_be_doubled_give_the_longest_delay(longest_s):
    assert Backoff(0.5, longest_s).delay_s(1_000_000) == longest_s


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (options.REQUEST_BACKOFF, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]),
        (shipper.RETRY, [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]),
        (checkpoint_jobs.RETRY, [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]),
        (synced_copy.ROUND_RETRY, [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]),
        (synced_copy.FLUSH_RETRY, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]),
        (trial_delays.NO_PROGRESS, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]),
        (trial_delays.FULL_DISK, [1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0, 15.0]),
    ],
)
def test_each_edge_waits_as_long_as_it_says(backoff, delays):
    assert [backoff.delay_s(failures) for failures in range(1, 9)] == delays
