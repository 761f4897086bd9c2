"""Callbacks and loggers; the progress display lives beside them."""

from holdfast.callbacks.callback import Callback, CallbackList, callbacks_from_paths, default_callbacks
from holdfast.callbacks.csv_logger import CSVLoggerCallback
from holdfast.callbacks.json_logger import JsonLoggerCallback
from holdfast.callbacks.loggers import LoggerCallback
from holdfast.callbacks.tensorboard import TBXLoggerCallback

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
