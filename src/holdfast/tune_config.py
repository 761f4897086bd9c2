"""``TuneConfig`` and ``ResumeConfig`` under the name that users of other tuners import them by."""

from holdfast.config import ResumeConfig, TuneConfig

__all__ = ["ResumeConfig", "TuneConfig"]
