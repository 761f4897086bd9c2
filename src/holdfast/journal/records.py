"""The journal's records as events: decoded, with names that cannot lead out of the root, and fit to be folded.

Owns what a record may say. A record whose checksum is right may still have been made by somebody who wants to do harm,
or by a fault: whatever it says that no driver writes is damage, named by the number of the record. Everybody who reads
events goes through here, so that everything behind it can believe names and numbers. Must never write.
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from holdfast.core import events as ev
from holdfast.errors import IllegalTransitionError, JournalDamagedError
from holdfast.journal.reader import JournalContents, Position, SegmentPart, read_journal
from holdfast.space.exact import TAG, is_exact, is_mapping, misfit
from holdfast.space.naming import why_no_dirname, why_no_name
from holdfast.storage.local import REAL_DISK, Disk

MAX_NESTING = 256
"""How deep configs and metrics may be nested. Reports end at 64; walking through values takes some calls a level."""

_CONTAINERS = bytes([*range(0x80, 0xA0), *range(0xDC, 0xE0)])  # type bytes of msgpack's lists and dicts
_MARK = TAG.encode()
MAX_SHOWN = 80

_SUSPECTS = frozenset({ev.TrialCreated, ev.TrialReconfigured, ev.CheckpointStaged})  # they hold names, or configs


Through: TypeAlias = Callable[[Iterable[tuple[int, bytes]]], Iterable[tuple[int, bytes]]]


class Unfit(ValueError):
    """What a record says cannot be; the text says why."""


class Events:
    """The events in some records; iterate once.

    Attributes:
        seq: Number of the record in hand.
    """

    def __init__(
        self, root: str | os.PathLike[str], records: Iterable[tuple[int, bytes]], end: Position | None = None
    ) -> None:
        self._records = records
        self._end = end
        self.seq = 0
        self._root = root

    def __iter__(self) -> Iterator[ev.AnyEvent]:
        # Once per record of the experiment: the usual record costs no call but that of its decoder.
        decode, suspects, deepest = ev.decode, _SUSPECTS, MAX_NESTING
        end = math.inf if self._end is None else self._end.next_seq
        for seq, payload in self._records:
            if seq >= end:
                return
            self.seq = seq
            try:
                event = decode(payload)
                if type(event) in suspects or len(payload) > deepest:
                    _check(event, payload)
            except (ValueError, RecursionError):
                event = decode_record(self._root, seq, payload)  # raises, and says what is wrong
            yield event

    @contextlib.contextmanager
    def folding(self) -> Iterator[None]:
        """Where they are folded: one that cannot follow those before it is damage, too."""
        try:
            yield
        except IllegalTransitionError as error:
            raise unfit_record(self._root, self.seq, error.fact) from error


class ReadEvents(Events):
    """The events between two positions.

    Attributes:
        contents: Where they come from.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        contents: JournalContents,
        end: Position | None = None,
        through: Through | None = None,
    ) -> None:
        super().__init__(root, contents if through is None else through(contents), end)
        self.contents = contents
        self.seq = contents.position.next_seq - 1
        self._parts: Iterator[SegmentPart] | None = None
        self._part = SegmentPart("", 0, 0, [])
        self._taken = 0  # of the part's records

    def take(self, most: int) -> list[ev.AnyEvent]:
        """The next events, at most so many; none at the end. ``seq`` is the number of the last of them.

        Costs half of what iterating does. Use one or the other; ``end`` and ``through`` have no effect here.
        """
        while self._taken == len(self._part.payloads):
            if self._parts is None:
                self._parts = self.contents.parts()
            part = next(self._parts, None)
            if part is None:
                return []
            self._part, self._taken = part, 0
        first = self._part.seq + self._taken
        payloads = self._part.payloads[self._taken : self._taken + most]
        self._taken += len(payloads)
        self.seq = first + len(payloads) - 1
        try:
            events = list(map(ev.decode, payloads))
            if max(map(len, payloads)) > MAX_NESTING:
                for event, payload in zip(events, payloads, strict=True):
                    _check(event, payload)
            else:
                for event, payload in zip(events, payloads, strict=True):
                    if type(event) in _SUSPECTS:
                        _check(event, payload)
        except (ValueError, RecursionError):  # says which, and what is wrong
            return [decode_record(self._root, seq, payload) for seq, payload in enumerate(payloads, first)]
        return events


def read_events(
    root: str | os.PathLike[str],
    *,
    after: Position | None = None,
    end: Position | None = None,
    disk: Disk = REAL_DISK,
    through: Through | None = None,
) -> ReadEvents:
    """Open the history of the experiment at ``root`` from ``after`` to ``end``; raises as `read_journal` does.

    ``through`` sees the records before they are decoded, for instance to count them.
    """
    return ReadEvents(root, read_journal(root, after=after, disk=disk), end, through)


def decode_record(root: str | os.PathLike[str], seq: int, payload: bytes) -> ev.AnyEvent:
    """Return the event in a record.

    Raises:
        JournalDamagedError: It is none, or one that no driver writes.
    """
    try:
        return parse_record(payload)
    except Unfit as error:
        raise unfit_record(root, seq, str(error)) from error


def parse_record(payload: bytes) -> ev.AnyEvent:
    """Return the event in a record.

    Raises:
        Unfit: It is none, or one that no driver writes.
    """
    try:
        event = ev.decode(payload)
        _check(event, payload)
        return event
    except RecursionError:
        raise Unfit("its values are nested too deeply") from None
    except Unfit:
        raise
    except ValueError as error:
        raise Unfit(f"it is no event: {error}") from error


def unfit_record(root: str | os.PathLike[str], seq: int, why: str) -> JournalDamagedError:
    """Return the error for a record that is whole and cannot be used."""
    return JournalDamagedError(
        f"The journal of {root} is damaged at record {seq}: the record is whole, but {why}. holdfast never writes "
        f"this: the file was changed, or its writer had a bug. Nothing was changed, and nothing outside the experiment "
        f"was touched. To see all damage: holdfast verify {shlex.quote(os.fspath(root))}",
        file=".holdfast/journal",
        offset=0,
        seq=seq,
    )


def check_trial_names(trial_id: str, name: str, tag: str, dirname: str) -> None:
    """Refuse a trial whose directory would not be one of its own below the root.

    Raises:
        Unfit: The text shows the name.
    """
    if why := why_no_name(trial_id):
        raise Unfit(f"the trial's id {trial_id!r} cannot be used: {why}")
    if dirname and (why := why_no_dirname(dirname)):
        raise Unfit(f"the trial's directory {dirname!r} cannot be used: {why}")
    for text in (name, tag):
        if "\0" in text:
            raise Unfit(f"the trial's name {text!r} contains a NUL character")


def check_stage_name(sealed: str) -> None:
    """Refuse a stage that is not a directory of its own below the trial's.

    Raises:
        Unfit: The text shows the name.
    """
    if why := why_no_name(sealed):
        raise Unfit(f"the staged checkpoint {sealed!r} cannot be used: {why}")


def check_config(config: dict[Any, Any], payload: bytes) -> None:
    """Refuse a config that cannot be shown or given to a trial. Only one with a tag in its bytes costs a walk.

    Raises:
        Unfit: The text shows the value.
    """
    if _MARK not in payload:
        return
    if is_exact(config) and not is_mapping(config):
        raise Unfit(f"the trial's config is no dict: {_brief(config)}")
    if (found := misfit(config)) is not None:
        raise Unfit(f"a value of the trial's config cannot be read: {_brief(found)}")


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _check(event: ev.AnyEvent, payload: bytes) -> None:
    if len(payload) > MAX_NESTING:
        _check_nesting(event, payload)
    if isinstance(event, ev.TrialCreated):
        check_trial_names(event.id, event.name, event.tag, event.dirname)
        check_config(event.config, payload)
    elif isinstance(event, ev.TrialReconfigured):
        check_config(event.config, payload)
    elif isinstance(event, ev.CheckpointStaged):
        check_stage_name(event.sealed)


def _check_nesting(event: Any, payload: bytes) -> None:
    """Refuse what Python functions could not walk through. Counting bytes that may begin a list or dict is cheap."""
    if len(payload) - len(payload.translate(None, _CONTAINERS)) <= MAX_NESTING:
        return
    level = [getattr(event, "metrics", None), getattr(event, "config", None)]
    for _ in range(MAX_NESTING):
        level = [child for node in level for child in _children(node)]
        if not level:
            return
    raise Unfit(f"its values are nested more than {MAX_NESTING} levels deep")


def _children(node: Any) -> Any:
    return node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
