"""What an experiment is, written once when it is created: plain facts, and user objects in pickles beside them.

<root>/.holdfast/spec.json              facts; enough to read results without the user's code (I11)
<root>/.holdfast/objects/trainable.pkl  each pickle in its own file, loaded only by those who need it
<root>/.holdfast/objects/values.pkl     config values that are not plain data, by their path in the space
<root>/.holdfast/objects/settings.pkl   param_space, TuneConfig, RunConfig
<root>/.holdfast/objects/value-*.pkl    values that a ``sample_from`` function made
"""

from __future__ import annotations

import contextlib
import os
import pickle
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import xxhash

from holdfast.controller.lost_reports import was_started
from holdfast.core.retention import Retention
from holdfast.errors import DamageError, ExperimentNotFoundError, NewerFormatError, StorageError, StorageFullError
from holdfast.storage.layout import PRIVATE, Root
from holdfast.storage.local import is_full, write_atomic
from holdfast.storage.untrusted import check_plain, not_regular, read_regular
from holdfast.trainable.pickling import OWN_FILE, dump_value
from holdfast.trainable.sealed import read_object, seal

FORMAT = 1
CHECKSUM = "checksum"
LOCK_S = 60.0  # how long to wait for others who make or begin an experiment at the same place
LATEST = 253_000_000_000.0  # the year 9987; dates of five digits cannot be written


class Spec(msgspec.Struct, kw_only=True):
    """Plain facts about an experiment; fields are only ever added, with a default."""

    format: int = FORMAT
    version: str = ""
    uid: str
    name: str
    trainable: str
    is_class: bool
    created_at: float
    seed: int
    num_samples: int
    metric: str | None = None
    mode: str | None = None
    space_keys: list[str] = []
    total: int | None = None
    stop: str = ""
    max_failures: int = 0
    retention: Retention = Retention()
    max_identifier_len: int = 130
    utc_offset_s: int = 0
    objects: dict[str, str] = {}  # digests of the files below ``objects`` as they were created, by name
    given_as: str = ""  # how the trainable was written, for calls that continue; "": by its name
    origin: str = ""  # the tool that it was imported from; its trainable and search space are then not stored
    is_kind_known: bool = True  # False if nothing tells whether the trainable is a class
    is_space_known: bool = True  # False if nothing tells even the keys of the search space
    value_names: dict[str, str] = {}  # how values that are not plain data are shown, by their path in the space
    references: list[str] = []  # which of the user's objects refer to the memory of a cluster
    session: str = ""  # the stay in that cluster without which they mean nothing
    space: dict[str, dict[str, Any]] | None = None  # as ``describe_space`` says; None: written before there was this
    template: dict[str, Any] | None = None  # of configurations, see ``template_of``; None: not kept


msgspec.json.Decoder(Spec)  # resolves its types now, not in two threads at once, see CONTRIBUTING.md


@contextlib.contextmanager
def sole_use(root: Root) -> Iterator[None]:
    """Keep other processes from making an experiment here, or beginning it, meanwhile.

    Only the beginning needs a lock, because there is no epoch yet that says whose the root is. The directory itself is
    locked, so no file stays behind. Where that is not possible, or somebody holds it too long, a small gap is left.
    """
    try:
        fd = -1 if was_started(root) else os.open(root.private, os.O_RDONLY)
    except OSError:  # not there: whoever reads next says so better
        fd = -1
    if fd < 0:
        yield
        return
    try:
        deadline = time.monotonic() + LOCK_S
        while not _lock(fd) and time.monotonic() < deadline:
            time.sleep(0.01)
        yield
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    """False if somebody else has it; True also if the file system knows no locks."""
    try:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return True
    return True


def read_spec(root: Root) -> Spec:
    """The experiment's facts, or an error that says why this is not an experiment that can be opened."""
    try:
        check_plain(root.private)
        data = read_regular(root.spec_file)
    except (FileNotFoundError, NotADirectoryError):
        if root.exists():
            raise _spec_missing(root) from None
        raise ExperimentNotFoundError(_not_an_experiment(root)) from None
    except IsADirectoryError:
        raise not_regular(root.spec_file) from None
    except OSError as error:
        raise StorageError(error.errno, f"{root.spec_file} cannot be read: {error.strerror}") from error
    try:
        raw = msgspec.json.decode(data, type=dict[str, Any])
        found = raw["format"]
        if found > FORMAT:
            raise NewerFormatError(
                f"{root.shown} was written by a newer holdfast (format {found}, version {raw.get('version')}); this "
                f"one reads formats up to {FORMAT}. Nothing was changed. Upgrade: pip install -U holdfast"
            )
        if raw.pop(CHECKSUM, None) not in (None, _checksum(raw)):
            raise ValueError("its content does not match its checksum")
        spec = msgspec.convert(raw, Spec)
        _check_facts(spec)
        root.uid = spec.uid
        return spec
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamageError(
            f"{root.spec_file} is damaged ({error}). Nothing was overwritten; the journal beside it is untouched. "
            "Put the file back from a copy of the experiment; it never changes after creation."
        ) from error


def _check_facts(spec: Spec) -> None:
    """Refuse facts from which no name or date can be made."""
    for name in (spec.trainable, spec.name):
        if "\0" in name:
            raise ValueError(f"the name {name!r} contains a NUL character")
    if not 0.0 <= spec.created_at <= LATEST or abs(spec.utc_offset_s) > 2 * 86_400:
        raise ValueError(f"created_at={spec.created_at!r}, utc_offset_s={spec.utc_offset_s!r} is no time")


def _spec_missing(root: Root) -> DamageError:
    """The error for a history without the facts that it needs."""
    return DamageError(
        f"The file {PRIVATE}/{root.spec_file.name} of {root.shown} is missing, so the experiment cannot be opened. Its "
        "journal and whatever else is there still exist as they were; nothing was overwritten. Put the file back from "
        "a backup or from any copy of the experiment, however old: it never changes after creation. `holdfast repair` "
        "cannot rebuild it: the seed and the rules for names and checkpoints are in no other file that can be read "
        "without running stored code. Until then, results are in <trial>/result.json, and checkpoints in "
        "<trial>/checkpoint_*: tune.Checkpoint(path)."
    )


def _not_an_experiment(root: Root) -> str:
    path = root.path
    if not path.exists():
        return f"There is no experiment at {path}: the path does not exist."
    nearby = sorted(str(p.parent.parent) for p in path.glob(f"*/{PRIVATE}/spec.json"))[:3]
    hint = f" Did you mean {' or '.join(nearby)}?" if nearby else ""
    if not nearby and (path.parent / PRIVATE / "spec.json").exists():
        hint = f" Did you mean {path.parent}?"
    return f"{path} is not a holdfast experiment: no experiment state file ({PRIVATE}/spec.json) in it.{hint}"


def write_spec(root: Root, spec: Spec) -> None:
    """Make the directory an experiment; the last step of creating one."""
    root.private.mkdir(parents=True, exist_ok=True)
    raw = msgspec.to_builtins(spec)
    raw[CHECKSUM] = _checksum(raw)
    write_atomic(str(root.spec_file), msgspec.json.format(msgspec.json.encode(raw)) + b"\n")


def _checksum(raw: dict[str, Any]) -> str:
    """Of all facts, those of a later version included: a flipped bit in the seed would be another search."""
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode(raw, order="sorted"))


def write_callback_states(root: Root, states: Any) -> None:
    """What callbacks remember."""
    import cloudpickle

    path = root.callback_states_file
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(str(path), seal(cloudpickle.dumps(states), root.uid, path.name))
    root.object_written(path)


def read_callback_states(root: Root) -> Any:
    """What ``write_callback_states`` has stored. Runs the user's code.

    Raises:
        ObjectDamagedError: The file is not what was stored.
    """
    spec = read_spec(root)
    return pickle.loads(read_object(root.callback_states_file, spec.uid, spec.objects).payload)


def store_value(root: Root, value: Any, name: str) -> str:
    """Keep a value that a config cannot hold; returns the key under which configs refer to it.

    Durability: when this returns, the value survives a loss of power.

    Raises:
        StorageFullError: There is no space. Nothing partial is left; calling again later may work.
    """
    data = dump_value(value, f"the value {name!r} of the search space")
    key = f"{OWN_FILE}{xxhash.xxh3_128_hexdigest(data)}"
    target = root.objects / f"{key}.pkl"
    if target.exists():
        return key
    try:
        write_atomic(str(target), data)
    except OSError as error:
        with contextlib.suppress(OSError):
            target.unlink(missing_ok=True)  # complete, but its name may not be durable: the next call makes it so
        if not is_full(error):
            raise
        raise StorageFullError(
            error.errno,
            f"there is no space for the value {name!r} of the search space ({len(data):,} bytes, {target}). Nothing "
            "was overwritten. Free some space or raise the quota; it is then tried again.",
        ) from error
    root.object_written(target)
    return key
