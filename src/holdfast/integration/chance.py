"""The random numbers of a process: read them when a checkpoint is written, and set them when it is read.

Owns which generators count: those of Python and NumPy, and PyTorch's if it is loaded. Must never load a library.
"""

from __future__ import annotations

import random
import sys
from typing import Any


def state() -> dict[str, Any]:
    """The global generators' states, of numbers and lists only."""
    version, numbers, gauss = random.getstate()
    found: dict[str, Any] = {"python": [version, list(numbers), gauss]}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, position, has_gauss, cached = numpy.random.get_state(legacy=True)
        found["numpy"] = [str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(cached)]
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_rng_state"):
        found["torch"] = torch.get_rng_state().tolist()
        if torch.cuda.is_available():
            found["cuda"] = [one.tolist() for one in torch.cuda.get_rng_state_all()]
    return found


def restore(found: dict[str, Any]) -> None:
    """Set the global generators to what ``state`` has read; those that it does not have stay as they are."""
    if "python" in found:
        version, numbers, gauss = found["python"]
        random.setstate((version, tuple(numbers), gauss))
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in found:
        kind, keys, position, has_gauss, cached = found["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, cached))
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "set_rng_state"):
        return
    if "torch" in found:
        torch.set_rng_state(torch.tensor(found["torch"], dtype=torch.uint8))
    if "cuda" in found and torch.cuda.device_count() == len(found["cuda"]):
        torch.cuda.set_rng_state_all([torch.tensor(one, dtype=torch.uint8) for one in found["cuda"]])
