"""What a trial needs before it can run: resources, names, a directory, and the messages for its worker."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from holdfast.checkpoints.commit import sweep
from holdfast.checkpoints.names import checkpoint_name
from holdfast.checkpoints.verified import mark_of
from holdfast.config import DEPRECATED, Environment, RayEngine
from holdfast.config.resources import PlacementGroupFactory, asks_by_config, flat_request, resources_of
from holdfast.controller import start_checkpoint
from holdfast.controller.backend_choice import address_of
from holdfast.controller.experiment import Experiment
from holdfast.controller.lost_reports import was_started
from holdfast.controller.spec import store_value
from holdfast.core.state import DriverMemory, State, Status
from holdfast.engines.base import RunsElsewhere
from holdfast.engines.cluster.joined import is_joined_here
from holdfast.errors import InvalidInputError, StorageError
from holdfast.search.base import Proposal
from holdfast.search.basic_variant import planner_of
from holdfast.space.exact import pack
from holdfast.space.naming import MAX_NAME_BYTES, why_no_dirname, why_no_text
from holdfast.space.naming import trial_dirname as rule_dirname
from holdfast.space.naming import trial_name as rule_name
from holdfast.space.nested import joined
from holdfast.space.objects import make_marker, restore_objects
from holdfast.space.variants import Variant
from holdfast.storage import trial_logs
from holdfast.storage.untrusted import not_regular
from holdfast.trainable.worker_messages import Run, Setup
from holdfast.views.trials import ExperimentInfo, TrialPreview, trial_dirname, trial_name

MAX_CHECKED = 1000
"""Configurations whose requests are compared with a cluster before anything starts; later ones, when they start."""

_ANY_DATE = "2000-01-01_00-00-00"
_encode = msgspec.msgpack.Encoder().encode


class TrialSetup:
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

    def keep_output_names(self) -> None:
        """Note which files take what trials print: readers look for them."""
        names, folder = self._experiment.settings.run_config.log_files, self._experiment.root.logs
        if names is not None:
            folder.mkdir(parents=True, exist_ok=True)
            trial_logs.keep_streams(str(folder), names)

    def worker_setup(self, state: State, environment: Environment) -> Setup:
        """What every worker is told once."""
        root, spec, settings = self._experiment.root, self._experiment.spec, self._experiment.settings
        run, tune = settings.run_config, settings.tune_config
        assert run.checkpoint_config is not None
        at_end, older = run.checkpoint_config.checkpoint_at_end, tune.chdir_to_trial_dir
        return Setup(
            worker=max(state.workers, default=0) + 1,  # numbers are never used twice: old results name their workers
            experiment=spec.name,
            root=str(root.path),
            trainable_file=str(root.trainable_file),
            objects_file=str(root.values_file),
            is_class=spec.is_class,
            checkpoint_frequency=run.checkpoint_config.checkpoint_frequency,
            checkpoint_at_end=spec.is_class if at_end is None else at_end,
            reuse_instances=bool(tune.reuse_actors),
            chdir=environment.chdir_to_trial_dir if older == DEPRECATED else bool(older),
            log_to_file=run.log_files,
            memory_limit_bytes=getattr(run.engine, "memory_limit_bytes", None) or 0,
            sys_path=tuple(sys.path),
            working_dir=os.getcwd(),
            address=address_of(self._experiment),
            epoch=state.epoch,
            max_output_bytes=run.max_output_bytes or 0,
            digests=self._experiment.files.digests,
            own_processes=tune.own_processes,
        )

    def request_of(self, config: dict[str, Any]) -> dict[str, float] | None:
        """What a trial with this config asks for; None is the default of one CPU."""
        return _request(self._factory(config)) if self._by_config else self._same_for_all

    def new_requests(self, state: State) -> dict[int, dict[str, float] | None]:
        """What trials that may run again ask for now, where that differs from what they asked for before."""
        may_run = (trial for trial in state.trials if trial.status != Status.TERMINATED)
        wanted = [(trial, self.request_of(trial.config)) for trial in may_run]
        return {trial.n: request for trial, request in wanted if request != trial.request}

    @cached_property
    def _start(self) -> str | None:
        """Where trials start that have no checkpoint."""
        return start_checkpoint.place(self._experiment.root)

    def _factory(self, config: dict[str, Any]) -> PlacementGroupFactory:
        return resources_of(self._experiment.trainable, restore_objects(config, self._experiment.objects))

    def check_names(self) -> None:
        """Refuse a trainable whose name is too long for its trials' directories, before anything starts."""
        if self._dirname_creator is None:
            name = self._info.trainable_name
            self._check_rule(rule_name(name, "00000_00000"), f"The name of the trainable, {name!r},")

    def check_directories(self, state: State) -> None:
        """Refuse to write through a link in the place of a trial's directory: it may lead anywhere.

        Raises:
            DamageError: There is one.
        """
        with os.scandir(self._experiment.root.path) as found:
            links = {entry.name for entry in found if entry.is_symlink()}
        if links and (bad := sorted(links.intersection(trial_dirname(self._info, each) for each in state.trials))):
            raise not_regular(self._experiment.root.path / bad[0])

    def check_cluster(self, engine: RunsElsewhere) -> None:
        """Refuse what no machine of a cluster can give, before any trial starts."""
        for variant in self._known_variants():
            if not variant.raw:
                factory = self._factory(variant.config)
                engine.check_request(flat_request(factory), factory.bundles, factory.strategy)

    def _known_variants(self) -> Iterator[Variant]:
        """The first configurations; one, if all ask for the same, a searcher suggests them, or some may have ended."""
        experiment = self._experiment
        is_planned = planner_of(experiment.settings.tune_config.search_alg) is not None
        all_count = self._by_config and is_planned and not was_started(experiment.root)
        plan = experiment.variants()
        variant = plan.next(None)
        for left in reversed(range(MAX_CHECKED if all_count else 1)):
            if variant is None:
                return
            yield variant
            variant = plan.next(variant.mark) if left else None

    def may_span_machines(self) -> bool:
        """Whether a trial may ask for several bundles, which a cluster may place on several machines."""
        return self._by_config or len(resources_of(self._experiment.trainable, {}).bundles) > 1

    def check_resources(self, engine: Any) -> None:
        """Refuse resources that nobody declared, before anything starts; a cluster tells later what it has."""
        if isinstance(engine, RayEngine | str) or (engine is None and is_joined_here()):
            return
        known = {"CPU", "GPU", "memory", *(getattr(engine, "resources", None) or {})}
        variant = self._experiment.variants().next(None)
        if variant is None or variant.raw:
            return
        unknown = sorted(set(self.request_of(variant.config) or {}) - known)
        if unknown:
            close = get_close_matches(unknown[0].lower(), ("cpu", "gpu", "memory"), 1)
            meant = f"Did you mean {close[0]!r}? If not, declare it: " if close else "Declare it: "
            raise InvalidInputError(
                f"The trainable asks for {', '.join(map(repr, unknown))}, which nobody declared. Known resources: "
                f"{', '.join(sorted(known))}. {meant}"
                f"RunConfig(engine=LocalEngine(resources={{{unknown[0]!r}: 1}}))."
            )

    def keep_values(self, proposal: Proposal) -> dict[str, Any]:
        """The proposal's config as plain data: values that are not go to files, and the config refers to them."""
        config = proposal.config
        # What a plan drew is plain already. What a searcher suggested may be anything, and the encoder would take many
        # a value for a plain one: an enum for its value, a tuple for a list.
        if proposal.raw or proposal.mark is None or not _can_be_journaled(config):
            config = pack(config, self._kept)
        return config

    def _kept(self, value: Any, path: tuple[Any, ...]) -> dict[str, str]:
        self._experiment.objects.own_files = True
        return make_marker(store_value(self._experiment.root, value, joined(path)), value)

    def names(self, state: State, n: int, identity: str, tag: str, config: dict[str, Any]) -> tuple[str, str]:
        """The user's name and directory name for a new trial; empty where the rule applies."""
        if self._name_creator is None and self._dirname_creator is None:
            return "", ""
        preview = TrialPreview(self._info, n, identity, tag, config)
        name = str(self._name_creator(preview)) if self._name_creator else ""
        if why := why_no_text(name):
            raise _bad_creator("name", f"trial_name_creator returned {name!r} for trial {identity}: {why}.")
        if self._dirname_creator is not None:
            return name, self._free_dirname(state, n, self._dirname_creator(preview))
        if name:
            self._check_rule(name, f"The name {name!r} that trial_name_creator returned for trial {identity}")
        return name, ""

    def _check_rule(self, name: str, what: str) -> None:
        """Refuse a name from which the rule would make a directory that no file system takes."""
        dirname = rule_dirname(name, "", _ANY_DATE)
        if why := why_no_dirname(dirname, new=True):
            raise InvalidInputError(
                f"{what} cannot be part of the name of a trial's directory ({dirname!r}): {why}. Choose a shorter "
                "name, or name the directories with TuneConfig(trial_dirname_creator=...)."
            )

    def _free_dirname(self, state: State, n: int, wanted: Any) -> str:
        """The user's directory name; two trials in one directory would take each other's checkpoints for their own."""
        if self._dirnames is None:
            self._dirnames = {trial.dirname for trial in state.trials}
        name = _checked_dirname(wanted)
        while name in self._dirnames:
            name = _checked_dirname(f"{name}_{n:04x}")
        self._dirnames.add(name)
        return name

    def directory(self, state: State, n: int) -> Path:
        """Where a trial's files are."""
        return self._experiment.root.path / trial_dirname(self._info, state.trials[n])

    def tidy(self, state: State, memory: DriverMemory, trials: set[int]) -> None:
        """Remove what attempts of these trials had begun to stage when they were killed, and never reported.

        Stages of attempts that the state does not know may belong to a driver that has taken over. If they do not, but
        the journal has lost those attempts, they go when attempts of these numbers are started.
        """
        for n in trials:
            trial = state.trials[n]
            keep = {record.sealed for record in trial.checkpoints if (n, record.index) in state.staged}
            memory.untidy.discard(n)
            with contextlib.suppress(StorageError):  # what is left costs space and nothing else
                if sweep(self.directory(state, n), keep, up_to=trial.attempt).spared:
                    memory.untidy.add(n)

    def run_message(self, state: State, memory: DriverMemory, n: int) -> Run:
        """What a worker needs to run the attempt that the state says the trial is in."""
        trial, info = state.trials[n], self._info
        if n in memory.untidy:
            self.tidy(state, memory, {n})
        checkpoint, mark, digest = None, "", ""
        if trial.source is not None:
            donor, index = state.trials[trial.source[0]], trial.source[1]
            checkpoint = f"{trial_dirname(info, donor)}/{checkpoint_name(index)}"
            mark = mark_of(self._experiment.root.path / checkpoint)
            record = donor.find(index)
            digest = "" if record is None else record.digest
        else:
            checkpoint = self._start
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
            checkpoint_mark=mark,
            checkpoint_digest=digest,
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
    if name is None:
        raise _bad_creator("dirname", "trial_dirname_creator returned None, not a name: does it lack a `return`?")
    text = str(name)
    if why := why_no_dirname(text, new=True):
        raise _bad_creator(
            "dirname",
            f"Trial dirname must not contain '/' and must name a directory of at most {MAX_NAME_BYTES} bytes; "
            f"trial_dirname_creator returned {text!r}: {why}.",
        )
    return text


def _bad_creator(what: str, text: str) -> InvalidInputError:
    """The error for a creator of names, which is stored: a plain restore would call the same one again."""
    error = InvalidInputError(text)
    error.change = f"tune_config=TuneConfig(trial_{what}_creator=...)"
    return error
