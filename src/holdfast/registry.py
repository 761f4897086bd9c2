"""Trainables and environments by name, under the name that users of other tuners import them by."""

from holdfast.config.registry import get_env, get_trainable, register_env, register_trainable

__all__ = ["get_env", "get_trainable", "register_env", "register_trainable"]
