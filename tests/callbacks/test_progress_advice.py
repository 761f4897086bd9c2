"""Advice at the end of a text is shown, however long the text before it and however narrow the terminal."""

from __future__ import annotations

import io
import re

import pytest
from progress_world import World, boom
from rich.console import Console

from holdfast.display.base import PlainDisplay
from holdfast.display.clipping import advice_line, clip_middle, whole_sentences, wrapped
from holdfast.display.display import Ending, RunSummary
from holdfast.display.experiment_facts import DisplayOptions
from holdfast.display.live import LiveDisplay
from holdfast.trainable.failures import MAX_MESSAGE_CHARS, error_facts

ADVICE = "Use an absolute path, or set HOLDFAST_CHDIR_TO_TRIAL_DIR=0."


def plain_lines(message: str) -> list[str]:
    stream = io.StringIO()
    display = PlainDisplay(stream)
    world = World(display.feed)
    display.start(world.facts)
    world.fail(world.launch(), boom(message))
    display.update(world.state, world.facts, world.at, 0.0)
    display.note(message)
    display.end(world.state, world.facts, RunSummary(at=world.at))
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("size", [10, 150, 1_000, 1_000_000])
def test_the_advice_of_a_failure_is_shown_when_it_happens_and_at_the_end(size: int) -> None:
    lines = plain_lines(f"no such file: {'x' * size}. {ADVICE}")
    with_advice = [line for line in lines if ADVICE in line]
    assert [line[:12] for line in with_advice] == ["train_ab_000", "Note: no suc", "  ValueError"]
    assert all("no such file: xx" in line for line in with_advice)
    assert max(map(len, lines)) < 500


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_advice_fits_into_a_terminal(width: int) -> None:
    screen = Console(file=io.StringIO(), record=True, width=width, height=24, force_terminal=True, highlight=False)
    display = LiveDisplay(io.StringIO(), DisplayOptions(), console=screen)
    world = World(display.feed)
    display.start(world.facts)
    world.fail(world.launch(), boom(f"no such file: {'x' * 300}. {ADVICE}"))
    display.update(world.state, world.facts, world.at)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.export_text(clear=False))
    assert ADVICE in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= width
    display.close()


def test_an_experiment_that_fails_says_so_in_whole_sentences() -> None:
    stream = io.StringIO()
    display = PlainDisplay(stream)
    world = World(display.feed)
    reason = f"MetricMissingError: there is no `loss`. Nothing was lost. To optimise another: {'x' * 200}."
    display.end(world.state, world.facts, RunSummary(at=world.at, outcome=Ending.FAILED, reason=reason))
    assert "ended with an error: MetricMissingError: there is no `loss`. Nothing was lost. 0/" in stream.getvalue()


def test_a_message_that_is_too_long_to_store_keeps_its_end() -> None:
    facts = error_facts(ValueError("x" * 3 * MAX_MESSAGE_CHARS + ADVICE))
    assert len(facts.message) < MAX_MESSAGE_CHARS + 100
    assert facts.message.endswith(ADVICE)


@pytest.mark.parametrize("limit", [0, 1, 5, 10, 40])
def test_texts_are_never_longer_than_their_room(limit: int) -> None:
    text = "one two three four five six seven eight nine ten"
    assert len(clip_middle(text, limit)) <= max(limit, 4)
    assert len(advice_line(text, limit)) <= max(limit, 4)
    assert len(whole_sentences(text, limit)) <= max(limit, 4)


def test_a_text_is_cut_between_words() -> None:
    text = "no such file: data.csv. " + "it exists elsewhere " * 5 + "so use another path"
    assert clip_middle(text, 60) == "no such file: data.c .. elsewhere so use another path"
    assert wrapped(text, 60, 2)[-1].endswith("so use another path")
    assert len(wrapped(text, 60, 2)) == 2
    assert wrapped("short", 60, 3) == ["short"]
