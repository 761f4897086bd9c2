"""Helpers under the name that users of other tuners import them by; each lives with its noun."""

from holdfast.space.tree import flatten_dict, unflatten_dict
from holdfast.trainable.unpicklable import diagnose_serialization
from holdfast.trainable.validation import validate_save_restore

__all__ = ["diagnose_serialization", "flatten_dict", "unflatten_dict", "validate_save_restore"]
