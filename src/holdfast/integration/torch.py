"""PyTorch: save and load everything that a training loop continues with.

Owns the format of its file, which ``torch.load(weights_only=True)`` reads. Must never hold on to tensors.
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.integration import chance
from holdfast.integration.reporting import Saving, load_framework
from holdfast.trainable.api import report

torch = load_framework("torch", "torch", "torch")

__all__ = ["TrainingState"]


class TrainingState:
    """Everything that a training loop continues with: model, optimizer and the like, and the random numbers.

    The random numbers are those of PyTorch (of all GPUs too), NumPy and Python, so that a loop which was killed
    continues with the batches and the dropout that it would have had.

    Args:
        frequency: Save with every so many reports; 0 saves only when the driver is about to end.
        filename: The file in the checkpoint.
        **parts: By names of your choice: whatever has ``state_dict`` and ``load_state_dict`` (modules, optimizers,
            schedulers, scalers), or ``get_state`` and ``set_state`` (``torch.Generator``).

    Raises:
        InvalidTypeError: A part has no state.
        InvalidInputError: An argument is wrong.

    Example:
        >>> def train(config):
        ...     torch.manual_seed(config["seed"])
        ...     model = make_model()
        ...     optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
        ...     state = TrainingState(model=model, optimizer=optimizer)
        ...     for epoch in range(state.resume(), 10):
        ...         loss = train_one_epoch(model, optimizer)
        ...         state.report({"loss": loss})
    """

    def __init__(self, *, frequency: int = 1, filename: str = "state.pt", **parts: Any) -> None:
        if not parts:
            raise InvalidInputError("TrainingState() has nothing to save. Name its parts: TrainingState(model=model).")
        self._saving = Saving(filename, frequency, False)
        for name, part in parts.items():
            if _methods(part) is None:
                raise InvalidTypeError(
                    f"{name}={part!r} has no state: expected an object with state_dict() and load_state_dict(), or "
                    "with get_state() and set_state()."
                )
        self._parts = parts
        self.steps = 0
        """How many reports there were, those of earlier attempts included."""

    def resume(self) -> int:
        """Load the trial's checkpoint, if it has one, into all parts.

        Values that a configuration may change, such as a learning rate under population based training, are those of
        the checkpoint afterwards: set them after this.

        Returns:
            How many reports there were before: 0 for a trial that begins.

        Raises:
            InvalidInputError: The checkpoint was not saved by this class, or with other parts.
        """
        with self._saving.resumed() as found:
            if found is None:
                return 0
            path, _ = found
            saved = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(saved, dict) or not {"parts", "steps", "chance"} <= saved.keys():
            raise InvalidInputError(f"{path} was not written by TrainingState. It is unchanged.")
        if saved["parts"].keys() != self._parts.keys():
            raise InvalidInputError(
                f"The checkpoint holds {sorted(saved['parts'])}, and TrainingState was given {sorted(self._parts)}. "
                "Name the same parts; the checkpoint is unchanged."
            )
        for name, part in self._parts.items():
            _, load = _methods(part) or (None, None)
            getattr(part, str(load))(saved["parts"][name])
        chance.restore(saved["chance"])
        self.steps = int(saved["steps"])
        return self.steps

    def report(self, metrics: dict[str, Any]) -> None:
        """Report, with a checkpoint if one is due.

        Durability:
            As with ``tune.report``: when this returns, the report and its checkpoint survive the death of every
            process.
        """
        step = self.steps + 1
        if self._saving.due(step):
            self._saving.report(metrics, lambda path: torch.save(self._state(step), path), {"steps": step})
        else:
            report(metrics)
        self.steps = step

    def _state(self, step: int) -> dict[str, Any]:
        parts = {name: getattr(part, (_methods(part) or ("", ""))[0])() for name, part in self._parts.items()}
        return {"parts": parts, "steps": step, "chance": chance.state()}


def _methods(part: Any) -> tuple[str, str] | None:
    """The names of the methods that read and set a part's state."""
    for names in (("state_dict", "load_state_dict"), ("get_state", "set_state")):
        if all(callable(getattr(part, name, None)) for name in names):
            return names
    return None
