"""Which checkpoints to take and keep, and how copies travel: ``CheckpointConfig``, ``SyncConfig``.

Owns: the fields of every generation of these settings and their validation.
Must never: copy, delete or score anything; retention and storage read these values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from holdfast.config.settings import (
    Settings,
    one_of,
    real_number,
    refuse,
    true_or_false,
    warn_legacy,
    whole_number,
)
from holdfast.errors import InvalidInputError


@dataclass(repr=False)
class CheckpointConfig(Settings):
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
    """Best checkpoints kept over the whole experiment, and the latest of each trial that may still go on. None: no
    limit."""

    @property
    def score_candidates(self) -> tuple[tuple[str, str], ...]:
        """Metrics that may be meant by the score attribute, as (name, order), to be tried in turn.

        The attribute is a literal metric name first, because names such as ``max-auc`` are real. Only if no
        trial ever reports it does a prefix ``min-`` or ``max-`` mean the order for the rest of the name.
        """
        attribute = self.checkpoint_score_attribute
        if attribute is None:
            return ()
        candidates = [(attribute, self.checkpoint_score_order)]
        order, dash, rest = attribute.partition("-")
        if dash and rest and order in ("min", "max"):
            candidates.append((rest, order))
        return tuple(candidates)

    def settled_for(self, *, function: bool) -> CheckpointConfig:
        """Return a copy with ``checkpoint_at_end`` decided for a function or for a class trainable.

        Raises:
            InvalidInputError: A function trainable was asked to save on the driver's schedule.
        """
        if function:
            for name in ("checkpoint_frequency", "checkpoint_at_end"):
                if getattr(self, name):
                    raise InvalidInputError(
                        f"CheckpointConfig.{name}={getattr(self, name)!r} works with class trainables only: "
                        f"a function decides itself when to save. Leave {name} out and call "
                        "`report(metrics, checkpoint=...)` in the function."
                    )
        at_end = self.checkpoint_at_end
        return dataclasses.replace(self, checkpoint_at_end=not function if at_end is None else at_end)

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
                expected = "None or an integer >= 1"
                hint = f"Must be {expected}: None keeps all."
                self._set(name, whole_number(f"CheckpointConfig.{name}", value, 1, expected, hint))
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
        if self.checkpoint_at_end is not None:
            true_or_false("CheckpointConfig.checkpoint_at_end", self.checkpoint_at_end)


@dataclass(repr=False)
class SyncConfig(Settings):
    """How results and checkpoints travel between nodes and storage, in the words of every generation.

    Example:
        >>> SyncConfig(syncer=None)  # all nodes see the same file system
        SyncConfig(syncer=None)
    """

    upload_dir: str | None = None
    """Older spelling of ``RunConfig(storage_path=...)`` for a URI such as ``s3://bucket/prefix``."""

    syncer: Any = "auto"
    """What copies: "auto"; None (shared file system, nothing to copy); a command with ``{source}`` and
    ``{target}``; a function ``(source, target)``; an object with ``sync_up``, ``sync_down``, ``delete``."""

    sync_on_checkpoint: bool = True
    """Whether a checkpoint counts only once its copy has arrived; False copies every ``sync_period``."""

    sync_period: float = 300
    """Seconds between two periodic copies."""

    sync_timeout: float = 1800
    """Seconds after which a running copy is given up and tried again at the next period."""

    sync_artifacts: bool = False
    """Whether other files in the trial's working directory are copied to storage too."""

    sync_artifacts_on_checkpoint: bool = True
    """Whether artifacts are copied with every checkpoint, besides periodically."""

    node_sync_period: float | None = -1
    """Older: seconds between copies from a node to the driver; -1 or None follows ``sync_period``."""

    cloud_sync_period: float | None = -1
    """Older: seconds between copies to the cloud; -1 or None follows ``sync_period``."""

    sync_to_cloud: str | Callable[[str, str], Any] | None = None
    """Older: command or function that copies to ``upload_dir``."""

    sync_to_driver: bool | str | Callable[[str, str], Any] | None = None
    """Older: True or None copies from nodes to the driver, False does not; or a command or function."""

    def _accept_legacy(self, given: Collection[str]) -> None:
        replacements = {
            "upload_dir": "RunConfig(storage_path=...)",
            "node_sync_period": "SyncConfig(sync_period=...)",
            "cloud_sync_period": "SyncConfig(sync_period=...)",
            "sync_to_cloud": "SyncConfig(syncer=...)",
            "sync_to_driver": "SyncConfig(syncer=...)",
        }
        for old, new in replacements.items():
            if old in given and getattr(self, old) not in (None, -1):
                warn_legacy(f"SyncConfig({old}=...)", new)

    def _validate(self) -> None:
        self._check_syncer()
        self._check_upload_dir()
        for name in ("sync_on_checkpoint", "sync_artifacts", "sync_artifacts_on_checkpoint"):
            true_or_false(f"SyncConfig.{name}", getattr(self, name))
        self._set("sync_period", real_number("SyncConfig.sync_period", self.sync_period))
        self._set("sync_timeout", real_number("SyncConfig.sync_timeout", self.sync_timeout, positive=True))
        for name in ("node_sync_period", "cloud_sync_period"):
            value = getattr(self, name)
            if value is not None and value != -1:
                self._set(name, real_number(f"SyncConfig.{name}", value, hint="-1 follows sync_period."))

    def _check_syncer(self) -> None:
        if not (self.syncer is None or self.syncer == "auto" or _is_syncer_object(self.syncer)):
            _check_copier("SyncConfig.syncer", self.syncer, ', "auto", None or a Syncer object')
        if self.sync_to_cloud is not None:
            _check_copier("SyncConfig.sync_to_cloud", self.sync_to_cloud, "")
        if self.sync_to_driver is not None and not isinstance(self.sync_to_driver, bool):
            _check_copier("SyncConfig.sync_to_driver", self.sync_to_driver, ", True or False")

    def _check_upload_dir(self) -> None:
        if self.upload_dir is None:
            return
        if not isinstance(self.upload_dir, str) or not self.upload_dir:
            raise refuse("SyncConfig.upload_dir", self.upload_dir, "a URI such as 's3://bucket/prefix'")
        # Somebody's own syncer may use addresses of its own kind; the built-in one needs a scheme.
        if self.syncer == "auto" and self.sync_to_cloud is None and "://" not in self.upload_dir:
            raise refuse(
                "SyncConfig.upload_dir",
                self.upload_dir,
                "a URI such as 's3://bucket/prefix'",
                "For a directory use RunConfig(storage_path=...).",
            )


def _is_syncer_object(syncer: Any) -> bool:
    methods = ("sync_up", "sync_down", "delete")
    return not isinstance(syncer, type) and all(callable(getattr(syncer, name, None)) for name in methods)


def _check_copier(what: str, copier: Any, others: str) -> None:
    """Refuse what is neither a function nor a command template with both of its places."""
    if isinstance(copier, str):
        for place in ("{source}", "{target}"):
            if place not in copier:
                raise InvalidInputError(
                    f"Sync template missing '{place}'. {what} is {copier!r}; a command names both "
                    "{source} and {target}, for example 'rsync -a {source} {target}'."
                )
    elif isinstance(copier, type) or not callable(copier):
        expected = f"a command with {{source}} and {{target}}, a function (source, target){others}"
        raise refuse(what, copier, expected)
