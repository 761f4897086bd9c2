"""The files of the user's objects: read only if they are what was stored, replaced only by the driver.

Three records say what a file must be: the experiment's facts, for the files that were written with them; the file
itself, if it has replaced another (see ``sealed``); and the first record of each driver, which holds the digests of the
objects that driver ran with. The first two are known before the journal is read. The third one detects an older file
that was put back; if it is lost, a repair records anew what the files must be.

Owns that comparison. Must never unpickle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.controller.spec import Spec
from holdfast.core.state import State
from holdfast.errors import DamageError, ExperimentExistsError, ObjectDamagedError
from holdfast.messages.warn import warn_user
from holdfast.space.objects import is_marker
from holdfast.storage.crashpoint import crashpoint
from holdfast.storage.layout import Root
from holdfast.storage.local import write_atomic
from holdfast.trainable.pickling import OWN_FILE
from holdfast.trainable.sealed import Content, damaged, is_own_file, read_object, seal


class ObjectFiles:
    """The files of one experiment, as far as somebody has read or replaced them.

    Attributes:
        digests: Of each file, by its name.
    """

    def __init__(self, root: Root, spec: Spec) -> None:
        self.digests: dict[str, str] = dict(spec.objects)
        self._epochs: dict[str, int] = {}
        self._root = root
        self._spec = spec

    def read(self, path: Path) -> bytes:
        """What was stored in a file.

        Raises:
            ObjectDamagedError: The file is not what was stored.
        """
        content = self._content(path)
        self._note(path.name, content.digest, content.epoch)
        return content.payload

    def read_or(self, path: Path, instead: bytes) -> bytes:
        """What was stored in a file; if that is damaged, what the user has given in its place, with a warning."""
        try:
            return self.read(path)
        except ObjectDamagedError as error:
            warn_user(f"{error.path} is damaged: {error.reason}. It is replaced by the object passed now.", UserWarning)
            return instead

    def replace(self, path: Path, payload: bytes, epoch: int) -> None:
        """Let a file hold something else from now on. Only the driver of ``epoch`` may do that (I4).

        Durability: when this returns, the new file survives a loss of power; a crash leaves the one or the other.
        """
        own = path.name.startswith(OWN_FILE)
        data = payload if own else seal(payload, self._spec.uid, path.name, epoch)
        crashpoint("objects.replacing")
        write_atomic(str(path), data)
        crashpoint("objects.replaced")
        if not own:
            self._note(path.name, self._content(path).digest, epoch)

    def check(self, state: State) -> None:
        """Compare what was read with what the last driver ran with.

        Raises:
            ObjectDamagedError: A file was put back that is older.
            ExperimentExistsError: Another driver has replaced a file since it was read.
        """
        for name, reason in self._older(state):
            path = self._root.objects / name
            if self._content(path).digest == state.objects[name]:
                raise ExperimentExistsError(
                    f"{path} was replaced by another driver after this Tuner was created. Create the Tuner again "
                    "to continue with that. Nothing was changed."
                )
            raise damaged(path, reason)

    def findings(self, state: State) -> Iterator[tuple[str, str]]:
        """Read all files, and say which are damaged and why: for `holdfast verify`."""
        named = {*filter(_is_plain, self._spec.objects), *filter(_is_plain, state.objects)}
        for name in sorted({*named, *self._present(), *_own_files(state)}):
            try:
                self.read(self._root.objects / name)
            except DamageError as error:
                self.digests.pop(name, None)
                yield name, getattr(error, "reason", str(error))
        yield from self._older(state)

    def digests_after_loss(self, state: State) -> tuple[dict[str, str], list[str]]:
        """What the files must be from now on, if the records of drivers behind ``state`` are lost.

        A file that says of itself that one of those drivers wrote it cannot be compared, and is not to be called an
        older one: nothing else knows it. Any other file must still be what ``state`` says.

        Returns:
            The digests, by name; and the names of the files that could not be compared.
        """
        digests, unsure = dict(state.objects), []
        for name in sorted({*filter(_is_plain, self._spec.objects), *filter(_is_plain, state.objects)}):
            try:
                content = self._content(self._root.objects / name)
            except DamageError:
                continue  # whatever it should be, it is named by ``findings``
            if content.epoch > state.epoch and content.digest != state.objects.get(name):
                digests[name] = content.digest
                unsure.append(name)
        return digests, unsure

    def _older(self, state: State) -> Iterator[tuple[str, str]]:
        """Files that were read and are not those that the last driver had, nor written by a later one."""
        for name, digest in sorted(state.objects.items()):
            mine = self.digests.get(name, digest)
            # A driver that was killed before its first record may have replaced the file.
            if mine != digest and self._epochs.get(name, 0) <= state.epoch and _is_plain(name):
                yield name, "it is not the one that the experiment last ran with, but an older one"

    def _content(self, path: Path) -> Content:
        return read_object(path, self._spec.uid, self._spec.objects)

    def _note(self, name: str, digest: str, epoch: int) -> None:
        self.digests[name], self._epochs[name] = digest, epoch

    def _present(self) -> list[str]:
        found = self._root.objects.iterdir() if self._root.objects.is_dir() else ()
        return [path.name for path in found if _is_plain(path.name)]


def _is_plain(name: str) -> bool:
    """Whether it is the name of such a file: it may come from a journal that somebody else has written."""
    return name.endswith(".pkl") and not name.startswith(".") and "/" not in name and "\0" not in name


def _own_files(state: State) -> set[str]:
    """The files of their own that configs and changed settings refer to."""
    found = {f"{key}.pkl" for key in state.settings.objects.values() if is_own_file(f"{key}.pkl")}
    for trial in state.trials:
        _collect(trial.config, found)
    return found


def _collect(node: Any, found: set[str]) -> None:
    if isinstance(node, Mapping):
        if is_marker(node):
            if is_own_file(f"{node['__object__']}.pkl"):
                found.add(f"{node['__object__']}.pkl")
            return
        for value in node.values():
            _collect(value, found)
    elif isinstance(node, list):
        for value in node:
            _collect(value, found)
