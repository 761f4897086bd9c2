"""The class API: ``Trainable``, in today's and in the older spelling.

Owns the life of one instance: counters, saving, restoring, resetting. Works without any experiment. Must never talk
to the driver: ``class_runner`` does.
"""

from __future__ import annotations

import copy
import logging
import os
import pickle
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Self

from holdfast.checkpoints import scratch
from holdfast.checkpoints.tree import remove_quietly, remove_tree
from holdfast.errors import InvalidInputError, TuneError
from holdfast.trainable import class_checkpoint
from holdfast.trainable.auto_keys import USER_WINS, debug_keys
from holdfast.trainable.class_checkpoint import Counters
from holdfast.trainable.context import request_of
from holdfast.trainable.session import Session, current

if TYPE_CHECKING:
    from holdfast.checkpoints.checkpoint import Checkpoint
    from holdfast.config.resources import PlacementGroupFactory

log = logging.getLogger("holdfast")

SLOW_SETUP_S = 10.0
EXPORT_FORMATS = ("checkpoint", "model", "onnx", "h5")

_OLD_NAMES = {
    "_setup": "setup",
    "_train": "step",
    "_save": "save_checkpoint",
    "_restore": "load_checkpoint",
    "_stop": "cleanup",
    "_log_result": "log_result",
}
_hinted = False


class SavedCheckpoint(str):
    """The path that ``save()`` returns, which also knows what was saved.

    Attributes:
        metrics: The last result before the checkpoint.
    """

    metrics: dict[str, Any]

    @property
    def checkpoint(self) -> Checkpoint:
        """The same as a ``Checkpoint``."""
        from holdfast.checkpoints.checkpoint import Checkpoint

        return Checkpoint.from_directory(class_checkpoint.directory_of(self))


class Trainable:
    """Base of class trainables: override ``setup``, ``step``, ``save_checkpoint`` and ``load_checkpoint``.

    An instance can also be used without any experiment, for example to look into a checkpoint.

    Args:
        config: The trial's configuration; ``setup`` gets a deep copy.
        logger_creator: Older spelling: called with the config, returns a logger with ``on_result`` and ``close``.
        storage: Ignored; accepted because engines of other libraries pass it.

    Example:
        >>> class Count(Trainable):
        ...     def setup(self, config):
        ...         self.x = config["start"]
        ...     def step(self):
        ...         self.x += 1
        ...         return {"x": self.x}
        >>> Count({"start": 1}).train()["x"]
        2
    """

    _holdfast_trainable = True

    _iteration: int
    _time_total: float
    _timesteps_total: int | float | None
    _episodes_total: int | float | None
    _time_since_restore: float
    _iterations_since_restore: int
    _timesteps_since_restore: int | float
    _last_result: dict[str, Any]
    _given_keys: frozenset[str] | None  # of USER_WINS, those in the last result of ``step``

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        old = [name for name in _OLD_NAMES if name in vars(cls)]
        if old:
            warnings.warn(
                f"{cls.__name__} overrides {', '.join(f'{name}() (now: {_OLD_NAMES[name]}())' for name in old)}. The "
                "older names keep working.",
                DeprecationWarning,
                stacklevel=2,
            )

    def __init__(
        self,
        config: dict[str, Any] | None = None,
        logger_creator: Callable[[dict[str, Any]], Any] | None = None,
        storage: Any = None,
    ) -> None:
        self.config: dict[str, Any] = config or {}
        self._session = _own_session()
        self._made_logdir: str | None = None
        self._result_logger = logger_creator(self.config) if logger_creator is not None else None
        self._clear_counters()
        started = time.monotonic()
        self.setup(copy.deepcopy(self.config))
        _hint_slow_setup(time.monotonic() - started)

    @classmethod
    def _made(cls, config: dict[str, Any], place: str) -> Self:
        """An instance for a trial whose directory is stored at ``place``."""
        return cls(config=config)

    # --- to be overridden ---------------------------------------------------------------------------------------------

    def setup(self, config: dict[str, Any], **kwargs: Any) -> None:
        """Prepare the training. ``kwargs`` come from ``tune.with_parameters``."""
        self._setup(config, **kwargs)

    def step(self) -> dict[str, Any]:
        """Train for one iteration and return its metrics."""
        return self._train()

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        """Write the training state into this directory, or return it as a dict."""
        return self._save(checkpoint_dir)

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Load what ``save_checkpoint`` saved: the dict it returned, else the path of the directory."""
        self._restore(checkpoint)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Become another trial without being built anew; return True if that is supported."""
        return False

    def cleanup(self) -> None:
        """Release what ``setup`` took."""
        self._stop()

    def log_result(self, result: dict[str, Any]) -> None:
        """Called with every full result."""
        self._log_result(result)

    def _export_model(self, export_formats: list[str], export_dir: str) -> dict[str, str]:
        """Export in these formats; return where each one is."""
        return {}

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory | None:
        """What a trial with this config needs; None for one CPU."""
        return None

    @classmethod
    def resource_help(cls, config: dict[str, Any]) -> str:
        """What to tell a user whose cluster lacks resources."""
        return ""

    # --- the older names ----------------------------------------------------------------------------------------------

    def _setup(self, config: dict[str, Any]) -> None:
        """Older name of ``setup``."""

    def _train(self) -> dict[str, Any]:
        raise self._missing("step", "metrics of one iteration, as a dict")

    def _save(self, checkpoint_dir: str) -> Any:
        raise self._missing("save_checkpoint", "a dict, or the directory it was given")

    def _restore(self, checkpoint: Any) -> None:
        raise self._missing("load_checkpoint", "nothing; it gets what save_checkpoint() saved")

    def _stop(self) -> None:
        """Older name of ``cleanup``."""

    def _log_result(self, result: dict[str, Any]) -> None:
        if self._result_logger is not None:
            self._result_logger.on_result(result)

    def _missing(self, name: str, returns: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} does not implement {name}() (returns {returns}).")

    # --- training -----------------------------------------------------------------------------------------------------

    def train(self) -> dict[str, Any]:
        """Run one iteration and return its metrics with all the automatic keys."""
        started = time.monotonic()
        returned = self.step()
        if not isinstance(returned, dict):
            raise AssertionError(f"step() needs to return a dict. {type(self).__name__} returned {returned!r}.")
        elapsed = time.monotonic() - started
        result = returned.copy()
        self._given_keys = USER_WINS.intersection(result)
        self._iteration += 1
        self._iterations_since_restore += 1
        if result.get("time_this_iter_s") is None:
            result["time_this_iter_s"] = elapsed
        self._time_total += result["time_this_iter_s"]
        self._time_since_restore += result["time_this_iter_s"]
        self._count_progress(result)
        result.setdefault("done", False)
        result.setdefault("training_iteration", self._iteration)
        result["time_total_s"] = self._time_total
        result["time_since_restore"] = self._time_since_restore
        result["iterations_since_restore"] = self._iterations_since_restore
        result.update(debug_keys(self.trial_id, self.config, result.get("timestamp")))
        self._last_result = result
        self.log_result(result)
        return result

    def train_buffered(self, buffer_time_s: float, max_buffer_length: int = 1000) -> list[dict[str, Any]]:
        """Run iterations until time is over, one is done, wants a checkpoint or repeats, or there are this many."""
        results: list[dict[str, Any]] = []
        end = time.monotonic() + buffer_time_s
        while not results or (time.monotonic() < end and len(results) < max_buffer_length):
            result = self.train()
            results.append(result)
            if any(result.get(key) for key in ("done", "should_checkpoint", "__duplicate__")):
                break
        return results

    def _count_progress(self, result: dict[str, Any]) -> None:
        """Totals exist only if the user reports increments; a total of the user's own wins."""
        if result.get("timesteps_this_iter") is not None:
            self._timesteps_total = (self._timesteps_total or 0) + result["timesteps_this_iter"]
            self._timesteps_since_restore += result["timesteps_this_iter"]
        if result.get("episodes_this_iter") is not None:
            self._episodes_total = (self._episodes_total or 0) + result["episodes_this_iter"]
        if self._timesteps_total is not None:
            result.setdefault("timesteps_total", self._timesteps_total)
        if self._episodes_total is not None:
            result.setdefault("episodes_total", self._episodes_total)
        if self._timesteps_since_restore > 0:
            result["timesteps_since_restore"] = self._timesteps_since_restore

    def _clear_counters(self) -> None:
        self._set_counters(Counters())
        self._last_result = {}
        self._given_keys = None

    def _set_counters(self, counters: Counters) -> None:
        self._iteration = counters.iteration
        self._time_total = counters.time_total
        self._timesteps_total = counters.timesteps_total
        self._episodes_total = counters.episodes_total
        self._time_since_restore = 0.0
        self._iterations_since_restore = 0
        self._timesteps_since_restore = 0

    def _counters(self) -> Counters:
        return Counters(
            self._iteration,
            float(self._time_total),
            _plain_total(self._timesteps_total),
            _plain_total(self._episodes_total),
        )

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def save(self, checkpoint_dir: str | None = None) -> SavedCheckpoint:
        """Save the training state.

        Args:
            checkpoint_dir: Where to; made if missing. By default a new directory below ``logdir``.

        Returns:
            The path to pass to ``restore``, as a str that also has ``checkpoint`` and ``metrics``.

        Durability:
            The files are written, not synced. In an experiment the driver commits them afterwards.

        Raises:
            ValueError: If ``save_checkpoint`` returned something else than a dict, the directory, or None.
        """
        directory = checkpoint_dir or tempfile.mkdtemp(prefix="checkpoint_tmp_", dir=self.logdir)
        os.makedirs(directory, exist_ok=True)
        old = self._overrides_old("save_checkpoint", "_save")
        try:
            returned = self.save_checkpoint(directory)
            path = class_checkpoint.write(directory, returned, self._counters(), may_return_path=old)
        except BaseException:
            if checkpoint_dir is None:
                remove_quietly([directory])
            raise
        saved = SavedCheckpoint(path)
        saved.metrics = dict(self._last_result)
        return saved

    def restore(self, checkpoint_path: Any) -> None:
        """Load a state that ``save`` saved; counters continue from there.

        Args:
            checkpoint_path: A path, a ``Checkpoint``, or anything that has one as ``.checkpoint``.

        Raises:
            ValueError: If it does not exist any more.
        """
        if isinstance(checkpoint_path, (str, PurePath)):
            self._restore_from(os.fspath(checkpoint_path))
            return
        checkpoint = getattr(checkpoint_path, "checkpoint", checkpoint_path)
        if not hasattr(checkpoint, "as_directory"):
            raise InvalidInputError(
                f"restore() needs a path, a Checkpoint or a result that has one, got {checkpoint_path!r}."
            )
        if checkpoint.is_local:
            class_checkpoint.directory_of(checkpoint.path)  # its message is the one that users know
        with checkpoint.as_directory() as path:
            self._restore_from(os.fspath(path))

    def _restore_from(self, path: str) -> None:
        loaded = class_checkpoint.read(path)
        if isinstance(loaded.state, dict) and self._overrides_old("load_checkpoint", "_restore"):
            loaded.state["tune_checkpoint_path"] = path
        self.load_checkpoint(loaded.state)
        self._set_counters(loaded.counters)
        log.info("Restored from %s at iteration %d.", path, self._iteration)

    def save_to_object(self) -> bytes:
        """The training state as bytes."""
        with scratch.directory("trainable") as directory:
            path = self.save(directory)
            files = {}
            for parent, _, names in os.walk(directory):
                for name in names:
                    place = os.path.join(parent, name)
                    with open(place, "rb") as file:
                        files[os.path.relpath(place, directory)] = file.read()
            return pickle.dumps((os.path.relpath(path, directory), files))

    def restore_from_object(self, obj: bytes) -> None:
        """Load what ``save_to_object`` returned."""
        path, files = pickle.loads(obj)
        with scratch.directory("trainable") as directory:
            for place, data in ((os.path.join(directory, name), data) for name, data in files.items()):
                os.makedirs(os.path.dirname(place), exist_ok=True)
                with open(place, "wb") as file:
                    file.write(data)
            self.restore(os.path.normpath(os.path.join(directory, path)))

    def delete_checkpoint(self, checkpoint_path: str) -> None:
        """Delete a checkpoint that ``save`` wrote; a missing one is warned about."""
        try:
            directory = class_checkpoint.directory_of(os.fspath(checkpoint_path))
        except InvalidInputError:
            log.warning("The checkpoint %s to be deleted does not exist.", checkpoint_path)
            return
        if not class_checkpoint.is_checkpoint(directory):
            raise InvalidInputError(f"{directory} was not written by Trainable.save(), so it is not deleted.")
        remove_tree(directory)

    @classmethod
    def _overrides_old(cls, name: str, old: str) -> bool:
        """Whether the user wrote the older method and not the newer one."""
        return getattr(cls, name) is getattr(Trainable, name) and getattr(cls, old) is not getattr(Trainable, old)

    @classmethod
    def can_save(cls) -> bool:
        """Whether this class implements ``save_checkpoint``, under either name."""
        return cls.save_checkpoint is not Trainable.save_checkpoint or cls._save is not Trainable._save

    # --- the rest of an instance's life -------------------------------------------------------------------------------

    def reset(
        self,
        new_config: dict[str, Any],
        logger_creator: Callable[[dict[str, Any]], Any] | None = None,
        storage: Any = None,
    ) -> bool:
        """Become another trial; False if ``reset_config`` does not support it."""
        self._session = _own_session()
        if not self.reset_config(new_config):
            return False
        self.config = new_config
        self._close_logger()
        if logger_creator is not None:
            self._result_logger = logger_creator(new_config)
        self._clear_counters()
        return True

    def stop(self) -> None:
        """End the instance's life."""
        self._close_logger()
        self.cleanup()

    def export_model(self, export_formats: str | list[str], export_dir: str | None = None) -> dict[str, str]:
        """Export the model; returns a path for each format.

        Raises:
            TuneError: If a format is not one of checkpoint, model, onnx and h5.
        """
        formats = [export_formats] if isinstance(export_formats, str) else list(export_formats)
        formats = [name.strip().lower() for name in formats]
        for name in formats:
            if name not in EXPORT_FORMATS:
                raise TuneError(
                    f"Unsupported import/export format {name!r}: expected one of {', '.join(EXPORT_FORMATS)}."
                )
        return self._export_model(formats, export_dir or self.logdir)

    def get_state(self) -> dict[str, Any]:
        """How far the training is."""
        return {
            "iteration": self._iteration,
            "timesteps_total": self._timesteps_total,
            "time_total": self._time_total,
            "episodes_total": self._episodes_total,
            "last_result": self._last_result,
        }

    def get_auto_filled_metrics(self) -> dict[str, Any]:
        """The keys that exist before the first iteration."""
        return debug_keys(self.trial_id, self.config)

    def get_config(self) -> dict[str, Any]:
        """The trial's configuration."""
        return self.config

    @property
    def iteration(self) -> int:
        """Iterations done, those before a restore included."""
        return self._iteration

    @property
    def training_iteration(self) -> int:
        """The same as ``iteration``."""
        return self._iteration

    @property
    def trial_id(self) -> str:
        """The trial's id; "default" outside of an experiment."""
        return self._session.run.trial_id if self._session else "default"

    @property
    def trial_name(self) -> str:
        """The trial's name; "default" outside of an experiment."""
        return self._session.run.trial_name if self._session else "default"

    @property
    def trial_resources(self) -> PlacementGroupFactory:
        """What the trial was given; one CPU outside of an experiment."""
        from holdfast.config.resources import PlacementGroupFactory

        return request_of(self._session.run) if self._session else PlacementGroupFactory([{"CPU": 1}])

    @property
    def logdir(self) -> str:
        """The trial's directory; a temporary one outside of an experiment."""
        if self._session is not None:
            return self._session.trial_dir
        if self._made_logdir is None:
            given = getattr(self._result_logger, "logdir", None)
            self._made_logdir = str(given) if given else tempfile.mkdtemp(prefix="holdfast_trainable_")
        return self._made_logdir

    def _close_logger(self) -> None:
        logger, self._result_logger = self._result_logger, None
        if logger is not None and hasattr(logger, "close"):
            logger.close()


def _own_session() -> Session | None:
    """The session of the attempt that this instance is; None for one that the user has made."""
    session = current()
    return session if session is not None and session.setup.is_class else None


def _plain_total(total: Any) -> int | float | None:
    if total is None:
        return None
    return int(total) if total == int(total) else float(total)


def _hint_slow_setup(seconds: float) -> None:
    global _hinted
    if seconds > SLOW_SETUP_S and not _hinted:
        _hinted = True
        log.warning(
            "setup() took %.1f s. If trials are short, implement reset_config() and set "
            "TuneConfig(reuse_actors=True), so that instances are used again.",
            seconds,
        )
