"""Drives a ``Trainable`` subclass in a worker: set up, restore, train, save, reset.

Owns the instance, and the order of saving, reporting and cleaning up (appendix B of the contract is the order that
callbacks see). Must never fill keys that the driver fills.
"""

from __future__ import annotations

import inspect
import logging
from typing import Any

from holdfast.core.observations import SealedStage
from holdfast.errors import InvalidTypeError, TuneError
from holdfast.trainable.auto_keys import USER_WINS, reduced
from holdfast.trainable.class_checkpoint import Counters
from holdfast.trainable.metrics import plain_metrics
from holdfast.trainable.session import Session, start_of
from holdfast.trainable.trainable import Trainable
from holdfast.trainable.worker_messages import Run

log = logging.getLogger("holdfast")


class RestoreFailed(Exception):
    """The user's ``load_checkpoint`` failed; the cause is what it raised."""


class ResetRefused(TuneError):
    """An instance cannot become another trial; no retry can help."""


class ClassRunner:
    """Runs attempts of one class; keeps its instance between them if the experiment wants that."""

    def __init__(self, trainable: type[Trainable]) -> None:
        self._class = trainable
        self._instance: Trainable | None = None

    def run(self, config: dict[str, Any], session: Session) -> bool:
        """Run one attempt; True if its trial is done, False if the driver has stopped or paused it.

        Raises:
            RestoreFailed: If the checkpoint cannot be loaded.
            ResetRefused: If the kept instance cannot be used for this trial.
        """
        try:
            instance = self._prepare(config, session)
            done = _Attempt(instance, session).run()
            if done or session.stopped == "stop":
                _export(instance)
        except BaseException:
            self.close()
            raise
        if not session.setup.reuse_instances:
            self.close()
        return done

    def close(self) -> None:
        """End the instance's life; what its ``cleanup`` raises is logged, for the trial has already ended."""
        instance, self._instance = self._instance, None
        if instance is None:
            return
        try:
            instance.stop()
        except BaseException:
            log.exception("cleanup() of %s failed; the trial had already ended", type(instance).__name__)

    def _prepare(self, config: dict[str, Any], session: Session) -> Trainable:
        if self._instance is None:
            self._instance = self._class._made(config, session.trial_place)
        elif not self._instance.reset(config):
            raise ResetRefused(
                f"{self._class.__name__} cannot be used for another trial: TuneConfig(reuse_actors=True) requires "
                "reset_config() to be implemented and return True. Implement it, or leave reuse_actors out."
            )
        instance = self._instance
        start = start_of(session)
        if start is not None:
            try:
                instance.restore(start)
            except Exception as error:
                raise RestoreFailed(f"{start} could not be loaded") from error
            _go_on_from(instance, session.run)
        return instance


def _go_on_from(instance: Trainable, run: Run) -> None:
    """The driver knows best how far the trial is: a clone of another trial counts as its own."""
    instance._set_counters(
        Counters(run.iteration, run.time_total, run.timesteps_total or None, run.episodes_total or None)
    )


def _export(instance: Trainable) -> None:
    """Export the model of a trial that has ended, if the experiment wants that."""
    formats = getattr(type(instance), "_holdfast_exports", ())
    if formats:
        instance.export_model(list(formats))


class _Attempt:
    """The loop of one attempt."""

    def __init__(self, instance: Trainable, session: Session) -> None:
        self._instance = instance
        self._session = session
        self._setup = session.setup
        self._warned: set[str] = set()

    def run(self) -> bool:
        while True:
            result = self._instance.train()
            if not isinstance(result, dict):
                raise InvalidTypeError(f"train() needs to return a dict, got {type(result).__name__}.")
            done = bool(result.get("done"))
            self._iterate(result, done)
            if done or self._session.stopped:
                return done

    def _iterate(self, result: dict[str, Any], done: bool) -> None:
        """Report one result and save if the driver asks for it."""
        session, at_end = self._session, self._setup.checkpoint_at_end
        sealed = self._save() if self._is_due(result, done) else None
        decision = session.exchange(self._metrics(result), _seconds(result), sealed)
        stopping = decision.go == "stop"
        if decision.save or (stopping and at_end and not done and sealed is None):
            session.saved(self._save_if_possible())
        elif decision.go == "go" and not done:
            session.listen()
            if session.save_soon:
                session.save_soon = False
                session.saved(self._save_if_possible())
                session.stopped = "stop"  # the driver ends: another step would be trained twice

    def _is_due(self, result: dict[str, Any], done: bool) -> bool:
        frequency = self._setup.checkpoint_frequency
        if result.get("should_checkpoint"):
            return True
        if frequency and result.get("training_iteration", 0) % frequency == 0:
            return True
        return done and self._setup.checkpoint_at_end and self._can_save()

    def _save(self) -> SealedStage:
        """Save straight into a stage, so that the commit is a rename; waits while the disk is full."""
        return self._session.with_space(self._save_once)

    def _save_once(self) -> SealedStage:
        session = self._session
        directory = session.new_directory()
        try:
            self._instance.save(directory)
            return session.seal(directory)
        except BaseException:
            session.discard(directory)
            raise

    def _save_if_possible(self) -> SealedStage | None:
        return self._save() if self._can_save() else None

    def _can_save(self) -> bool:
        """A class without ``save_checkpoint`` can be trained; it cannot be continued."""
        if type(self._instance).can_save():
            return True
        self._tell(
            f"{type(self._instance).__name__} does not implement save_checkpoint(), so its trials start from scratch "
            "whenever they are paused or interrupted."
        )
        return False

    def _metrics(self, result: dict[str, Any]) -> dict[str, Any]:
        given = self._instance._given_keys
        if given is None:  # the user's own ``train()``: whatever it returned was meant
            given = USER_WINS.intersection(result)
        metrics = plain_metrics(reduced(result, given), self._warned, refuse_tensors=False, tell=self._tell)
        if "done" in metrics:
            metrics["done"] = bool(result["done"])
        return metrics

    def _tell(self, text: str) -> None:
        """Hint at the method that has returned the metrics: it is over, so no frame is the user's."""
        kind = type(self._instance)
        method = inspect.unwrap(kind._train if kind.step is Trainable.step else kind.step)
        code = getattr(method, "__code__", None)
        if code is not None:
            self._session.hint(text, code.co_filename, code.co_firstlineno)


def _seconds(result: dict[str, Any]) -> float:
    try:
        return float(result.get("time_this_iter_s") or 0.0)
    except (TypeError, ValueError):
        return 0.0
