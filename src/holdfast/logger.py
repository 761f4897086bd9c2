"""Loggers under the name that users of other tuners import them by."""

from holdfast.callbacks import CSVLoggerCallback, JsonLoggerCallback, LoggerCallback, TBXLoggerCallback
from holdfast.callbacks.old_loggers import (
    DEFAULT_LOGGERS,
    CSVLogger,
    JsonLogger,
    Logger,
    TBXLogger,
    UnifiedLogger,
    pretty_print,
)

__all__ = [
    "DEFAULT_LOGGERS",
    "CSVLogger",
    "CSVLoggerCallback",
    "JsonLogger",
    "JsonLoggerCallback",
    "Logger",
    "LoggerCallback",
    "TBXLogger",
    "TBXLoggerCallback",
    "UnifiedLogger",
    "pretty_print",
]
