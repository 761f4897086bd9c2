"""Text of an experiment that one should not trust: nothing in it may command the terminal or a spreadsheet."""

from __future__ import annotations

import csv
import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from roots import RootWriter

from holdfast.core import events as ev
from holdfast.errors import InvalidInputError, StorageError, TrialError
from holdfast.messages.visible import visible, visible_lines, with_colours, without_colours
from holdfast.results import ResultGrid
from holdfast.storage.trial_logs import FOLDER, make_head

Command = Callable[..., Any]

EVIL = "x\x1b[2J\x1b]0;t\x07\x9b1A\r\x08\x7f\u202e\u2066\x85[red]y"
"""Clears the screen, sets the title, moves up, runs backwards, and looks like markup."""

LINES = f"{EVIL}\n{EVIL}"


@pytest.fixture
def root(tmp_path: Path) -> RootWriter:
    writer = RootWriter(tmp_path / "exp", metric="loss").open()
    config = {f"p{EVIL}": f"v{EVIL}", "q": 1}
    for n in range(3):
        writer.create(config, name=f"n{LINES}", dirname=f"d{n}")
    writer.start(0)
    writer.report(0, {"loss": 0.5, f"m{EVIL}": 1.0, "text": LINES})
    writer.end(0, LINES)
    writer.start(1)
    writer.report(1, {"loss": 0.7})
    index = writer.save(1, {"file": "content"})
    writer.reject(1, index, LINES)
    writer.retry(1, ev.Cause.EXCEPTION, type=EVIL, message=LINES, location=f"/{EVIL}.py:3", traceback=LINES)
    writer.start(1)
    writer.error(1, type=EVIL, message=LINES, location=f"/{EVIL}.py:3", traceback=LINES, output=LINES)
    writer.add(ev.Noted(writer.tick(), 1, LINES))
    logs = writer.path / FOLDER
    logs.mkdir(parents=True, exist_ok=True)
    (logs / f"{writer.trial(0).id}.log").write_bytes(make_head(writer.trial(0).id, 1, 1.0) + LINES.encode())
    writer.finish(LINES)
    return writer


def is_harmless(text: str) -> bool:
    return all(char == "\n" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in text)


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("status", "--json"),
        ("show",),
        ("show", "0"),
        ("show", "1"),
        ("show", "1", "--json"),
        ("show", "--story"),
        ("show", "1", "--story"),
        ("show", "--sort", f"p{EVIL}"),
        ("show", "--sort", f"no{EVIL}"),
        ("show", f"no{EVIL}"),
        ("show", "--json"),
        ("logs",),
        ("logs", "0"),
        ("logs", "2"),
        ("logs", f"no{EVIL}"),
        ("verify",),
        ("gc", "--dry-run"),
        ("list-trials",),
        ("list-trials", "--sort", f"no{EVIL}"),
    ],
)
def test_no_command_lets_codes_through(root: RootWriter, holdfast: Command, arguments: tuple[str, ...]) -> None:
    command, *rest = arguments
    answer = holdfast(command, root.path, *rest)
    assert answer.out + answer.err
    assert is_harmless(answer.out), ascii(answer.out)
    assert is_harmless(answer.err), ascii(answer.err)


def test_listings_of_directories_with_such_names_are_harmless(root: RootWriter, holdfast: Command) -> None:
    place = root.path.with_name(f"e{EVIL}")
    root.path.rename(place)
    for command in ("list", "list-experiments"):
        answer = holdfast(command, place.parent)
        assert is_harmless(answer.out), ascii(answer.out)
        assert "\\x1b[2J" in answer.out
    broken = place.parent / f"broken{EVIL}"
    (broken / ".holdfast").mkdir(parents=True)
    (broken / ".holdfast/spec.json").write_text("{")
    for command in (("list",), ("list", "--json"), ("list-experiments",)):
        answer = holdfast(*command[:1], place.parent, *command[1:])
        assert is_harmless(answer.out), ascii(answer.out)


def test_a_name_with_line_breaks_takes_one_line_of_a_table(root: RootWriter, holdfast: Command) -> None:
    lines = holdfast("show", root.path).out.splitlines()
    assert len(lines) == 2 + 3
    assert all("[red]" in line for line in lines[2:])


def test_json_keeps_the_text_as_it_was(root: RootWriter, holdfast: Command) -> None:
    (first, *_) = json.loads(holdfast("show", root.path, "--json").out)
    assert first["name"] == f"n{LINES}"
    assert first["config"][f"p{EVIL}"] == f"v{EVIL}"


def test_results_in_python_are_harmless_too(root: RootWriter) -> None:
    grid = ResultGrid.from_path(root.path)
    for shown in (repr(grid), grid._repr_html_(), *map(repr, grid), *map(str, grid.errors)):
        assert is_harmless(shown), ascii(shown)


def test_messages_of_errors_show_escapes() -> None:
    for kind in (InvalidInputError, StorageError, TrialError):
        message = str(kind(f"one {EVIL}\ntwo\tthree"))
        assert message == f"one {visible(EVIL)}\ntwo\tthree"
        assert is_harmless(message.replace("\t", ""))


def test_what_is_printable_stays_as_it_is() -> None:
    for text in ("plain", "größe", "模型", "\u00a0 \u2003", "émoji 🙂", "\\x1b"):
        assert visible(text) == text
        assert visible_lines(text) == text
    assert visible_lines("a\n\tb\x1b") == "a\n\tb\\x1b"
    assert visible("a\n\tb") == "a\\n\\tb"


def test_only_colours_survive_where_they_may() -> None:
    text = "\x1b[1;31mred\x1b[0m\x1b[2J\x1b[3Ax"
    assert with_colours(text) == "\x1b[1;31mred\x1b[0m\\x1b[2J\\x1b[3Ax"
    assert without_colours(text) == "red\\x1b[2J\\x1b[3Ax"


# --- spreadsheets


FORMULAS = ("=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "=cmd|' /C calc'!A0")


@pytest.fixture
def sheet(tmp_path: Path) -> RootWriter:
    writer = RootWriter(tmp_path / "exp").open()
    for i, text in enumerate(FORMULAS):
        writer.create({"=p": text, "number": -1.5, "text": "-2.5"})
        writer.start(i)
        writer.report(i, {"loss": -0.5, "note": text})
        writer.end(i)
    return writer.finish()


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.mark.parametrize("more", [(), ("--rows",)])
def test_formulas_are_neutralised_on_request(
    sheet: RootWriter, holdfast: Command, tmp_path: Path, more: tuple[str, ...]
) -> None:
    out = tmp_path / "out.csv"
    assert holdfast("export", sheet.path, out, *more).code == 0
    assert [row["note"] for row in rows_of(out)] == list(FORMULAS)
    assert holdfast("export", sheet.path, out, "--safe-csv", *more).code == 0
    rows = rows_of(out)
    assert [row["note"] for row in rows] == [f"'{text}" for text in FORMULAS]
    assert [row["config/=p"] for row in rows] == [f"'{text}" for text in FORMULAS]
    assert {(row["loss"], row["config/number"], row["config/text"]) for row in rows} == {("-0.5", "-1.5", "-2.5")}


def test_listings_can_be_neutralised_too(sheet: RootWriter, holdfast: Command, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    command = ("list-trials", sheet.path, "--columns", "note", "--output", out, "--safe-csv")
    assert holdfast(*command).code == 0
    assert [row["note"] for row in rows_of(out)] == [f"'{text}" for text in FORMULAS]


def test_other_formats_have_no_formulas_to_neutralise(sheet: RootWriter, holdfast: Command, tmp_path: Path) -> None:
    answer = holdfast("export", sheet.path, tmp_path / "out.json", "--safe-csv")
    assert answer.code == 2
    assert "--safe-csv" in answer.err
