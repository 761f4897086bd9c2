"""Callbacks and loggers; the progress display lives beside them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.callbacks.callback import Callback, CallbackList, callbacks_from_paths, default_callbacks

if TYPE_CHECKING:
    from holdfast.callbacks.csv_logger import CSVLoggerCallback
    from holdfast.callbacks.json_logger import JsonLoggerCallback
    from holdfast.callbacks.loggers import LoggerCallback
    from holdfast.callbacks.tensorboard import TBXLoggerCallback

# Those who only read an experiment need no loggers, so these are imported when they are first used.
_LOGGERS = {
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


def __getattr__(name: str) -> Any:
    if name in _LOGGERS:
        return getattr(import_module(f"holdfast.callbacks.{_LOGGERS[name]}"), name)
    raise AttributeError(f"module 'holdfast.callbacks' has no attribute {name!r}")
