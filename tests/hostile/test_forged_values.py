"""A config in a journal or a snapshot whose tags stand for nothing is damage, not a traceback somewhere in a reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from forging import READERS, arguments, good, with_records

import holdfast as tune
from holdfast.core import events as ev
from holdfast.display.words import value_text
from holdfast.errors import InvalidInputError, JournalDamagedError
from holdfast.journal.records import Unfit, parse_record, read_events

AT = 1_700_001_000.0


def tag(kind: Any, value: Any, **more: Any) -> dict[str, Any]:
    return {"__exact__": kind, "value": value, **more}


FORGED: list[dict[str, Any]] = [
    tag("tuple", [1]),
    tag("int", "0x1"),
    {"x": {"__exact__": "tuple"}},
    {"x": tag("tuple", 1)},
    {"x": tag("tuple", [1], more=2)},
    {"x": tag("set", [[1]])},
    {"x": tag("frozenset", [tag("set", [1])])},
    {"x": tag("dict", {"a": 1})},
    {"x": tag("dict", {"a": 1}, keys={"a": [1]})},
    {"x": tag("OrderedDict", {"a": 1}, keys={"a": tag("tuple", [[1]])})},
    {"x": tag("dict", {"__exact__": 1}, keys={})},
    {"x": tag("set", [tag([], 1)])},
    tag([], 1),
    {"x": tag("int", "9" * 5000)},
    {"x": tag("int", 9)},
    {"x": tag("int", "nine")},
    {"x": tag("str", "[" * 5000)},
    {"x": tag("str", "1")},
    {"x": tag("complex", [1.0])},
    {"x": tag("complex", "1")},
    {"x": tag("Path", 1)},
    {"x": tag("numpy.int8", 10**9)},
    {"x": tag("numpy.uint8", -1)},
    {"x": tag("numpy.int64", "1")},
    {"x": tag("numpy.float64", [1.0])},
    {"x": tag("numpy.complex64", [1.0])},
    {"x": tag("numpy.bool_", [True])},
    {"x": tag(["tuple"], [1])},
    {"x": [{"y": tag("tuple", [tag("int", "z")])}]},
]


def created(config: dict[str, Any]) -> ev.TrialCreated:
    return ev.TrialCreated(AT, 1, "abcde_00001", config, "1_x")


@pytest.mark.parametrize("command", [*READERS, ("list-trials",), ("show", "--story"), ("report",)], ids=" ".join)
def test_a_value_that_its_tag_cannot_hold_is_damage_to_every_command(
    tmp_path: Path, holdfast: Callable[..., Any], command: tuple[str, ...]
) -> None:
    root = with_records(tmp_path / "exp", created({"x": tag("numpy.int8", 10**9)}))
    line = arguments(command, root, tmp_path)
    answer = holdfast(*line, tmp_path / "page.html") if command[0] == "report" else holdfast(*line)
    assert answer.code == 1
    assert "record 8" in answer.said
    assert "1000000000" in answer.said
    assert "Traceback" not in answer.said


@pytest.mark.parametrize("config", FORGED, ids=lambda config: repr(config)[:40])
def test_every_tag_that_cannot_be_taken_away_is_damage(tmp_path: Path, config: dict[str, Any]) -> None:
    root = with_records(tmp_path / "exp", created(config))
    with pytest.raises(JournalDamagedError, match="config") as caught:
        tune.ResultGrid.from_path(root)
    assert caught.value.seq == 8
    assert len(str(caught.value)) < 1000
    with pytest.raises(JournalDamagedError, match="config"):  # the other way of reading
        list(read_events(root))


def test_a_trial_that_continues_with_a_forged_config_is_damage() -> None:
    event = ev.TrialReconfigured(AT, 0, {"x": {"__exact__": "tuple"}})
    with pytest.raises(Unfit, match="config"):
        parse_record(ev.encode(event))


@pytest.mark.parametrize(
    "value", [tag("int", hex(10**4299)), tag("a newer kind", [1]), tag("numpy.float256", 1.0), tag("numpy.bool", True)]
)
def test_values_that_can_be_shown_are_still_read(
    tmp_path: Path, holdfast: Callable[..., Any], value: dict[str, Any]
) -> None:
    root = with_records(tmp_path / "exp", created({"x": value}))
    assert len(tune.ResultGrid.from_path(root)) == 2
    assert holdfast("list-trials", root).code == 0


def test_a_snapshot_with_a_forged_config_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = good(tmp_path / "exp")
    writer.state.trials[0] = msgspec.structs.replace(writer.trial(0), config={"x": {"__exact__": "tuple"}})
    writer.snapshot()
    assert tune.ResultGrid.from_path(writer.die().path)[0].config == {"lr": 0.5}
    assert "snapshot" in caplog.text


def test_metrics_that_look_like_tags_are_shown_as_they_are() -> None:
    for metric in ({"__exact__": "tuple"}, tag("int", "9" * 5000), [tag("numpy.complex64", 1)]):
        assert "__exact__" in value_text(metric, 100)


def test_an_int_that_no_reader_could_show_is_refused_at_once(tmp_path: Path) -> None:
    run_config = tune.RunConfig(name="exp", storage_path=str(tmp_path), verbose=0)
    with pytest.raises(InvalidInputError, match="4300 digits"):
        tune.Tuner(print, param_space={"x": 10**4300}, run_config=run_config).fit()
    assert not (tmp_path / "exp").exists()
