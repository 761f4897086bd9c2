"""``ResultGrid`` under the name that users of other tuners import it by."""

from holdfast.results import ResultGrid

__all__ = ["ResultGrid"]
