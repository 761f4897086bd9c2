"""Function trainables: which signatures are accepted, and what a call, a yield or a return value means.

Owns the adaption of older signatures. Must never talk to the driver other than through ``report``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from numbers import Number
from typing import Any

from holdfast.core.retention import DEFAULT_METRIC
from holdfast.errors import InvalidInputError
from holdfast.messages.shortened import shortened
from holdfast.trainable.metrics import only_number
from holdfast.trainable.session import Session, start_of

_TODAY = {
    "checkpoint_dir": "def {name}(config): ... with tune.get_checkpoint() inside it instead of checkpoint_dir",
    "reporter": "def {name}(config): ... with tune.report({{...}}) inside it instead of reporter(...)",
}
"""Older signatures, and how they are written today."""

_EXAMPLE = "def train(config): ..."


def check_signature(function: Callable[..., Any]) -> None:
    """Refuse a function that cannot be called with one config.

    Accepted are ``fn(config)``, with further parameters only if they have defaults or come from ``with_parameters``,
    and the older ``fn(config, reporter)`` and ``fn(config, checkpoint_dir=None)``.

    Raises:
        InvalidInputError: For any other signature; the message names the argument.
    """
    _style(function)


def run_function(function: Callable[..., Any], config: dict[str, Any], session: Session) -> None:
    """Run a function trainable to its end and report what it yields or returns."""
    style = _known_style(function)
    if style in _TODAY:
        _tell(function, style, session)
    if style == "checkpoint_dir":
        output = function(config, checkpoint_dir=start_of(session))
    elif style == "reporter":
        output = function(config, reporter=StatusReporter(session))
    else:
        output = function(config)
    if inspect.isgenerator(output):
        _run_generator(output, session)
    else:
        _report_output(output, session.finish)


class StatusReporter:
    """What older functions get as ``reporter``: call it with metrics.

    Attributes:
        logdir: The trial's directory.
        trial_id: The trial.
        trial_name: Its name.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.logdir = session.trial_dir
        self.trial_id = session.run.trial_id
        self.trial_name = session.run.trial_name

    def __call__(self, _metric: Any = None, **kwargs: Any) -> None:
        """Report these metrics."""
        if _metric is not None:
            kwargs["_metric"] = _metric
        self._session.report(kwargs, None)


def _style(function: Callable[..., Any]) -> str:
    """How to call it: "config", "reporter" or "checkpoint_dir"."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have none; the call will show
        return "config"
    for name in ("checkpoint_dir", "reporter"):
        if name in signature.parameters and _binds(signature, **{name: None}):
            return name
    if not _binds(signature):
        name = getattr(function, "__name__", type(function).__name__)
        raise InvalidInputError(
            f"Unknown argument found in the Trainable function {name}{signature}: it must take exactly one positional "
            f"argument, the config. Write `{_EXAMPLE}`, and pass other objects with "
            "tune.with_parameters(train, data=...)."
        )
    return "config"


@functools.lru_cache(maxsize=8)
def _known_style(function: Callable[..., Any]) -> str:
    """``_style``, worked out once per worker rather than once per trial."""
    return _style(function)


def _tell(function: Callable[..., Any], style: str, session: Session) -> None:
    """Hint at the function's own line."""
    inner: Any = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    code = getattr(inner, "__code__", None)
    name = getattr(inner, "__name__", type(inner).__name__)
    if code is not None:
        text = f"{name}(config, {style}) still works, but is now written {_TODAY[style].format(name=name)}."
        session.hint(text, code.co_filename, code.co_firstlineno)


def _binds(signature: inspect.Signature, **kwargs: Any) -> bool:
    try:
        signature.bind({}, **kwargs)
    except TypeError:
        return False
    return True


def _run_generator(generator: Generator[Any, Any, Any], session: Session) -> None:
    try:
        while True:
            try:
                output = next(generator)
            except StopIteration as end:
                _report_output(end.value, session.finish)
                return
            _report_output(output, lambda metrics: session.report(metrics, None))
    finally:
        generator.close()  # runs its ``finally`` blocks if a report has ended the trial


def _report_output(output: Any, report: Callable[[dict[str, Any]], None]) -> None:
    """A dict holds metrics, a number is the metric ``_metric``; None, False and empty values mean nothing."""
    if output is None or output is False:
        return
    if isinstance(output, dict):
        if output:
            report(output)
    elif isinstance(output, Number) or only_number(output) is not None:
        report({DEFAULT_METRIC: output})
    elif not _is_empty(output):
        raise InvalidInputError(
            f"a trainable must return or yield a dict of metrics or a single number, got {type(output).__name__}: "
            f"{shortened(output)}. Write `return {{'loss': loss}}`."
        )


def _is_empty(output: Any) -> bool:
    try:
        return not output
    except Exception:  # arrays do not know
        return False
