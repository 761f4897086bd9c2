"""``TuneError`` under the name that users of other tuners import it by; the whole tree is in ``holdfast.errors``."""

from holdfast.errors import TuneError

__all__ = ["TuneError"]
