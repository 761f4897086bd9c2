"""The trial table as one compact array per column, kept up to date trial by trial.

A column is made when it is first asked for, from all trials; from then on only the trials that changed are looked at.
So asking again costs a copy. Owns the names of columns and what they hold:

    trial_id, status, iteration, time_total_s, created_at, started_at, ended_at, attempts, failures, checkpoints,
    interrupted, early_stopped, ended, reason, cause, worker
    metric/<name>   the last value that counts
    best/<name>     the best surviving value by the experiment's mode ("min" if it has none)
    min/<name>, max/<name>   the smallest and the largest one
    config/<name>   a parameter; ``a/b`` for nested ones

Numbers are ``f64`` (missing: NaN) or ``i32``; everything else is a category. A parameter that has both numbers and
other values is a category of JSON values; None, which a choice may offer, is one of them (null), and not missing.
``best``, ``min`` and ``max`` need complete curves. Must never read a file.

    columns = follower.columns
    columns.metrics, columns.params      # known names, in the order of their appearance
    columns.names                        # all that ``column`` and ``pack`` know
    columns.column("metric/loss")        # PackedColumn(name, data, values); do not change it
    columns.pack(["trial_id", "metric/loss"])   # bytes as ``packing`` says; the head has ``rows`` and ``record``
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.core.retention import lookup
from holdfast.core.state import Trial
from holdfast.display.tracker import ended_reason
from holdfast.display.words import value_text
from holdfast.errors import InvalidInputError
from holdfast.journal.reader import START
from holdfast.results.curves import NAN, Curves
from holdfast.results.early_stops import was_stopped_early
from holdfast.results.history import History
from holdfast.results.packing import MISSING, NONE, PackedColumn, pack
from holdfast.space.exact import SCALARS, shown
from holdfast.views.results import flatten_result

MAX_TEXT = 1000
"""Longer texts are cut: a table shows less, and whoever asks for the trial gets all of it."""

MAX_EXACT = 1 << 53
_ABSENT = object()

Getter = Callable[[Trial], Any]


def ended_at(trial: Trial) -> float | None:
    """When a trial ended; None if it has not, or was resumed since."""
    return trial.ended_at or None if trial.final else None


_NUMBERS: dict[str, tuple[str, Getter]] = {
    "iteration": ("i", lambda trial: min(trial.iteration, 0x7FFFFFFF)),
    "time_total_s": ("d", lambda trial: trial.time_total),
    "created_at": ("d", lambda trial: trial.created_at or NAN),
    "started_at": ("d", lambda trial: trial.started_at or NAN),
    "ended_at": ("d", lambda trial: ended_at(trial) or NAN),
    "attempts": ("i", lambda trial: trial.attempt),
    "failures": ("i", lambda trial: trial.total_failures),
    "checkpoints": ("i", lambda trial: len(trial.checkpoints)),
}
_TEXTS: dict[str, Getter] = {
    "status": lambda trial: trial.status,
    "ended": lambda trial: ended_reason(trial) or None,
    "reason": lambda trial: trial.reason or None,
    "cause": lambda trial: trial.cause or None,
    "worker": lambda trial: None if trial.where is None else f"{trial.where.host}:{trial.where.pid}",
}


class _Column:
    """A column of numbers of one type."""

    def __init__(self, name: str, code: str, get: Getter, trials: list[Trial]) -> None:
        self.name = name
        self.get = get
        self.data: array[Any] = array(code, map(get, trials))

    def put(self, trial: Trial) -> None:
        _set(self.data, trial.n, self.get(trial))

    def packed(self) -> PackedColumn:
        return PackedColumn(self.name, self.data)


class _Mixed:
    """A column of numbers for as long as there is nothing else in it; then one of categories."""

    def __init__(self, name: str, get: Getter, trials: list[Trial], *, text: bool = False) -> None:
        self.name = name
        self.get = get
        self.values: list[Any] | None = None
        self._codes: dict[Any, int] = {}
        self.data: array[Any] = array("d")
        if text or not self._read_numbers(trials):
            self._read_values(trials)

    def _read_numbers(self, trials: list[Trial]) -> bool:
        found = list(map(self.get, trials))
        try:
            if not set(map(type, found)) <= {float, int}:
                found = list(map(_number, found))
            self.data = array("d", found)
        except (TypeError, OverflowError):
            return False
        return True

    def _read_values(self, trials: list[Trial]) -> None:
        self.values, self._codes = [], {}
        codes, code = self._codes, self._code
        # A text that has a code already is what most trials have.
        self.data = array(
            "I",
            [codes[value] if type(value) is str and value in codes else code(value) for value in map(self.get, trials)],
        )

    def put(self, trial: Trial) -> None:
        value = self.get(trial)
        if self.values is None:
            try:
                _set(self.data, trial.n, _number(value))
                return
            except (TypeError, OverflowError):
                self._become_values()
        _set(self.data, trial.n, self._code(value))

    def _become_values(self) -> None:
        """Something is not a number: the numbers are categories from now on."""
        numbers, self.values, self._codes = self.data, [], {}
        self.data = array("I", [self._code(None if value != value else value) for value in numbers])

    def _code(self, value: Any) -> int:
        if value is None:
            return MISSING
        assert self.values is not None
        value = None if value is NONE else _shown_value(value)
        if type(value) is int and abs(value) <= MAX_EXACT:
            value = float(value)  # 1 and 1.0 are one value
        key = value if type(value) is str else (type(value), value)  # True is not 1
        code = self._codes.get(key)
        if code is None:
            code = self._codes[key] = len(self.values)
            whole = type(value) is float and value.is_integer() and abs(value) < 1e15
            self.values.append(int(value) if whole else value)
        return code

    def packed(self) -> PackedColumn:
        return PackedColumn(self.name, self.data, self.values)


class _Ids:
    """The trials' ids: no two are the same, so the code of each is its number."""

    def __init__(self, name: str, trials: list[Trial]) -> None:
        self.name = name
        self.values = [trial.id for trial in trials]
        self.data: array[Any] = array("I", range(len(trials)))

    def put(self, trial: Trial) -> None:
        _set(self.data, trial.n, trial.n)
        if trial.n == len(self.values):
            self.values.append(trial.id)

    def packed(self) -> PackedColumn:
        return PackedColumn(self.name, self.data, self.values)


class Columns:
    """The columns of one experiment.

    Args:
        history: The experiment.
        curves: Gives complete curves, for the best values.
    """

    def __init__(self, history: History, curves: Callable[[], Curves]) -> None:
        self._history = history
        self._curves = curves
        self._made: dict[str, _Column | _Mixed | _Ids] = {}
        self._metrics: dict[str, None] = {}
        self._params: dict[str, None] = {}
        self._metric_keys: set[tuple[str, ...]] = set()
        self._param_keys: set[tuple[str, ...]] = set()
        self._known = 0

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics that any trial's last row has."""
        self._learn_all()
        return list(self._metrics)

    @property
    def params(self) -> list[str]:
        """Names of the parameters that any trial has."""
        self._learn_all()
        return list(self._params)

    @property
    def names(self) -> list[str]:
        """All columns that there are."""
        kinds = [f"{kind}/{name}" for kind in ("metric", "best", "min", "max") for name in self.metrics]
        return [
            "trial_id",
            *_TEXTS,
            *_NUMBERS,
            "interrupted",
            "early_stopped",
            *kinds,
            *(f"config/{name}" for name in self.params),
        ]

    def column(self, name: str) -> PackedColumn:
        """One column, as of the last ``update``.

        Raises:
            InvalidInputError: There is no such column.
        """
        found = self._made.get(name)
        if found is None:
            found = self._made[name] = self._make(name)
        return found.packed()

    def pack(self, names: Iterable[str]) -> bytes:
        """Columns as bytes.

        Raises:
            InvalidInputError: One of them does not exist.
        """
        record = (self._history.position or START).next_seq - 1
        return pack([self.column(name) for name in names], len(self._history.state.trials), record=record)

    def update(self, changed: Iterable[int]) -> None:
        """These trials, in order, are not what they were, or new."""
        trials, made = self._history.state.trials, list(self._made.values())
        for n in changed:
            trial = trials[n]
            if n < self._known:
                self._learn(trial)
            for column in made:
                column.put(trial)

    def forget_best(self) -> None:
        """The experiment's mode is another one."""
        for name in [name for name in self._made if name.startswith("best/")]:
            del self._made[name]

    # --- making them

    def _make(self, name: str) -> _Column | _Mixed | _Ids:
        trials = self._history.state.trials
        if name in _NUMBERS:
            return _Column(name, *_NUMBERS[name], trials)
        if name == "trial_id":
            return _Ids(name, trials)
        if name in _TEXTS:
            return _Mixed(name, _TEXTS[name], trials, text=True)
        if name == "interrupted":
            return _Column(name, "i", lambda trial: int(trial.n in self._history.lost), trials)
        if name == "early_stopped":
            state = self._history.state
            return _Column(name, "i", lambda trial: int(was_stopped_early(state, trial)), trials)
        kind, _, rest = name.partition("/")
        if kind == "metric" and rest in self.metrics:
            return _Mixed(name, _metric_getter(rest), trials)
        if kind == "config" and rest in self.params:
            return _Mixed(name, _param_getter(rest), trials)
        if kind in ("best", "min", "max") and rest in self.metrics:
            return self._best(name, kind, rest)
        raise InvalidInputError(
            f"There is no column {value_text(name, 200)!r}. The columns are: {', '.join(self.names[:50])}."
        )

    def _best(self, name: str, kind: str, metric: str) -> _Column:
        curves = self._curves()
        mode = (self._history.info.mode or "min") if kind == "best" else kind
        made = _Column(name, "d", lambda trial: curves.best(trial.n, metric, mode), [])
        made.data = curves.best_of_all(metric, mode, len(self._history.state.trials))
        return made

    # --- names

    def _learn_all(self) -> None:
        trials = self._history.state.trials
        for n in range(self._known, len(trials)):
            self._learn(trials[n])
        self._known = len(trials)

    def _learn(self, trial: Trial) -> None:
        if trial.metrics:
            _learn_keys(trial.metrics, self._metric_keys, self._metrics)
        _learn_keys(trial.config, self._param_keys, self._params)


def _learn_keys(values: dict[Any, Any], seen: set[tuple[str, ...]], names: dict[str, None]) -> None:
    keys = tuple(values)
    if keys in seen and dict not in map(type, values.values()):
        return
    seen.add(keys)
    names.update(dict.fromkeys(map(str, flatten_result(shown(values)))))


def _metric_getter(name: str) -> Getter:
    def get(trial: Trial) -> Any:
        metrics = trial.metrics
        if metrics is None:
            return None
        value = metrics.get(name, _ABSENT)
        return lookup(metrics, name) if value is _ABSENT else value

    return get


def _param_getter(name: str) -> Getter:
    def get(trial: Trial) -> Any:
        value = trial.config.get(name, _ABSENT)
        if type(value) not in SCALARS:
            value = _value_at(shown(trial.config), name)
        return NONE if value is None else None if value is _ABSENT else value

    return get


def _value_at(config: Mapping[str, Any], name: str) -> Any:
    """As ``lookup``, but tells None from what is not there."""
    value = lookup(config, name)
    if value is not None or name in config:
        return value
    inner, _, key = name.rpartition("/")
    holder = lookup(config, inner) if inner else None
    return None if isinstance(holder, Mapping) and key in holder else _ABSENT


def _number(value: Any) -> float:
    """A number, NaN for nothing.

    Raises:
        TypeError: It is something else.
    """
    kind = type(value)
    if kind is float or kind is int:
        return value  # type: ignore[no-any-return]
    if value is None:
        return NAN
    raise TypeError(kind.__name__)


def _shown_value(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else value[:MAX_TEXT] + "…"
    if type(value) is int and abs(value) > MAX_EXACT:
        return str(value)[:MAX_TEXT]  # a browser would round it
    return value if type(value) in SCALARS else value_text(value, MAX_TEXT)


def _set(data: array[Any], n: int, value: Any) -> None:
    if n < len(data):
        data[n] = value
    else:
        assert n == len(data), "trials are created in order"
        data.append(value)
