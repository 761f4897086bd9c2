"""What a trial needs before it can run: resources, names, a directory, and the message for its worker."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec

from holdfast.callbacks.trial_view import ExperimentInfo, TrialPreview, trial_dirname, trial_name
from holdfast.checkpoints.commit import sweep
from holdfast.controller.experiment import Experiment
from holdfast.controller.spec import PRIVATE, store_value
from holdfast.core.state import State
from holdfast.errors import InvalidInputError, StorageError
from holdfast.resources import PlacementGroupFactory, asks_by_config, flat_request, resources_of
from holdfast.search.base import Proposal
from holdfast.space.objects import is_marker, make_marker, restore_objects
from holdfast.space.tree import SCALARS
from holdfast.trainable.messages import Run

_encode = msgspec.msgpack.Encoder().encode


class TrialKit:
    """Equips the trials of one experiment."""

    def __init__(self, experiment: Experiment, info: ExperimentInfo) -> None:
        self._experiment = experiment
        self._info = info
        config = experiment.settings.tune_config
        self._name_creator = config.trial_name_creator
        self._dirname_creator = config.trial_dirname_creator
        self._dirnames: set[str] | None = None  # those of the user's choice that are taken
        # Most trainables ask for the same whatever the config: then it is worked out once, not per trial.
        self._same_for_all: dict[str, float] | None = None
        self._by_config = asks_by_config(experiment.trainable)
        if not self._by_config:
            self._same_for_all = _request(resources_of(experiment.trainable, {}))

    def request_of(self, config: dict[str, Any]) -> dict[str, float] | None:
        """What a trial with this config asks for; None is the default of one CPU."""
        return _request(self._factory(config)) if self._by_config else self._same_for_all

    def _factory(self, config: dict[str, Any]) -> PlacementGroupFactory:
        return resources_of(self._experiment.trainable, restore_objects(config, self._experiment.objects))

    def check_resources(self, engine: Any) -> None:
        """Refuse resources that nobody declared, before anything starts."""
        known = {"CPU", "GPU", "memory", *(getattr(engine, "resources", None) or {})}
        variant = self._experiment.variants().next(None)
        if variant is None or variant.raw:
            return
        unknown = sorted(set(self.request_of(variant.config) or {}) - known)
        if unknown:
            raise InvalidInputError(
                f"The trainable asks for {', '.join(map(repr, unknown))}, which nobody declared. Known resources: "
                f"{', '.join(sorted(known))}. Declare it: "
                f"RunConfig(engine=LocalEngine(resources={{{unknown[0]!r}: 1}}))."
            )

    def keep_values(self, proposal: Proposal) -> dict[str, Any]:
        """The proposal's config as plain data: values that are not go to files, and the config refers to them."""
        config = proposal.config
        if proposal.raw or not _can_be_journaled(config):
            config = self._kept(config, "")
        return config

    def _kept(self, node: Any, path: str) -> Any:
        if isinstance(node, dict) and not is_marker(node):
            return {key: self._kept(value, f"{path}/{key}" if path else str(key)) for key, value in node.items()}
        if isinstance(node, list):
            return [self._kept(value, f"{path}/{i}") for i, value in enumerate(node)]
        if is_marker(node) or (type(node) in SCALARS and _can_be_journaled(node)):
            return node
        self._experiment.objects.own_files = True
        return make_marker(store_value(self._experiment.root, node, path), node)

    def names(self, state: State, n: int, identity: str, tag: str, config: dict[str, Any]) -> tuple[str, str]:
        """The user's name and directory name for a new trial; empty where the rule applies."""
        if self._name_creator is None and self._dirname_creator is None:
            return "", ""
        preview = TrialPreview(self._info, n, identity, tag, config)
        name = str(self._name_creator(preview)) if self._name_creator else ""
        return name, self._free_dirname(state, n, self._dirname_creator(preview)) if self._dirname_creator else ""

    def _free_dirname(self, state: State, n: int, wanted: Any) -> str:
        """The user's directory name; two trials in one directory would take each other's checkpoints for their own."""
        if self._dirnames is None:
            self._dirnames = {trial.dirname for trial in state.trials}
        name = _checked_dirname(wanted)
        while name in self._dirnames:
            name = f"{name}_{n:04x}"
        self._dirnames.add(name)
        return name

    def directory(self, state: State, n: int) -> Path:
        """Where a trial's files are."""
        return self._experiment.root.path / trial_dirname(self._info, state.trials[n])

    def tidy(self, state: State, trials: set[int]) -> None:
        """Remove what attempts of these trials had begun to stage when they were killed, and never reported.

        Stages of attempts that the state does not know may belong to a driver that has taken over. If they do not, but
        the journal has lost those attempts, they go when attempts of these numbers are started.
        """
        for n in trials:
            trial = state.trials[n]
            keep = {record.sealed for record in trial.checkpoints if (n, record.index) in state.staged}
            state.session.untidy.discard(n)
            with contextlib.suppress(StorageError):  # what is left costs space and nothing else
                if sweep(self.directory(state, n), keep, up_to=trial.attempt).spared:
                    state.session.untidy.add(n)

    def run_message(self, state: State, n: int) -> Run:
        """What a worker needs to run the attempt that the state says the trial is in."""
        trial, info = state.trials[n], self._info
        if n in state.session.untidy:
            self.tidy(state, {n})
        checkpoint = None
        if trial.source is not None:
            donor, index = trial.source
            checkpoint = f"{trial_dirname(info, state.trials[donor])}/checkpoint_{index:06d}"
        bundles, strategy = [], "PACK"
        if trial.request is not None:
            factory = self._factory(trial.config)
            if flat_request(factory) == trial.request:  # a scheduler may have given it other resources, as one sum
                bundles, strategy = factory.bundles, factory.strategy
        return Run(
            n=n,
            attempt=trial.attempt,
            trial_id=trial.id,
            trial_name=trial_name(info, trial),
            trial_dir=trial_dirname(info, trial),
            tag=trial.shown_tag or trial.tag,
            config=trial.config,
            checkpoint=checkpoint,
            iteration=trial.iteration,
            time_total=trial.time_total,
            timesteps_total=trial.timesteps_total,
            episodes_total=trial.episodes_total,
            resources=trial.request or {"CPU": 1.0},
            bundles=bundles,
            strategy=strategy,
        )


def _can_be_journaled(value: Any) -> bool:
    """Whether plain data is plain enough: no integers beyond 64 bits, no text that UTF-8 does not know."""
    try:
        _encode(value)
    except (OverflowError, UnicodeEncodeError, TypeError):
        return False
    return True


def _request(factory: PlacementGroupFactory) -> dict[str, float] | None:
    request = flat_request(factory)
    return None if request == {"CPU": 1.0} else request


def _checked_dirname(name: Any) -> str:
    text = str(name)
    if "/" in text or text in ("", ".", "..", PRIVATE):
        raise InvalidInputError(f"Trial dirname must not contain '/' and must name a directory; got {text!r}.")
    return text
