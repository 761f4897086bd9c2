"""How long to wait before something that has failed is tried again.

Owns `Backoff`, the one formula for that. Must never wait, count failures or look at a clock: whoever retries does so,
and layers with different clocks share the formula.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff: each delay is ``factor`` times the one before it, up to the longest.

    Without jitter: the core has no random source, and the same failures must give the same delays (I5).

    Attributes:
        first_s: The delay after the first failure.
        longest_s: No delay is longer, however many failures there were.
        factor: By how much a delay grows with each failure.

    Example:
        >>> [Backoff(first_s=0.5, longest_s=3.0).delay_s(failures) for failures in range(5)]
        [0.0, 0.5, 1.0, 2.0, 3.0]
    """

    first_s: float
    longest_s: float
    factor: float = 2.0

    def delay_s(self, failures: int) -> float:
        """The seconds to wait after so many failures in a row."""
        if failures <= 0:
            return 0.0
        try:
            return min(self.longest_s, self.first_s * self.factor ** (failures - 1))
        except OverflowError:  # a store can be unreachable for longer than a float can be doubled
            return self.longest_s
