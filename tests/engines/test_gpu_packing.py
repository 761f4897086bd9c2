"""Which GPUs there are, and which of them an attempt gets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engine_harness import LocalDriver, gone
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.observations import Died, Returned
from holdfast.engines.gpu import GpuPool, visible_gpus
from holdfast.trainable.worker_messages import Decision

Drive = Callable[..., LocalDriver]

ASK = "report(gpus=os.environ['CUDA_VISIBLE_DEVICES'], pid=os.getpid())"


def test_fractions_share_a_device_and_whole_gpus_get_whole_ones() -> None:
    pool = GpuPool({"0": 1.0, "1": 1.0, "2": 1.0})
    assert pool.take(0.5) == ("0",)
    assert pool.take(1.0) == ("1",)
    assert pool.take(0.5) == ("0",)
    assert pool.take(0.25) == ("2",)
    assert pool.take(1.0) is None
    pool.give_back(("1",), 1.0)
    assert pool.take(0.8) == ("1",)
    assert pool.take(0.25) == ("2",)


def test_a_fraction_goes_where_it_leaves_the_least() -> None:
    pool = GpuPool({"0": 1.0, "1": 1.0})
    assert pool.take(0.3) == ("0",)
    assert pool.take(0.8) == ("1",)
    assert pool.take(0.2) == ("1",)


@pytest.mark.parametrize("parts", [2, 3, 6, 7, 9])
def test_as_many_equal_parts_as_asked_for_fit_on_one_device(parts: int) -> None:
    pool = GpuPool({"0": 1.0})
    assert [pool.take(1 / parts) for _ in range(parts)] == [("0",)] * parts
    assert pool.take(1 / parts) is None


def test_what_can_never_be_met_is_said() -> None:
    pool = GpuPool({"0": 1.0, "1": 0.5})
    assert pool.why_never(0.5) == pool.why_never(1.0) == ""
    assert "whole" in pool.why_never(2.0)
    assert "1.5" in pool.why_never(1.5)
    assert "no device" in GpuPool({"0": 0.5}).why_never(0.75)
    assert GpuPool({}).why_never(1.0)


@given(st.lists(st.sampled_from([0.1, 0.25, 0.5, 0.9, 1.0, 2.0, -1.0]), max_size=60))
def test_no_device_is_ever_given_twice(requests: list[float]) -> None:
    """Negative requests give the oldest one back."""
    pool, held = GpuPool(dict.fromkeys("0123", 1.0)), []
    for amount in requests:
        if amount < 0:
            if held:
                pool.give_back(*held.pop(0))
            continue
        gpus = pool.take(amount)
        if gpus is not None:
            held.append((gpus, amount))
            assert len(gpus) == max(1, int(amount))
        for gpu in "0123":
            assert sum(min(a, 1.0) for g, a in held if gpu in g) <= 1.0 + 1e-9


def test_the_gpus_of_the_environment_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-abc")
    assert visible_gpus(None) == {"3": 1.0, "GPU-abc": 1.0}
    assert visible_gpus(1) == {"3": 1.0}
    assert visible_gpus(2.5) == {"3": 1.0, "GPU-abc": 1.0, "2": 0.5}
    for hidden in ("", "-1", "NoDevFiles"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert visible_gpus(None) == {}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus(0.5) == {"0": 0.5}


def test_a_trial_sees_its_gpus_and_no_others(drive: Drive) -> None:
    driver = drive(gpus=2)
    driver.ran(0, ASK)
    assert driver.metrics(0)["gpus"] == ""
    driver.answers = {(n, 1): "" for n in (1, 2, 3)}
    for n, amount in ((1, 0.5), (2, 0.5), (3, 1.0)):
        driver.code(n, ASK, gpus=amount)
        driver.metrics(n)
    assert [driver.metrics(n)["gpus"] for n in (1, 2, 3)] == ["0", "0", "1"]


def test_each_gpu_trial_gets_a_fresh_process_and_frees_the_device_when_that_is_gone(drive: Drive) -> None:
    driver = drive(gpus=1)
    for n in range(3):
        assert isinstance(driver.ran(n, ASK, gpus=1.0), Returned)
        assert gone([driver.pid_of(n)])
        assert driver.metrics(n)["gpus"] == "0"
    assert len({driver.pid_of(n) for n in range(3)}) == 3


def test_reused_instances_keep_their_process_on_the_same_gpus_only(drive: Drive) -> None:
    driver = drive(gpus=2, setup={"reuse_instances": True})
    driver.ran(0, ASK, gpus=1.0)
    driver.ran(1, ASK, gpus=1.0)
    assert driver.pid_of(0) == driver.pid_of(1)
    driver.ran(2, ASK)
    assert driver.pid_of(2) != driver.pid_of(0)
    driver.ran(3, ASK, gpus=2.0)
    assert driver.metrics(3)["gpus"] == "0,1"
    assert gone([driver.pid_of(0)]), "an idle process must not hold memory of a device that is given away"


def test_an_attempt_waits_for_a_device_that_the_sum_promised(drive: Drive) -> None:
    driver = drive(gpus=2)
    driver.answers = {(n, 1): "" for n in range(3)}
    for n in range(3):
        driver.code(n, ASK, gpus=0.6)
    assert [driver.metrics(n)["gpus"] for n in (0, 1)] == ["0", "1"]
    assert not driver.reports_of(2)
    driver.engine.reply(1, 1, Decision(1))
    driver.end_of(1)
    assert driver.metrics(2)["gpus"] == "1"


def test_an_attempt_that_waits_for_a_device_can_be_halted(drive: Drive) -> None:
    driver = drive(gpus=1)
    driver.answers[0, 1] = ""
    driver.code(0, ASK, gpus=1.0)
    driver.code(1, ASK, gpus=1.0)
    driver.engine.halt(1, 1, 5.0)
    assert isinstance(driver.end_of(1), Died)
    driver.engine.halt(0, 1, 0.0)
    driver.end_of(0)
    assert isinstance(driver.ran(2, ASK, gpus=1.0), Returned)


def test_an_attempt_that_can_never_have_its_gpus_dies_with_the_reason(drive: Drive) -> None:
    driver = drive(gpus=1)
    driver.code(0, ASK, gpus=2.0)
    end = driver.end_of(0)
    assert isinstance(end, Died)
    assert "2 whole GPUs" in end.detail


def test_a_killed_gpu_trial_frees_its_device(drive: Drive) -> None:
    driver = drive(gpus=1)
    assert isinstance(driver.ran(0, "report()\nos._exit(1)", gpus=1.0), Died)
    assert isinstance(driver.ran(1, ASK, gpus=1.0), Returned)
