"""Which checkpoints to take and keep, and how copies travel: ``CheckpointConfig``, ``SyncConfig``.

Owns: the fields of every generation of these settings and their validation.
Must never: copy, delete or score anything; retention and storage read these values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from holdfast.config.secrets import refuse_fragment, refuse_missing_slashes, refuse_secrets
from holdfast.config.settings import (
    ConfigBase,
    documented,
    one_of,
    real_number,
    refuse,
    true_or_false,
    warn_legacy,
    whole_number,
)
from holdfast.errors import InvalidInputError


@documented
@dataclass(repr=False)
class CheckpointConfig(ConfigBase):
    """When class trainables save, and how many checkpoints stay.

    Example:
        >>> CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="eval/auc")
        CheckpointConfig(num_to_keep=2, checkpoint_score_attribute='eval/auc')
    """

    num_to_keep: int | None = None
    """Checkpoints kept per trial, the best ones by score; the latest stays besides. None keeps all."""

    checkpoint_score_attribute: str | None = None
    """Metric that ranks checkpoints (``a/b`` for nested ones); None ranks by age, newest best."""

    checkpoint_score_order: str = "max"
    """Whether a large ("max") or a small ("min") score is better."""

    checkpoint_frequency: int = 0
    """Class trainables only: save every this many iterations; 0 does not."""

    checkpoint_at_end: bool | None = None
    """Class trainables only: save when the trial ends. None means True for classes, False for functions."""

    keep_checkpoints_num: int | None = None
    """Older spelling of ``num_to_keep``; moved there at construction."""

    checkpoint_score_attr: str | None = None
    """Older spelling of ``checkpoint_score_attribute``; moved there at construction."""

    num_to_keep_overall: int | None = field(default=None, kw_only=True)
    """Best checkpoints kept over the whole experiment, and the latest of each trial that may still continue. None: no
    limit."""

    wait_for_commit: bool = field(default=False, kw_only=True)
    """Whether ``report(checkpoint=...)`` returns only when the checkpoint is committed in the experiment's storage;
    otherwise training continues meanwhile. With a syncer of your own: when it was copied, if ``sync_on_checkpoint``."""

    def _accept_legacy(self, given: Collection[str]) -> None:
        pairs = (
            ("keep_checkpoints_num", "num_to_keep"),
            ("checkpoint_score_attr", "checkpoint_score_attribute"),
        )
        for old, new in pairs:
            if old not in given:
                continue
            value = getattr(self, old)
            if value is not None:
                warn_legacy(f"CheckpointConfig({old}=...)", f"CheckpointConfig({new}=...)")
                if new in given and getattr(self, new) not in (None, value):
                    raise InvalidInputError(
                        f"CheckpointConfig got {new}={getattr(self, new)!r} and, in its older spelling, "
                        f"{old}={value!r}. Leave {old} out."
                    )
                self._set(new, value)
            self._set(old, None)

    def _validate(self) -> None:
        for name in ("num_to_keep", "num_to_keep_overall"):
            value = getattr(self, name)
            if value is not None:
                hint = "Must be None or an integer >= 1: None keeps all."
                self._set(name, whole_number(f"CheckpointConfig.{name}", value, 1, "a number of checkpoints", hint))
        attribute = self.checkpoint_score_attribute
        if attribute is not None and (not isinstance(attribute, str) or not attribute):
            raise refuse("CheckpointConfig.checkpoint_score_attribute", attribute, "None or a metric's name")
        one_of("CheckpointConfig.checkpoint_score_order", self.checkpoint_score_order, ("max", "min"))
        frequency = whole_number(
            "CheckpointConfig.checkpoint_frequency",
            self.checkpoint_frequency,
            0,
            hint="0 turns it off.",
        )
        self._set("checkpoint_frequency", frequency)
        true_or_false("CheckpointConfig.wait_for_commit", self.wait_for_commit)
        if self.checkpoint_at_end is not None:
            true_or_false("CheckpointConfig.checkpoint_at_end", self.checkpoint_at_end)


IGNORED_FIELDS = frozenset({"sync_artifacts_on_checkpoint"})
"""Fields of `SyncConfig` that other tools have, and that are checked and have no effect here."""


@documented
@dataclass(repr=False)
class SyncConfig(ConfigBase):
    """How results and checkpoints travel between nodes and storage, in the words of every generation.

    Example:
        >>> SyncConfig(syncer=None)  # all nodes see the same file system
        SyncConfig(syncer=None)
    """

    upload_dir: str | None = None
    """Older spelling of ``RunConfig(storage_path=...)`` for a URI such as ``s3://bucket/prefix``; or, with a syncer of
    your own, where that copies to, in an address of its own kind such as ``user@box:/data``."""

    syncer: Any = "auto"
    """What copies: "auto"; None (shared file system, nothing to copy); a command with ``{source}`` and
    ``{target}``; a function ``(source, target)``; an object with ``sync_up``, ``sync_down``, ``delete``. They copy to
    ``upload_dir``. Without one, on a cluster, a command or function copies checkpoints from nodes to the driver, and
    the source is ``user@ip:/path/``."""

    sync_on_checkpoint: bool = True
    """Whether a syncer copies after every checkpoint too; False copies every ``sync_period`` and at the end. Either
    way nothing that retention has made obsolete is deleted before the checkpoint that took its place was copied.
    On a cluster False brings only the newest checkpoint of a trial to the driver, every ``sync_period`` and at the
    end of each attempt; those between are deleted on their node."""

    sync_period: float = 300
    """Seconds between two periodic copies."""

    sync_timeout: float = 1800
    """Seconds after which a running copy is given up and tried again at the next period."""

    sync_artifacts: bool = False
    """Whether other files in the trial's working directory are copied to storage too."""

    sync_artifacts_on_checkpoint: bool = True
    """Accepted, without effect: artifacts are copied when they have changed."""

    node_sync_period: float | None = -1
    """Older spelling of ``sync_period``; moved there at construction. -1 and None say nothing."""

    cloud_sync_period: float | None = -1
    """Older spelling of ``sync_period``; moved there at construction. -1 and None say nothing."""

    sync_to_cloud: str | Callable[[str, str], Any] | None = None
    """Older: command or function that copies to ``upload_dir``; moved to ``syncer`` at construction."""

    sync_to_driver: bool | str | Callable[[str, str], Any] | None = None
    """Older: command or function that copies from nodes to the driver, moved to ``syncer`` at construction. True says
    nothing, False turns ``syncer`` off unless there is an ``upload_dir``."""

    unfenced_store: bool = field(default=False, kw_only=True)
    """Accept a store that cannot keep two drivers apart: nothing but your care then prevents that two of them write one
    experiment and damage it."""

    max_backlog_bytes: int | None = field(default=None, kw_only=True)
    """Bytes of checkpoints that may wait on the local disk until they are in storage, of all trials together. Trials
    that save wait only when more do, and each may always have one. None: a quarter of the disk's free space."""

    @property
    def has_own_syncer(self) -> bool:
        """Whether the user has given what copies."""
        return self.syncer is not None and self.syncer != "auto"

    def _accept_legacy(self, given: Collection[str]) -> None:
        # Only a syncer understands an address such as "box:/x", so storage_path, a path or a URI, is not its successor.
        if "upload_dir" in given and self.upload_dir is not None and not self._has_own_address():
            warn_legacy("SyncConfig(upload_dir=...)", "RunConfig(storage_path=...)")
        in_cloud = self.upload_dir is not None
        self._accept_periods(given, in_cloud)
        self._accept_copiers(given, in_cloud)

    def _has_own_address(self) -> bool:
        builtin = self.syncer in (None, "auto") and self.sync_to_cloud is None
        return not builtin and isinstance(self.upload_dir, str) and "://" not in self.upload_dir

    def _accept_periods(self, given: Collection[str], in_cloud: bool) -> None:
        periods = {}
        for name in ("cloud_sync_period", "node_sync_period"):
            value = getattr(self, name)
            if value is None or value == -1:
                continue
            warn_legacy(f"SyncConfig({name}=...)", "SyncConfig(sync_period=...)")
            periods[name] = real_number(f"SyncConfig.{name}", value, hint="-1 says nothing.")
            self._set(name, -1)
        if periods:
            # Of two periods the one counts that has something to copy.
            wanted = "cloud_sync_period" if in_cloud else "node_sync_period"
            old = wanted if wanted in periods else next(iter(periods))
            self._move(given, old, periods[old], "sync_period")

    def _accept_copiers(self, given: Collection[str], in_cloud: bool) -> None:
        cloud, driver = self.sync_to_cloud, self.sync_to_driver
        if cloud is not None:
            warn_legacy("SyncConfig(sync_to_cloud=...)", "SyncConfig(syncer=...)")
            check_copier("SyncConfig.sync_to_cloud", cloud)
        if driver is not None:
            warn_legacy("SyncConfig(sync_to_driver=...)", "SyncConfig(syncer=...)")
            if not isinstance(driver, bool):
                check_copier("SyncConfig.sync_to_driver", driver, ", True or False")
        self._set("sync_to_cloud", None)
        self._set("sync_to_driver", None)
        if cloud is not None and (in_cloud or driver is None or isinstance(driver, bool)):
            self._move(given, "sync_to_cloud", cloud, "syncer")
        elif in_cloud or driver is None or driver is True:
            return  # with an upload_dir nodes copy nothing to the driver; without, they do unless told otherwise
        else:
            self._move(given, "sync_to_driver", None if driver is False else driver, "syncer")

    def _move(self, given: Collection[str], old: str, value: Any, new: str) -> None:
        if new in given and getattr(self, new) != value:
            raise InvalidInputError(
                f"SyncConfig got {new}={getattr(self, new)!r} and, in an older spelling, {old}, which means "
                f"{new}={value!r}. Leave {old} out."
            )
        self._set(new, value)

    def _validate(self) -> None:
        if not (self.syncer is None or self.syncer == "auto" or is_syncer_object(self.syncer)):
            check_copier("SyncConfig.syncer", self.syncer, ', "auto", None or a Syncer object')
        self._check_upload_dir()
        for name in ("sync_on_checkpoint", "sync_artifacts", "sync_artifacts_on_checkpoint", "unfenced_store"):
            true_or_false(f"SyncConfig.{name}", getattr(self, name))
        self._set("sync_period", real_number("SyncConfig.sync_period", self.sync_period))
        self._set("sync_timeout", real_number("SyncConfig.sync_timeout", self.sync_timeout, positive=True))
        if self.max_backlog_bytes is not None:
            most = whole_number(
                "SyncConfig.max_backlog_bytes",
                self.max_backlog_bytes,
                0,
                "None or an integer >= 0",
                "For example 50 * 10**9; None is a quarter of the free space of the local disk.",
            )
            self._set("max_backlog_bytes", most)

    def _check_upload_dir(self) -> None:
        if self.upload_dir is None:
            return
        if not isinstance(self.upload_dir, str) or not self.upload_dir:
            raise refuse("SyncConfig.upload_dir", self.upload_dir, "a URI such as 's3://bucket/prefix'")
        refuse_secrets("SyncConfig.upload_dir", self.upload_dir)
        if self.syncer == "auto":
            refuse_missing_slashes("SyncConfig.upload_dir", self.upload_dir)
            refuse_fragment("SyncConfig.upload_dir", self.upload_dir)
        if self.syncer is None:
            raise InvalidInputError(
                f"SyncConfig got upload_dir={self.upload_dir!r} and syncer=None, which copies nothing: nothing would "
                "ever arrive there. Leave syncer out, or leave upload_dir out and name a directory that all nodes see "
                "with RunConfig(storage_path=...)."
            )
        # Somebody's own syncer may use addresses of its own kind; the built-in one needs a scheme.
        if self.syncer == "auto" and "://" not in self.upload_dir:
            raise refuse(
                "SyncConfig.upload_dir",
                self.upload_dir,
                "a URI such as 's3://bucket/prefix'",
                "For a directory use RunConfig(storage_path=...).",
            )


def is_syncer_object(syncer: Any) -> bool:
    """Tell whether this is an object, not a class, with the three methods that every syncer has."""
    methods = ("sync_up", "sync_down", "delete")
    return not isinstance(syncer, type) and all(callable(getattr(syncer, name, None)) for name in methods)


def check_copier(what: str, copier: Any, others: str = "") -> None:
    """Refuse what is neither a function of two arguments nor a command template with both of its places."""
    if isinstance(copier, str):
        for place in ("{source}", "{target}"):
            if place not in copier:
                raise InvalidInputError(
                    f"Sync template missing '{place}'. {what} is {copier!r}; a command names both "
                    "{source} and {target}, for example 'rsync -a {source} {target}'."
                )
        return
    expected = f"a command with {{source}} and {{target}}, a function (source, target){others}"
    if isinstance(copier, type) or not callable(copier):
        hint = f"Write {copier.__name__}(...) instead of {copier.__name__}." if is_syncer_class(copier) else ""
        raise refuse(what, copier, expected, hint)
    try:
        inspect.signature(copier).bind("source", "target")
    except TypeError as error:
        raise refuse(what, copier, expected, f"It cannot be called with two arguments: {error}.") from None
    except ValueError:
        return  # some functions written in C do not say what they take


def is_syncer_class(value: Any) -> bool:
    """Tell whether this is a class whose instances are syncers."""
    return isinstance(value, type) and all(hasattr(value, name) for name in ("sync_up", "sync_down", "delete"))
