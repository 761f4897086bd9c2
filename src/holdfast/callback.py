"""``Callback`` under the name that users of other tuners import it by."""

from holdfast.callbacks.callback import Callback, CallbackList

__all__ = ["Callback", "CallbackList"]
