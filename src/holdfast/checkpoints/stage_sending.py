"""Checkpoints whose files go to the store from the machine that has the stage.

That machine uploads the files of a sealed stage below the checkpoint's final key, and says what it has uploaded. It
never writes the manifest: the driver alone commits, so a machine that was cut off cannot make a checkpoint exist.

Owns: what is compared before and after such an upload. Must never: change the stage.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from holdfast.checkpoints import names
from holdfast.checkpoints.commit import look
from holdfast.checkpoints.manifest import ALGORITHM, BadManifest, FileEntry
from holdfast.checkpoints.stage import read_seal
from holdfast.errors import CheckpointDamagedError
from holdfast.storage.store import Sending, Store


class CannotSend(Exception):
    """The machine that has a stage cannot use the store; the text says why. The stage is as it was."""


class StageRef(msgspec.Struct, array_like=True, frozen=True):
    """One sealed stage: whose it is, and which checkpoint it will become."""

    trial_dir: str  # relative to the experiment
    sealed: str
    trial_id: str
    attempt: int
    index: int

    @property
    def key(self) -> str:
        """What the checkpoint is called in the store."""
        return f"{self.trial_dir}/{names.checkpoint_name(self.index)}"


class SentStage(msgspec.Struct, array_like=True, frozen=True):
    """What was uploaded of a stage, as a manifest lists it."""

    files: tuple[FileEntry, ...]
    algo: str = ALGORITHM


class StageSender(Protocol):
    """Whoever knows the machines that have stages. From any thread."""

    def can_send(self, stage: StageRef) -> bool:
        """Whether another machine has this stage, and may be able to use the store."""

    def is_lost(self, stage: StageRef) -> bool:
        """Whether the machine that has this stage is gone."""

    def send(self, stage: StageRef) -> SentStage:
        """Have a stage uploaded from where it is.

        Raises:
            CannotSend: That machine cannot use the store.
            CheckpointDamagedError: It was lost, or the stage is not what was sealed.
            StorageError: Not now.
        """

    def check(self, stage: StageRef) -> bool:
        """Whether the stage was read through where it is, and is whole; False if it has to be brought instead.

        Raises:
            CheckpointDamagedError: Its machine was lost, or it is not what was sealed.
            StorageError: Not now.
        """

    def sent(self, stage: StageRef) -> None:
        """The checkpoint is in the store: the stage is not needed any more."""

    def fetches(self, key: str) -> bool:
        """Whether the machine on which a trial starts will fetch this checkpoint from the store, and read it through.

        False if it was found damaged there: then the driver has to look for itself.
        """

    def send_no_more(self, stage: StageRef, why: str) -> None:
        """The driver can use the store and the stage's machine cannot: its stages are brought for some time."""


@runtime_checkable
class SendsStages(Protocol):
    """A ``StageSource`` whose machines may be able to use the store."""

    @property
    def sender(self) -> StageSender | None:
        """None if all stages have to be brought."""


def send_stage(store: Store, root: Path, stage: StageRef) -> SentStage:
    """Upload the files of a stage, and nothing else.

    They are hashed while they are sent, and compared with the seal before and after that, so that what the answer says
    is what was reported and what the store has.

    Raises:
        CannotSend: Its hashes are of a kind that an upload does not compute.
        CheckpointDamagedError: The stage is not what was sealed.
        StorageError: The store refuses or does not answer.
    """
    directory = f"{root}/{stage.trial_dir}/{stage.sealed}"
    check_stage(root, stage, read=False)
    try:
        seal = read_seal(directory)
    except (BadManifest, FileNotFoundError) as error:
        raise damaged(directory, f"its seal is damaged: {error}") from error
    if seal.algo != ALGORITHM:
        raise CannotSend(f"the stage was sealed with {seal.algo}")
    files = [Sending(f"{directory}/{file.path}", f"{stage.key}/{file.path}") for file in seal.files]
    if os.path.isfile(f"{directory}/{names.METADATA}"):
        files.append(Sending(f"{directory}/{names.METADATA}", f"{stage.key}/{names.METADATA}"))
    try:
        hashes = store.send(files)
    except OSError:
        check_stage(root, stage, read=False)  # which says so if the files themselves are the reason
        raise
    check_stage(root, stage, read=False)
    for file, found in zip(seal.files, hashes, strict=False):
        if file.hash not in ("", found):
            raise damaged(directory, f"the content of {file.path} is not what was reported")
    sent = zip(seal.files, hashes, strict=False)
    return SentStage(tuple(FileEntry(file.path, file.size, found) for file, found in sent))


def check_stage(root: Path, stage: StageRef, *, read: bool) -> None:
    """Compare a stage with its seal: names, sizes and times, and the content as well if ``read``.

    Raises:
        CheckpointDamagedError: It is not what was sealed.
    """
    look(
        root / stage.trial_dir,
        stage.sealed,
        stage.index,
        trial_id=stage.trial_id,
        attempt=stage.attempt,
        read=read,
    )


def damaged(path: str, reason: str) -> CheckpointDamagedError:
    """The error for a stage that will never be a checkpoint."""
    return CheckpointDamagedError(
        f"the staged checkpoint {path} cannot be committed: {reason}.", path=path, reason=reason
    )
