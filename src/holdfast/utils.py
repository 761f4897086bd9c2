"""Helpers under the name that users of other tuners import them by; each lives with its noun."""

from holdfast.engines.gpu_wait import wait_for_gpu
from holdfast.search.error_texts import is_nan, is_nan_or_inf, validate_warmstart
from holdfast.space.nested import flatten_dict, unflatten_dict
from holdfast.trainable.unpicklable import diagnose_serialization
from holdfast.trainable.validation import validate_save_restore

__all__ = [
    "diagnose_serialization",
    "flatten_dict",
    "is_nan",
    "is_nan_or_inf",
    "unflatten_dict",
    "validate_save_restore",
    "validate_warmstart",
    "wait_for_gpu",
]
