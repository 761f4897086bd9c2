"""The legacy ``{"eval": "expression"}`` of a search space, as a domain."""

from __future__ import annotations

import re
from typing import Any

from holdfast.space.domains import Function


class Expression(Function):
    """The legacy ``{"eval": "expression"}``, evaluated with the names ``random``, ``np``, ``spec`` and ``config``."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.func = self._evaluate
        self.takes_config = True

    @property
    def domain_str(self) -> str:
        """The expression."""
        return f"({self.text})"

    def _evaluate(self, config: Any) -> Any:
        import random
        from types import SimpleNamespace

        code = compile(self.text, "<eval in the search space>", "eval")
        names = {"random": random, "spec": SimpleNamespace(config=config), "config": config}
        if re.search(r"\bnp\b", self.text):
            import numpy

            names["np"] = numpy
        return eval(code, names)
