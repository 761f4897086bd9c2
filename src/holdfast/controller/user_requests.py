"""Ask the live driver of an experiment to do something: stop, note, tag, add samples.

Each function leaves a request file, waits until the driver has answered it, and returns the answer as a sentence. The
command line and the page use the same functions. A driver takes requests within a second.

Owns who may be asked and how long is waited. Must never write to the journal: the driver is its one writer (I4).
"""

from __future__ import annotations

import os
import shlex
import socket
import time
from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.controller.changes import MARK as SETTINGS_MARK
from holdfast.controller.remote_experiment import mirror_root
from holdfast.controller.request_files import UserRequest, check_request, create_request, folder_of, path_of
from holdfast.controller.spec import read_spec
from holdfast.core import events as ev
from holdfast.core.events import Action
from holdfast.errors import FencedError, InvalidInputError, RequestRefusedError, StorageError
from holdfast.journal.epoch import Holder, holder, this_machine
from holdfast.journal.liveness import is_elsewhere
from holdfast.journal.reader import Position, read_journal
from holdfast.journal.snapshot import SnapshotStore
from holdfast.storage.address import parse
from holdfast.storage.layout import Root
from holdfast.storage.local import look_anew
from holdfast.storage.remote_root import remote_of

WAIT_S = 15.0
"""How long an answer is waited for: a driver that writes to a slow disk, or runs a slow callback, looks late."""

POLL_S = 0.05
READ_EVERY = 20
"""Looks between two readings of the journal, while the file of the request is still there."""

_USER_MARK = b"\xa4user"


class LiveExperiment(NamedTuple):
    """An experiment with a driver that can be asked.

    Attributes:
        root: Where the driver works: the directory, or the local mirror of a store.
        owner: The driver.
    """

    root: Root
    owner: Holder


def stop_trial(path: str | os.PathLike[str], trial: str, *, wait_s: float = WAIT_S) -> str:
    """Stop one trial: it ends as TERMINATED after its current iteration, as by a stop rule, and keeps its checkpoints.

    Args:
        path: The experiment's root, a path or a URI.
        trial: The trial's id.
        wait_s: How long to wait for the driver.

    Returns:
        What the driver does, in a sentence.

    Raises:
        RequestRefusedError: No driver can be asked, it refuses (the trial has ended), or it does not answer in time.
        InvalidInputError: The request cannot be made.

    Durability: when this returns, the request is a durable record of the journal on the driver's machine. If the driver
        is killed before the trial has ended, the next one ends the trial.
    """
    _ask(path, UserRequest(epoch=0, action=Action.STOP, trial=trial), wait_s)
    return f"Trial {trial} is stopped: it ends as TERMINATED with its next report, or at once if it does not run."


def stop_all(path: str | os.PathLike[str], *, wait_s: float = WAIT_S) -> str:
    """Stop the driver as SIGTERM does: running trials save, and the experiment can be resumed. See ``stop_trial``."""
    live = _ask(path, UserRequest(epoch=0, action=Action.STOP), wait_s)
    return (
        f"The driver ({live.owner.who}) is shutting down: running trials save and stop, and stay resumable. To resume: "
        f"holdfast resume {shlex.quote(live.root.shown)}"
    )


def add_note(path: str | os.PathLike[str], text: str, trial: str = "", *, wait_s: float = WAIT_S) -> str:
    """Note something about a trial, or about the experiment if ``trial`` is "". See ``stop_trial``."""
    _ask(path, UserRequest(epoch=0, action=Action.NOTE, trial=trial, text=text), wait_s)
    return f"Noted for trial {trial}." if trial else "Noted for the experiment."


def add_tags(
    path: str | os.PathLike[str], tags: Iterable[str], trial: str = "", *, remove: bool = False, wait_s: float = WAIT_S
) -> str:
    """Tag a trial, or the experiment if ``trial`` is ""; with ``remove``, take tags away. See ``stop_trial``."""
    if isinstance(tags, str):
        raise InvalidInputError(f"Tags are a list of texts, for example [{tags!r}], not one text.")
    tags = tuple(tags)
    action = Action.UNTAG if remove else Action.TAG
    _ask(path, UserRequest(epoch=0, action=action, trial=trial, tags=tags), wait_s)
    what = f"trial {trial}" if trial else "the experiment"
    return f"{', '.join(tags)} {'removed from' if remove else 'added to'} the tags of {what}."


def set_samples(path: str | os.PathLike[str], num_samples: int, *, wait_s: float = WAIT_S) -> str:
    """Let the experiment have more samples; the number is that of the whole experiment, as in a restore.

    -1 is without end. See ``stop_trial``.
    """
    if isinstance(num_samples, bool) or not isinstance(num_samples, int):
        raise InvalidInputError(f"The number of samples must be a whole number, got {num_samples!r}.")
    _ask(path, UserRequest(epoch=0, action=Action.SAMPLES, num_samples=num_samples), wait_s)
    return f"The experiment has num_samples={num_samples} from now on."


def find_live(path: str | os.PathLike[str], instead: str = "") -> LiveExperiment:
    """Find the driver that runs the experiment at ``path`` and reads requests.

    Args:
        path: The experiment's root, a path or a URI.
        instead: What to do if there is none, in a sentence.

    Raises:
        RequestRefusedError: No driver lives, or only on a machine that cannot be reached by a file.
        ExperimentNotFoundError: There is no experiment.
    """
    remote = remote_of(path)
    root = Root(parse(path).path) if remote is None else mirror_root(remote)
    if remote is not None and not root.has_spec():
        raise _not_here(root)
    read_spec(root)
    owner = holder(root.path)
    if owner is not None and owner.alive:
        if remote is None and is_copy(root.path, owner):
            raise RequestRefusedError(
                f"{root.shown} is a copy: the driver that its files name ({owner.who}) runs the original, and takes "
                "requests only there. Nothing was changed."
            )
        return LiveExperiment(root, owner)
    if remote is not None:
        raise _not_here(root)
    how = "nobody has run it yet" if owner is None else f"its driver, {owner.who}, has ended"
    raise RequestRefusedError(
        f"No driver runs {root.shown}: {how}. Nothing was changed.{f' {instead}' if instead else ''}"
    )


def is_copy(root: os.PathLike[str], owner: Holder | None) -> bool:
    """Whether a live driver works in another directory on this machine, of which this one is a copy."""
    return (
        owner is not None
        and owner.claim.machine == this_machine()
        and is_elsewhere(os.path.join(root, ".holdfast", "epochs"), owner.claim.lock)
    )


def _not_here(root: Root) -> RequestRefusedError:
    return RequestRefusedError(
        f"No driver runs {root.shown} on this machine, and a driver takes requests only through the disk that it works "
        f"on. If it runs on another machine, type the same command there; `holdfast status {shlex.quote(root.shown)}` "
        "tells where. Nothing was changed."
    )


def _instead(request: UserRequest, shown: str) -> str:
    """What to do in the place of a request if no driver lives."""
    resume = f"holdfast resume {shlex.quote(shown)}"
    if request.action == Action.SAMPLES:
        call = f"Tuner.restore({shown!r}, tune_config=TuneConfig(num_samples={request.num_samples})).fit()"
        return f"To resume with that number: {call}"
    if request.action == Action.STOP:
        return f"Nothing runs that could be stopped; unfinished trials continue only when somebody resumes: {resume}"
    return f"Only a live driver writes the journal. Resume first, if the experiment is not finished: {resume}"


def _ask(path: str | os.PathLike[str], request: UserRequest, wait_s: float) -> LiveExperiment:
    request = replace(request, by=_who())
    try:
        check_request(request)
    except InvalidInputError as error:
        raise InvalidInputError(f"{str(error)[:1].upper()}{str(error)[1:]}. Nothing was changed.") from None
    live = find_live(path, _instead(request, _shown(path)))
    root = live.root.path
    known = SnapshotStore(root).peek()
    position = None if known is None else known.position
    try:
        request_id = create_request(root, replace(request, epoch=live.owner.claim.epoch))
    except OSError as error:
        raise StorageError(
            error.errno,
            f"The request cannot be written to {folder_of(root)}: {error.strerror or error}. Nothing was changed.",
        ) from error
    answer = _wait(live, request_id, position, wait_s)
    refused = answer.refused if isinstance(answer, ev.UserRequested) else ""
    if refused:
        raise RequestRefusedError(f"The driver refused: {refused}. Nothing was changed.")
    return live


def _shown(path: str | os.PathLike[str]) -> str:
    remote = remote_of(path)
    return str(parse(path).path) if remote is None else remote.url


def _who() -> str:
    """The user and the machine, for people; not to be relied on."""
    try:
        import pwd

        name = pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError, OSError):
        name = str(os.getuid()) if hasattr(os, "getuid") else "somebody"
    return f"{name}@{socket.gethostname()}"[:100]


def _wait(
    live: LiveExperiment, request_id: str, position: Position | None, wait_s: float
) -> ev.UserRequested | ev.SettingsChanged:
    """Wait for the record of the answer."""
    root, deadline, looks = live.root.path, time.monotonic() + wait_s, 0
    while True:
        looks += 1
        late = time.monotonic() >= deadline
        alive = _is_alive(root)
        is_there = _exists(root, request_id)
        if not alive or not is_there or late or looks % READ_EVERY == 0:
            answer = _find(root, request_id, position)
            if answer is not None:
                return answer
        if not alive:
            _withdraw(root, request_id)
            raise RequestRefusedError(
                f"The driver ({live.owner.who}) ended before it took the request. Nothing was changed."
            )
        if late:
            raise RequestRefusedError(
                f"The driver ({live.owner.who}) has not answered for {wait_s:g} s: it may be suspended, waiting for "
                "its disk, or busy with a callback. The request stays, and is followed when that driver looks; a later "
                "driver refuses it."
                if is_there
                else f"The request was removed, and no answer to it is in the journal of {live.root.shown}."
            )
        time.sleep(POLL_S)


def _is_alive(root: os.PathLike[str]) -> bool:
    owner = holder(root)
    return owner is not None and owner.alive


def _exists(root: os.PathLike[str], request_id: str) -> bool:
    try:
        look_anew(folder_of(root))
    except OSError:
        return True
    return os.path.lexists(path_of(root, request_id))


def _withdraw(root: os.PathLike[str], request_id: str) -> None:
    """Nobody takes it any more; a later driver would refuse it."""
    try:
        os.unlink(path_of(root, request_id))
    except OSError:
        pass


def _find(
    root: os.PathLike[str], request_id: str, position: Position | None
) -> ev.UserRequested | ev.SettingsChanged | None:
    """The record of the answer, if it is there."""
    try:
        for _, payload in read_journal(root, after=position):
            if payload[1:6] != _USER_MARK and payload[1:10] != SETTINGS_MARK:
                continue
            event = ev.decode(payload)
            if isinstance(event, ev.UserRequested) and event.id == request_id:
                return event
            if isinstance(event, ev.SettingsChanged) and event.request == request_id:
                return event
    except FencedError:
        return None  # a new driver has sealed the journal while it was read
    return None
