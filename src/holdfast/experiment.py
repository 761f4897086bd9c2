"""``Trial``, as callbacks and stoppers are given it, under the name that users of other tuners import it by."""

from holdfast.callbacks.trial_view import TrialView as Trial

__all__ = ["Trial"]
