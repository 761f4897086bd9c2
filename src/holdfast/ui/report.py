"""The page of one experiment in one file: the same front end, with the answers that it will ask for inside.

Needs no server, no network, and nothing but the base install. Data is never part of a script: it stands in an element
that browsers do not run, with every ``<`` escaped, and a policy in the file forbids all scripts but the page's own.
Owns what is left out of a report that would be too large, and the sentence that says so.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import json
import re
from array import array
from collections.abc import Iterator
from itertools import combinations
from typing import Any, NamedTuple
from urllib.parse import quote

from holdfast.cli.log_places import LogPlaces
from holdfast.controller.opening import collector_paused
from holdfast.core.state import Status, Trial
from holdfast.display.words import plural
from holdfast.errors import DamageError, TuneError
from holdfast.messages.visible import visible
from holdfast.results.packing import PackedColumn, pack, unpack
from holdfast.ui import page_answers
from holdfast.ui.catalogue import experiment_id
from holdfast.ui.encoding import json_bytes
from holdfast.ui.log_tail import read_tail
from holdfast.ui.pages import INDEX, built_files
from holdfast.ui.query import Query
from holdfast.ui.source import Source

MAX_BYTES = 20_000_000
MAX_DETAILS = 1000
BASE64 = 4 / 3
"""How much larger bytes become in a text."""
MAX_METRICS = 8
MAX_PAIRED = 6
LOG_LINES = 100
POINTS = (200_000, 50_000, 10_000, 2_000)
"""Points of a metric's curves: the first number with which the report is small enough is taken."""
TABLE, ESSENTIAL = 0.6, 0.8
"""The share of the limit that the table may take, and the table with all curves: the rest is for single trials."""
MIN_ROWS = 1000


class PageReport(NamedTuple):
    """A report, and what was left out of it in one sentence; "" if nothing was."""

    html: bytes
    note: str


def make_report(source: Source, max_bytes: int = MAX_BYTES, max_details: int = MAX_DETAILS) -> PageReport:
    """The page of an experiment as it stands now.

    Args:
        source: The experiment.
        max_bytes: About how large it may become.
        max_details: Of how many trials all is shown.
    """
    with LogPlaces(source.history) as logs, collector_paused():
        maker = _Maker(source, max_bytes, logs)
        maker.add_essentials()
        maker.add_trials(max_details)
        maker.add_more_charts()
    return PageReport(_page(source.history.info.name, maker.answers, maker.note), maker.note)


class _Maker:
    def __init__(self, source: Source, max_bytes: int, logs: LogPlaces) -> None:
        self.answers: dict[str, str] = {}  # what the page asks, and the answer as JSON text
        self._source = source
        self._logs = logs
        self._max_bytes = max_bytes
        self._used = sum(map(len, built_files().values()))
        self._left_out: list[str] = []
        self._rows: list[int] | None = None  # the trials in the table, if those are not all
        self._id = experiment_id(source.history.spec.uid, source.path)
        self._base = f"/api/experiments/{self._id}"

    @property
    def note(self) -> str:
        """What is not in the report."""
        return "; ".join(self._left_out)

    # --- adding

    def _add(self, address: str, answer: Any) -> None:
        kept = _kept(answer)
        self._used += len(address) + len(kept) - len(self.answers.get(address, ""))
        self.answers[address] = kept

    def _refuse(self, address: str, error: TuneError) -> None:
        """Say why there is no answer, as the server does: a page without one would say that there is nothing."""
        self.answers[address] = f'{{"error":{json_bytes(str(error)).decode()}}}'
        self._used += len(address) + len(self.answers[address])

    def _fits(self, size: int) -> bool:
        return self._used + size <= self._max_bytes

    def add_essentials(self) -> None:
        """What the overview, the table and most charts need; thinned until it fits."""
        source = self._source
        self._add_columns()
        overview = page_answers.overview(source, self._id)  # with the damage that the columns may have found
        overview |= {"live": False, "read_only": True}
        self._add("/api/experiments", [{**page_answers.summary(source.facts()), "id": self._id}])
        self._add(self._base, overview)
        for name in ("workers", "lineage", "recovery"):
            self._add_chart(name)
        metrics = self._metrics()
        for metric in metrics:
            self._add_chart("importance", metric=metric)
            self._add_chart("edf", metric=metric)
        if len(metrics) > 1:
            self._add_chart("pareto", x=metrics[0], y=metrics[1])
        self._add_curves(metrics)

    def _metrics(self) -> list[str]:
        """The metrics that are shown with curves, the objective first."""
        known = self._source.follower.columns.metrics
        objective = self._source.history.info.metric
        ordered = [objective, *(name for name in known if name != objective)] if objective in known else known
        if len(ordered) > MAX_METRICS:
            self._left_out.append(f"it has curves of {MAX_METRICS} of {len(ordered)} metrics")
        return [name for name in ordered if name is not None][:MAX_METRICS]

    def _add_columns(self) -> None:
        source = self._source
        packed, limit = source.pack_columns([], None), self._max_bytes * TABLE / BASE64
        if len(packed) > limit:
            packed, some = self._some_columns(packed, int(limit))
            rows, step = len(source.history.state.trials), 1
            while len(packed) > limit and rows // step > MIN_ROWS:
                step *= 2
                self._rows = list(range(0, rows, step))
                packed = source.pack_columns(some, self._rows)
            if step > 1:
                self._left_out.append(f"its table and curves have one of {step} trials")
        self._add(f"{self._base}/columns", packed)

    def _some_columns(self, packed: bytes, limit: int) -> tuple[bytes, list[str]]:
        """As many columns as there is space for, those that everybody looks at first and in any case."""
        source = self._source
        metric, params = source.history.info.metric, source.follower.columns.params
        every = list(unpack(packed)[1])
        some = [*_COLUMNS, *([f"metric/{metric}"] if metric else [])]
        some += [f"config/{name}" for name in params[:MAX_METRICS]]
        size = len(source.pack_columns(some, None))
        rest = [name for name in every if name not in some]
        for name in sorted(rest, key=lambda name: not name.startswith(("metric/", "config/"))):
            more = len(source.pack_columns([name], None))
            if size + more <= limit:
                some.append(name)
                size += more
        self._left_out.append(f"its table has {len(some)} of {len(every)} columns")
        return source.pack_columns(some, None), some

    def _add_curves(self, metrics: list[str]) -> None:
        """The curves of each metric, with as many points as there is space for."""
        space = (self._max_bytes * ESSENTIAL - self._used) / BASE64
        try:
            for points in POINTS:
                found = {metric: self._source.pack_curves(metric, points, self._rows) for metric in metrics}
                if sum(map(len, found.values())) <= space:
                    break
        except DamageError as error:
            self._left_out.append("it has no curves, because the journal is damaged")
            for metric in metrics:
                self._refuse(f"{self._base}/curves?metric={_word(metric)}", error)
            return
        if any(is_thinned(packed) for packed in found.values()):
            self._left_out.append(f"its curves have at most {points:,} points of each metric")
        for metric, packed in found.items():
            kept = packed if self._rows is None else _renumbered(packed, self._rows)
            self._add(f"{self._base}/curves?metric={_word(metric)}", kept)

    def _add_chart(self, name: str, **query: str) -> None:
        words = "&".join(f"{key}={_word(value)}" for key, value in query.items())
        address = f"{self._base}/charts/{name}" + (f"?{words}" if words else "")
        try:
            found = page_answers.chart(self._source, name, Query(query))
        except TuneError as error:
            self._refuse(address, error)
            return
        if not self._fits(len(_kept(found))):
            self._left_out.append(f"it has no {name} chart")
            return
        self._add(address, found)

    def add_trials(self, limit: int) -> None:
        """All about single trials, the interesting ones first, until the space is used up."""
        trials, added = self._source.history.state.trials, 0
        with contextlib.suppress(TuneError, OSError):
            self._logs.refresh(self._source.history)
        for trial in self._by_interest():
            known = self._of_trial(trial)
            if added >= limit or not self._fits(sum(len(_kept(answer)) for answer in known.values())):
                break
            for address, answer in known.items():
                self._add(address, answer)
            added += 1
        if added < len(trials):
            self._left_out.append(f"it has details of {added:,} of {plural(len(trials), 'trial')}")

    def _by_interest(self) -> Iterator[Trial]:
        """The best ones, then those that failed, then the others."""
        history = self._source.history
        trials, seen = history.state.trials, set()
        ranked = [trials[n] for n in self._ranked()]
        failed = (trial for trial in trials if trial.status == Status.ERROR)
        for trial in (*ranked, *failed, *trials):
            if trial.n not in seen:
                seen.add(trial.n)
                yield trial

    def _ranked(self, count: int = 100) -> list[int]:
        metric, mode = self._source.history.info.metric, self._source.history.info.mode
        if metric is None or metric not in self._source.follower.columns.metrics:
            return []
        found = page_answers.OF_EXPERIMENT["trials"](
            self._source,
            Query(
                {
                    "sort": f"metric/{metric}",
                    "desc": "1" if mode == "max" else "0",
                    "columns": "number",
                    "limit": str(count),
                }
            ),
        )
        assert isinstance(found, dict)
        return [row["number"] for row in found["rows"]]

    def _of_trial(self, trial: Trial) -> dict[str, Any]:
        source, address = self._source, f"{self._base}/trials/{quote(trial.id, safe=_UNQUOTED)}"
        found: dict[str, Any] = {address: page_answers.trial(source, trial.id, Query({}))}
        try:
            found[f"{address}/story"] = page_answers.story(source, trial.id, Query({}))
        except DamageError as error:
            found[f"{address}/story"] = [{"time": source.history.state.last_at, "kind": "", "text": str(error)}]
        try:
            found[f"{address}/log"] = read_tail(self._logs, source.history, trial, LOG_LINES)
        except (TuneError, OSError) as error:
            found[f"{address}/log"] = {"lines": [f"({error})"], "truncated": False}
        return found

    def add_more_charts(self) -> None:
        """Contours of pairs of parameters, while there is space."""
        metrics = self._metrics_shown()
        for x, y in combinations(self._source.follower.columns.params[:MAX_PAIRED], 2):
            for metric in metrics[:1]:
                self._add_chart("contour", metric=metric, x=x, y=y)

    def _metrics_shown(self) -> list[str]:
        objective = self._source.history.info.metric
        known = self._source.follower.columns.metrics
        return [objective] if objective in known and objective is not None else known[:1]


_COLUMNS = (
    "trial_id",
    "status",
    "iteration",
    "time_total_s",
    "started_at",
    "ended_at",
    "attempts",
    "reason",
    "early_stopped",
)

_UNQUOTED = "!'()*"
"""What encodeURIComponent leaves as it is, and Python's quote does not."""


def is_thinned(packed: bytes) -> bool:
    """Whether points were left out of these curves."""
    return bool(unpack(packed)[0]["thinned"])


def _renumbered(packed: bytes, rows: list[int]) -> bytes:
    """Curves whose trials are named by their rows in a table that has only some of them."""
    head, columns = unpack(packed)
    places = {n: row for row, n in enumerate(rows)}
    trial = PackedColumn("trial", array("i", [places[n] for n in columns["trial"].data]))
    kept = [trial, columns["step"], columns["value"]]
    return pack(kept, head["rows"], record=head["record"], thinned=head["thinned"])


def _word(text: str) -> str:
    return quote(text, safe="")


def _kept(answer: Any) -> str:
    """An answer as the page finds it in the report: JSON, or base64 of bytes."""
    if isinstance(answer, bytes):
        return f'{{"base64":"{base64.b64encode(answer).decode()}"}}'
    return f'{{"json":{json_bytes(answer).decode()}}}'


# --- the file


def _page(name: str, kept: dict[str, str], note: str) -> bytes:
    files = {file: data.decode() for file, data in built_files().items()}
    responses = ",".join(f"{json_bytes(address).decode()}:{text}" for address, text in kept.items())
    facts = {"experiment": name} | ({"note": note} if note else {})
    data = f'{json_bytes(facts).decode()[:-1]},"responses":{{{responses}}}}}'
    start = 'window.HOLDFAST_REPORT = JSON.parse(document.getElementById("holdfast-report").textContent);'
    style, script = files["app.css"], files["app.js"]
    assert "</style" not in style.lower()
    assert "</script" not in script.lower()
    assert "<!--" not in script
    rules = (
        f"default-src 'none'; script-src {_digest(start)} {_digest(script)}; style-src {_digest(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    policy = f'<meta http-equiv="Content-Security-Policy" content="{rules}">'
    icon = f"data:image/svg+xml;base64,{base64.b64encode(files['icon.svg'].encode()).decode()}"
    replacements = {
        r"<title>.*?</title>": f"<title>{html.escape(visible(name))} · holdfast</title>",
        r'<meta charset="utf-8">': f'<meta charset="utf-8">\n{policy}',
        r'<link rel="icon"[^>]*>': f'<link rel="icon" href="{icon}">',
        r'<link rel="stylesheet"[^>]*>': f"<style>{style}</style>",
        r"<script [^>]*></script>": "",
        r"</body>": f'<script type="application/json" id="holdfast-report">{_harmless(data)}</script>\n'
        f"<script>{start}</script>\n<script>{script}</script>\n</body>",
    }
    page = files[INDEX]
    for pattern, text in replacements.items():
        page, count = re.subn(pattern, lambda _, text=text: text, page, count=1, flags=re.DOTALL)  # type: ignore[misc]
        assert count == 1, f"{pattern} is not in the page"
    return page.encode("utf-8", "replace")


def _harmless(json_text: str) -> str:
    """The same JSON without anything that could end the element around it, begin another, or turn text around."""
    return re.sub(r"[^ -;=?-~]", lambda found: _escaped(found[0]), json_text)


def _escaped(char: str) -> str:
    if char in "<>":
        return f"\\u{ord(char):04x}"
    return char if char.isprintable() else json.dumps(char)[1:-1].replace("\x7f", "\\u007f")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
