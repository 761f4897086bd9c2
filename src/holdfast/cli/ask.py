"""``holdfast stop``, ``note``, ``tag`` and ``samples``: ask the live driver of an experiment, and print its answer."""

from __future__ import annotations

import argparse

from holdfast.cli.printing import print_json, say
from holdfast.cli.show import find_trial
from holdfast.controller.user_requests import add_note, add_tags, find_live, set_samples, stop_all, stop_trial
from holdfast.errors import InvalidInputError
from holdfast.results.history import open_history, open_mirror
from holdfast.storage.address import is_remote


def run(arguments: argparse.Namespace) -> int:
    """Ask, wait and tell the answer."""
    text = _ANSWERS[arguments.ask](arguments)
    if arguments.json:
        print_json({"accepted": True, "text": text})
    else:
        say(text)
    return 0


def _stop(arguments: argparse.Namespace) -> str:
    if arguments.trial is None:
        return stop_all(arguments.path)
    return stop_trial(arguments.path, _trial_id(arguments.path, arguments.trial))


def _note(arguments: argparse.Namespace) -> str:
    *trial, text = arguments.words
    if len(trial) > 1:
        raise InvalidInputError("A note is one argument: put its text in quotes. holdfast note PATH [TRIAL] 'TEXT'")
    return add_note(arguments.path, text, _trial_id(arguments.path, trial[0]) if trial else "")


def _tag(arguments: argparse.Namespace) -> str:
    words = arguments.words
    if arguments.whole:
        return add_tags(arguments.path, words, remove=arguments.remove)
    if len(words) < 2:
        raise InvalidInputError(
            "A trial and at least one tag are needed: holdfast tag PATH TRIAL TAG..., or holdfast tag PATH "
            "--experiment TAG... for the whole experiment."
        )
    return add_tags(arguments.path, words[1:], _trial_id(arguments.path, words[0]), remove=arguments.remove)


def _samples(arguments: argparse.Namespace) -> str:
    return set_samples(arguments.path, arguments.number)


def _trial_id(path: str, text: str) -> str:
    """The id of the trial that is meant; the store of an experiment is not asked, because its driver is here."""
    find_live(path)
    history = open_mirror(path, why="its driver is on this machine") if is_remote(path) else open_history(path)
    assert history is not None
    return find_trial(history, text).id


_ANSWERS = {"stop": _stop, "note": _note, "tag": _tag, "samples": _samples}
