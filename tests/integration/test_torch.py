"""PyTorch: the state of a training loop, and loops that were killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from interrupted import check_same_history, kill_and_restore

import holdfast as tune
from holdfast.errors import InvalidInputError, InvalidTypeError

pytestmark = pytest.mark.slow


def import_libraries():
    global torch, TrainingState
    torch = pytest.importorskip("torch", exc_type=ImportError)
    from holdfast.integration.torch import TrainingState


def test_a_killed_training_ends_with_the_same_weights(tmp_path):
    whole, broken, before, after = kill_and_restore(tmp_path, "train_torch")
    assert (before, after) == ([1, 2, 3, 4, 5], [5, 6, 7, 8])
    check_same_history(whole, broken, "loss")
    saved = [torch.load(Path(found.checkpoint.path, "state.pt"), weights_only=True) for found in (whole, broken)]
    first, second = (state["parts"]["model"] for state in saved)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert saved[0]["chance"]["torch"] == saved[1]["chance"]["torch"]


def test_a_part_without_a_state_is_refused():
    with pytest.raises(InvalidTypeError, match=r"rate=0\.1 has no state"):
        TrainingState(rate=0.1)
    with pytest.raises(InvalidInputError, match="nothing to save"):
        TrainingState()


def test_a_checkpoint_with_other_parts_is_refused(tmp_path):
    def train(config):
        model = torch.nn.Linear(1, 1)
        parts = {"model": model} if tune.get_checkpoint() is None else {"network": model}
        state = TrainingState(**parts, generator=torch.Generator())
        state.resume()
        state.report({"x": 1})
        raise RuntimeError("again, please")

    run_config = tune.RunConfig(
        storage_path=str(tmp_path), verbose=0, failure_config=tune.FailureConfig(max_failures=1)
    )
    (result,) = tune.Tuner(train, run_config=run_config).fit()
    assert "holds ['generator', 'model']" in str(result.error)
    assert "given ['generator', 'network']" in str(result.error)
