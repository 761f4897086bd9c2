"""Torch tensors in reports: those with one element are numbers, the others are refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from holdfast.trainable.metrics import plain_metrics

torch: Any = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("tensor", "number"),
    [
        (torch.tensor(0.5), 0.5),
        (torch.tensor([0.5]), 0.5),
        (torch.tensor([[0.5]], dtype=torch.float64), 0.5),
        (torch.tensor(0.5, requires_grad=True), 0.5),
        (torch.tensor(0.5, requires_grad=True) * 2, 1.0),
        (torch.nn.Parameter(torch.tensor([0.25])), 0.25),
        (torch.tensor(1.5, dtype=torch.bfloat16), 1.5),
        (torch.tensor(1.5, dtype=torch.float16), 1.5),
        (torch.tensor(3), 3),
        (torch.tensor(True), True),
        (torch.tensor(math.inf), math.inf),
    ],
)
def test_a_tensor_of_one_element_is_a_number(tensor: Any, number: Any) -> None:
    for is_function in (True, False):
        found = plain_metrics({"loss": tensor, "a": {"b": [tensor]}}, set(), refuse_tensors=is_function)
        assert found == {"loss": number, "a": {"b": [number]}}
        assert type(found["loss"]) is type(number)


def test_nan_in_a_tensor_is_nan() -> None:
    assert math.isnan(plain_metrics({"loss": torch.tensor(math.nan)}, set())["loss"])


@pytest.mark.parametrize("tensor", [torch.zeros(2), torch.zeros(0), torch.zeros(1, device="meta"), torch.tensor(1j)])
def test_other_tensors_are_refused_by_name(tensor: Any) -> None:
    with pytest.raises(ValueError, match=r"the metric 'a/losses' is a Torch tensor of shape \(.*tolist"):
        plain_metrics({"a": {"losses": tensor}}, set())


def test_a_report_of_the_loss_as_it_is_works_end_to_end(tmp_path: Any) -> None:
    import holdfast as tune

    def train(config: dict[str, Any]) -> Any:
        weight = torch.nn.Parameter(torch.tensor([2.0]))
        loss = (weight * 3).sum()
        loss.backward()
        tune.report({"loss": loss, "grad": weight.grad})
        return loss

    (result,) = tune.Tuner(train, run_config=tune.RunConfig(storage_path=tmp_path, verbose=0)).fit()
    assert result.error is None
    assert [row.get("loss") for row in result.metrics_history] == [6.0, None]
    assert result.metrics["_metric"] == 6.0
