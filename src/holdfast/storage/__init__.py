"""Bytes under a root: how the layers above store and read them, without knowing what they mean."""
