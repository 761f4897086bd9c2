"""Loggers under the name that users of other tuners import them by."""

from holdfast.callbacks import CSVLoggerCallback, JsonLoggerCallback, LoggerCallback, TBXLoggerCallback

__all__ = ["CSVLoggerCallback", "JsonLoggerCallback", "LoggerCallback", "TBXLoggerCallback"]
