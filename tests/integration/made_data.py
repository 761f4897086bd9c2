"""Small data that every test makes for itself."""

from __future__ import annotations

import numpy as np


def points(count: int = 240, features: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Points in space, and which of them are on the far side of a curved surface."""
    generator = np.random.default_rng(7)
    x = generator.normal(size=(count, features)).astype("float32")
    noise = generator.normal(scale=0.3, size=count)
    return x, (x[:, 0] + x[:, 1] ** 2 + noise > 1).astype("int64")
