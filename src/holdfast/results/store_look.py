"""A look at a store by a thread of its own, so that whoever reads an experiment need not wait for a store that hangs.

Owns when the last look ended well, and since when one is under way. Must never touch what a reader has: it takes the
answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

from holdfast.errors import StoreUnreachableError

SLOW_S = 10.0
"""A look that takes longer is worth a sentence."""

T = TypeVar("T")


class StoreHangs(Exception):
    """The look is still under way."""


class StoreLook(Generic[T]):
    """One look at a time.

    Args:
        patience_s: How long to wait for a look, which then goes on; None: until it ends.
    """

    def __init__(self, patience_s: float | None) -> None:
        self._patience_s = patience_s
        self._answer: Future[T] | None = None
        self._began = 0.0
        self._failed = ""
        self.answered_at = time.time()

    def ask(self, question: Callable[[], T]) -> T:
        """What the question returns or raises; of a look that is under way, what that was asked.

        Raises:
            StoreHangs: It takes longer than the patience. Ask again later.
        """
        if self._patience_s is None:
            return question()
        if self._answer is None:
            self._answer, self._began = Future(), time.monotonic()
            threading.Thread(target=_work, args=(question, self._answer), name="holdfast-look", daemon=True).start()
        # Not the time-out of `result`: a library in the thread may raise the same, and the answer may come just then.
        if wait([self._answer], max(0.0, self._began + self._patience_s - time.monotonic())).not_done:
            raise StoreHangs
        try:
            found = self._answer.result()
        except Exception as error:
            self._answer, self._failed = None, str(error) if isinstance(error, StoreUnreachableError) else ""
            raise
        self._answer, self._failed, self.answered_at = None, "", time.time()
        return found

    def trouble(self, place: str) -> str:
        """That the store does not answer, and from when what is known is, in one sentence; "" if it does."""
        waits_s = time.monotonic() - self._began
        if self._answer is not None and waits_s > SLOW_S:
            what = f"{place} has not answered for {waits_s:.0f} s"
        elif self._failed:
            what = f"{place} cannot be reached ({self._failed.rstrip('.')})"
        else:
            return ""
        return f"{what}; what is shown is from {time.strftime('%H:%M:%S', time.localtime(self.answered_at))}"


def _work(question: Callable[[], T], answer: Future[T]) -> None:
    try:
        answer.set_result(question())
    except BaseException as error:
        answer.set_exception(error)
