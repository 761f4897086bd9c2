"""What the contract suites need of a test framework, so that they need none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def expect_error(
    kind: type[Exception], mention: str = "", *, but_not: type[Exception] | tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Fail unless the block raises ``kind`` (and not ``but_not``, a kind of it), with ``mention`` in its text.

    Example:
        >>> with expect_error(ValueError, "base 10"):
        ...     int("x")
    """
    try:
        yield
    except kind as error:
        if isinstance(error, but_not):
            raise AssertionError(f"{type(error).__name__} was raised: {error}") from error
        if mention not in str(error):
            raise AssertionError(f"{mention!r} is not in the message: {error}") from error
        return
    raise AssertionError(f"{kind.__name__} was not raised")
