"""Callbacks and loggers; the progress display lives beside them."""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_names
from holdfast.callbacks.callback import Callback, CallbackList
from holdfast.callbacks.defaults import callbacks_from_paths, default_callbacks

if TYPE_CHECKING:
    from holdfast.callbacks.csv_logger import CSVLoggerCallback
    from holdfast.callbacks.json_logger import JsonLoggerCallback
    from holdfast.callbacks.loggers import LoggerCallback
    from holdfast.callbacks.tensorboard import TBXLoggerCallback

# Those who only read an experiment need no loggers, so these are imported when they are first used.
_MODULES = {
    "CSVLoggerCallback": "csv_logger",
    "JsonLoggerCallback": "json_logger",
    "LoggerCallback": "loggers",
    "TBXLoggerCallback": "tensorboard",
}

__all__ = [
    "CSVLoggerCallback",
    "Callback",
    "CallbackList",
    "JsonLoggerCallback",
    "LoggerCallback",
    "TBXLoggerCallback",
    "callbacks_from_paths",
    "default_callbacks",
]

__getattr__, __dir__ = lazy_names(__name__, __all__, _MODULES)
