"""One driver's life: claim the experiment, open it, run the loop, leave in order.

Composes the parts; decides nothing. Whatever happens in between, the claim is released and every process that was
started is gone when ``run`` returns or raises.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from functools import partial

import msgspec

from holdfast.callbacks.callback import callbacks_from_paths, default_callbacks
from holdfast.config import DEPRECATED, Environment, LocalEngine, ResumeConfig
from holdfast.config.registry import name_as_written
from holdfast.controller import imported
from holdfast.controller.algorithms import Algorithms, copied
from holdfast.controller.backend_choice import address_of, backend_of
from holdfast.controller.backends import JobContext, LocalBackend, close_journal
from holdfast.controller.clock import RealClock
from holdfast.controller.experiment import Experiment, check_settings, check_unchanged, keep_replacements
from holdfast.controller.experiment_info import make_info
from holdfast.controller.feasibility import ResourceWatch
from holdfast.controller.history_reader import Past
from holdfast.controller.loop import Controller, Edges, JournalWriter
from holdfast.controller.notify import Notifier, make_notifier
from holdfast.controller.own_objects import OwnObjects
from holdfast.controller.proposing import Describer, VariantProposer, complete_rebuilt
from holdfast.controller.replay import StopRuleMemory, open_with_memory, stored_memories
from holdfast.controller.searching import LearningProposer
from holdfast.controller.signals import watch_signals
from holdfast.controller.snapshots import Snapshotter
from holdfast.controller.spec import sole_use
from holdfast.controller.spool_reader import hear_spools
from holdfast.controller.stop_rule import UserStopRule
from holdfast.controller.trial_setup import TrialSetup
from holdfast.controller.watches import Watches
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.metric_advice import CONFIG
from holdfast.core.policies import Policies, Rules, ignore
from holdfast.core.state import State
from holdfast.display.display import Display, ExperimentFacts, make_display
from holdfast.display.trial_output import TrialOutput
from holdfast.display.words import restore_call
from holdfast.engines.base import Engine
from holdfast.engines.local_engine import LocalProcessEngine
from holdfast.journal.claims import Claim
from holdfast.journal.epoch import is_fenced, release
from holdfast.journal.snapshot import SnapshotStore
from holdfast.schedulers import FIFOScheduler
from holdfast.search import BasicVariantGenerator
from holdfast.space.naming import trial_id
from holdfast.stopper import resolve_stopper
from holdfast.storage import trial_logs
from holdfast.storage.mounts import disk_of, free_bytes
from holdfast.trainable.spool_writer import SpoolFolder
from holdfast.trainable.worker_messages import Setup
from holdfast.views.results import ResultBuilder
from holdfast.views.trials import ExperimentInfo, shown_root

logger = logging.getLogger("holdfast")

LAST_JOBS_S = 5.0  # for jobs that are under way when the driver leaves: the next one must not meet them half done
LOOKAHEAD = 64
AHEAD = 64  # reports that a trial may send without waiting: enough to keep the driver busy, heard within milliseconds
SHIPPED = "what was missing in the store was sent"
CALM_GC = (20_000, 20, 20)
"""The loop makes many small objects that live long and no cycles: collecting as often as usual costs a fifth of it."""


class Outcome(msgspec.Struct):
    """How the run ended."""

    state: State
    info: ExperimentInfo
    interrupted: str = ""  # why, if unfinished trials were left
    exit_code: int | None = None  # how the process must end because of a signal
    failure: tuple[int, bytes] | None = None  # fail_fast="raise": the failed trial and its exception, if it pickles
    advice: list[str] = []  # what cannot be as the user meant it


class Driver:
    """Runs one experiment once, from opening to leaving.

    Args:
        experiment: What to run.
        environment: Settings from outside.
        resume: What becomes of trials of earlier runs.
        takeover: Take it from a driver that is alive.
        only_ship: Start nothing; finish the commits of staged checkpoints and send what the store lacks.
    """

    def __init__(
        self,
        experiment: Experiment,
        environment: Environment,
        *,
        resume: ResumeConfig | None = None,
        takeover: bool = False,
        only_ship: bool = False,
    ) -> None:
        self._only_ship = only_ship
        self._end_now: Callable[[str], None] | None = None
        self._experiment = experiment
        self._environment = environment
        self._resume = resume or ResumeConfig()
        self._takeover = takeover
        config = experiment.settings.run_config
        assert config.failure_config is not None
        assert config.checkpoint_config is not None
        self._run_config = config
        self._failure = config.failure_config
        self._checkpoint = config.checkpoint_config
        self._tune_config = experiment.settings.tune_config
        self._info = make_info(experiment)
        self._trial_setup = TrialSetup(experiment, self._info)
        self._backend = backend_of(experiment)
        self._results = ResultBuilder(self._info)
        budget = self._tune_config.time_budget_s
        assert not isinstance(budget, timedelta)  # TuneConfig makes it seconds
        # A copy: the rule's memory belongs to this run, and a second fit() must begin with a rule that knows nothing.
        self._stopper = None if config.stop is None else copied(config.stop)
        self._stop = UserStopRule(resolve_stopper(self._stopper), budget)
        self._remembers = False  # the past was told to scheduler, searcher and stop rule
        self._written = experiment.spec.given_as or name_as_written(experiment.spec.trainable)
        self._prefix = prefix = (environment.trial_id_prefix or experiment.spec.uid)[:5]
        spec, space = experiment.spec, experiment.settings.space
        name = partial(trial_id, prefix)
        change, changed = experiment.change, experiment.changed
        self._settings = changed if change is None else changed.after(change)
        times = experiment.begun_samples, self._settings.relearned
        self._algorithms = Algorithms(self._tune_config, space, spec.seed, self._info, self._results, name, *times)
        self._memories = self._algorithms.memories
        if self._stop.has_memory:
            self._memories.append(StopRuleMemory(self._stop, self._results))

    def run(self) -> Outcome:
        """Drive the experiment until it is finished or interrupted.

        Durability: when this returns normally, everything that the outcome shows is fsynced under the root (I9).
        """
        root = self._experiment.root
        self._trial_setup.check_resources(self._run_config.engine)
        self._trial_setup.check_names()
        with ExitStack() as leaving:
            with sole_use(root):
                check_unchanged(self._experiment)
                claim = self._backend.claim(takeover=self._takeover)
            leaving.callback(release, root.path, claim)
            keep_replacements(self._experiment, claim.epoch)
            store = SnapshotStore(root.path, epoch=claim.epoch)
            leaving.callback(store.close)
            leaving.callback(self._backend.close)  # after the journal, which may still have something to ship
            self._journal = own_journal = self._backend.open(claim)
            self._spools = SpoolFolder(root.path)
            leaving.push(close_journal(own_journal))
            retention, retold = self._experiment.spec.retention, self._settings.retold
            state = open_with_memory(root, retention, store, self._memories, retold).state
            self._remembers = True
            self._trial_setup.check_directories(state)
            self._experiment.files.check(state)
            self._backend.compare(state, self._experiment.spec.uid)
            check_settings(self._experiment, state.settings)
            clock = RealClock(not_before=state.last_at)
            engine = self._make_engine()
            leaving.callback(engine.close)
            journal = self._backend.follow(own_journal, engine.wake, state)
            hooks = self._make_notifier(state, clock, journal, claim, engine)
            leaving.callback(hooks.close)
            self._backend.start(hooks.trouble, hooks.take_written)
            directory = partial(self._trial_setup.directory, state)
            context = JobContext(state, clock, directory, hooks.trouble, self._experiment.spec.retention)
            jobs = self._backend.checkpoint_jobs(engine.wake, context)
            leaving.callback(jobs.close, LAST_JOBS_S)
            self._proposer = self._make_proposer(state, engine)
            leaving.callback(self._proposer.close)
            edges = Edges(
                engine=engine,
                journal=journal,
                jobs=jobs.edge,
                proposer=self._proposer,
                clock=clock,
                run_message=partial(self._trial_setup.run_message, state),
            )
            policies = self._policies(ahead=0 if hooks.answers_wait else AHEAD)
            controller = Controller(state, policies, edges, hooks, self._watches())
            self._hooks = hooks
            snapshots = Snapshotter(
                state,
                store,
                clock,
                own_journal,
                period_s=self._environment.snapshot_period_s,
                policies=partial(stored_memories, self._memories),
                flush_files=hooks.flush_files,
            )
            return self._drive(controller, claim, snapshots)

    def end(self, reason: str) -> bool:
        """End as for a signal; a second time, at once. From any thread. Returns False if the run has not begun yet."""
        if self._end_now is not None:
            self._end_now(reason)
        return self._end_now is not None

    def recall(self) -> None:
        """Tell the past to scheduler, searcher and stop rule, and do nothing else. Writes nothing."""
        root, retention = self._experiment.root, self._experiment.spec.retention
        open_with_memory(root, retention, SnapshotStore(root.path), self._memories, self._settings.retold)
        self._remembers = True

    def hand_back(self, own: OwnObjects) -> None:
        """Let the user's objects hold the final memory."""
        if self._remembers:
            algorithms = self._algorithms
            own.fill(scheduler=algorithms.chosen, search_alg=algorithms.searcher, stop=self._stopper)

    def _drive(self, controller: Controller, claim: Claim, snapshots: Snapshotter) -> Outcome:
        state, edges, hooks = controller.state, controller.edges, self._hooks
        resumed = bool(state.trials)
        former = state.stopped or "the driver that ran it was lost"
        self._inherited = set(state.running)  # a driver that we took over from may still have workers at these
        self._begin(controller, claim)
        # Only now: a driver that was taken over while it opened is fenced by the record and must not sweep.
        self._trial_setup.tidy(state, {*state.touched, *(trial.n for trial in state.unfinished())})
        if resumed:
            resume = self._resume
            spent = self._stop.why_stop_all(state.lived(edges.clock.now())) if state.stopping else ""
            requests = self._trial_setup.new_requests(state) if self._experiment.has_new_requests else {}
            controller.tell(
                ob.Resumed(
                    resume.finished.value, resume.unfinished.value, resume.errored.value, former, spent, requests
                )
            )

        hooks.be_told_of_end(lambda: controller.watches.is_ending)

        def end(reason: str) -> None:
            controller.watches.end(reason)
            edges.engine.wake()

        self._end_now = end
        if self._only_ship:
            controller.watches.end(SHIPPED)
        with watch_signals(
            end, controller.watches.insist, sigint=not self._environment.disable_sigint_handler
        ) as signals:
            try:
                hooks.start()
                self._journal.flush()  # raises if somebody has taken over meanwhile, whose workers opening would end
                self._note_output_files()
                edges.engine.open(self._setup(state))
                # Only now: opening has ended what the driver before had left running.
                hear_spools(controller, self._journal, self._spools)
                self._loop(controller, snapshots)
                edges.engine.close()
                self._leave(controller, snapshots)
            except BaseException as error:
                hooks.failed(error)
                raise
        if self._proposer.error is not None:
            raise self._proposer.error
        return Outcome(
            state,
            self._info,
            interrupted=state.driver.draining,
            exit_code=signals.exit_code,
            failure=hooks.failure if self._failure.fail_fast == "raise" else None,
            advice=hooks.advisor.texts(),
        )

    def _begin(self, controller: Controller, claim: Claim) -> None:
        """The first records: who writes from now on, with which files, and with which settings."""
        experiment, now = self._experiment, controller.edges.clock.now()
        digests = dict(experiment.files.digests)
        begin = ev.EpochStarted(now, claim.epoch, claim.writer, claim.host, claim.pid, digests)
        change, state = experiment.change, controller.state
        controller.record(begin, *([] if change is None else [msgspec.structs.replace(change, at=now)]))
        experiment.changed, experiment.change = state.settings, None
        if change is not None and change.num_samples is not None and state.stopping:
            self._hooks.warn(
                f"nothing more is started, because the experiment was stopped: {state.stopping}. Give another "
                "time_budget_s or stop as well."
            )
        plan = experiment.variants() if self._algorithms.search is None else None
        imported.go_on(controller, experiment.spec, experiment.settings.space, plan, self._hooks.warn)
        for event in complete_rebuilt(plan, state, self._trial_setup.keep_values, controller.edges.clock.now()):
            controller.record(event)

    def _loop(self, controller: Controller, snapshots: Snapshotter) -> None:
        state, clock = controller.state, controller.edges.clock
        shortage = ResourceWatch(state, self._hooks.warn, self._environment.warn_insufficient_resources_s)
        thresholds = gc.get_threshold()
        gc.set_threshold(*CALM_GC)
        try:
            while not controller.done():
                controller.step()
                if controller.watches.hurry:
                    self._hurry(state)
                why = self._backend.why_give_up()
                if why and not state.driver.draining:
                    controller.watches.end(why)
                elif why and self._only_ship:  # nothing else would end the wait for its uploads
                    controller.tell(ob.GraceOver())
                if snapshots.maybe():
                    self._hooks.keep_states()
                shortage.look(clock.now())
        finally:
            gc.set_threshold(*thresholds)

    def _hurry(self, state: State) -> None:
        """Leave at once; or in order, if nothing but storage is waited for, because that says what is missing there."""
        missing = self._backend.missing(state)
        if missing and not state.running:
            return
        if missing:
            self._hooks.warn(missing)
        raise KeyboardInterrupt

    def _leave(self, controller: Controller, snapshots: Snapshotter) -> None:
        """The last facts, the last sync, the last snapshot: only then may ``fit()`` claim anything (I9)."""
        state, hooks = controller.state, self._hooks
        hear_spools(controller, self._journal, self._spools)
        reason = state.driver.draining
        running = [
            ev.AttemptInterrupted(controller.edges.clock.now(), n, state.trials[n].attempt, ev.Cause.DRIVER_STOPPED)
            for n in state.running
        ]
        controller.record(*running, ev.DriverStopped(controller.edges.clock.now(), reason or "finished"))
        try:
            hooks.last_words()
        finally:
            self._backend.finish(state, lambda: controller.watches.why_leave(controller.edges.clock.now()))
        hooks.finish(reason)
        self._trial_setup.tidy(state, {*state.driver.untidy, *self._inherited, *(event.n for event in running)})
        snapshots.finish()

    # --- the parts

    def _make_display(self, engine: Engine) -> Display:
        config = self._run_config
        display = make_display(config.verbose, self._experiment.stream, reporter=config.progress_reporter)
        if isinstance(engine, LocalProcessEngine):  # others print where their trials run
            display.watch(TrialOutput(self._info, engine.output_files, config.log_files))
        return display

    def _make_notifier(
        self, state: State, clock: RealClock, journal: JournalWriter, claim: Claim, engine: Engine
    ) -> Notifier:
        config, environment, info, root = self._run_config, self._environment, self._info, self._experiment.root
        history = Past(root.path, self._experiment.spec.retention, self._results)
        info.load_rows = history.rows
        given = [*(config.callbacks or ()), *callbacks_from_paths(environment.callbacks)]
        facts = ExperimentFacts(
            name=info.name,
            root=shown_root(info),
            metric=info.metric,
            mode=info.mode,
            total=info.total_samples,
            started_at=clock.now(),
            resumed=bool(state.trials),
            trainable=info.trainable_name,
            info=info,
            notes=self._first_notes(),
            given_as=self._written,
        )
        return make_notifier(
            state,
            info,
            clock,
            journal,
            root=root,
            results=self._results,
            history=history,
            stop=self._stop,
            callbacks=default_callbacks(environment.disable_auto_callback_loggers, given),
            display=self._make_display(engine),
            facts=facts,
            is_fenced=partial(is_fenced, root.path, claim, disk=disk_of(root.path)),
            logs_policies=getattr(self._algorithms.chosen, "log_config", True),
            metrics=[*filter(None, [info.metric]), *dict(self._algorithms.needed_metrics)],
            output_files=config.log_files or (),
        )

    def _first_notes(self) -> tuple[str, ...]:
        """What is not as before, or not as the user may think."""
        change, notes = self._experiment.change, self._experiment.notes
        return (*notes,) if change is None else (f"changed: {'; '.join(change.words)}", *notes)

    def _policies(self, ahead: int) -> Policies:
        tune, experiment, algorithms = self._tune_config, self._experiment, self._algorithms
        required: tuple[tuple[str, str], ...] = ()
        if not self._environment.disable_strict_metric_checking:
            own = ((tune.metric, CONFIG),) if tune.metric else ()
            required = (*own, *(need for need in algorithms.needed_metrics if need[0] != tune.metric))
        planner = tune.search_alg if isinstance(tune.search_alg, BasicVariantGenerator) else None
        limit = tune.max_concurrent_trials or (planner.max_concurrent if planner else 0)
        lookahead = self._environment.max_pending_trials or algorithms.lookahead or LOOKAHEAD
        rules = Rules(
            retention=experiment.spec.retention,
            max_failures=self._failure.max_failures,
            fail_fast=bool(self._failure.fail_fast),
            is_class=experiment.spec.is_class,
            max_concurrent=limit,
            lookahead=lookahead,
            searcher_learns=algorithms.search is not None,
            required_metrics=required,
            free_load_failures=self._environment.restore_retries,
            count_preemption=self._environment.count_preemption_as_failure,
            unwind_grace_s=self._environment.force_trial_cleanup_s,
            max_uncommitted=self._max_uncommitted(),
            max_backlog_bytes=self._max_backlog_bytes,
            ahead=ahead if self._lets_everything_pass() else 0,
            roots=(str(experiment.root.path), os.path.realpath(experiment.root.path)),
            mode=tune.mode or getattr(algorithms.chosen, "mode", None),
            schedulers=(type(algorithms.chosen).__name__,),
            restore=restore_call(shown_root(self._info)).removesuffix(")"),
            trainable=self._written,
        )
        tell = ignore if algorithms.search is None else algorithms.search.tell
        return Policies(rules, algorithms.scheduler, self._stop, self._results, tell)

    def _lets_everything_pass(self) -> bool:
        """Whether no report can lead to anything but "continue", and a spool is as safe as an answer."""
        algorithms, backend = self._algorithms, self._backend
        free = type(algorithms.chosen) is FIFOScheduler and algorithms.search is None and self._stop.is_idle
        return (
            free
            and not self._experiment.spec.is_class
            and isinstance(backend, LocalBackend)
            and backend.accepts_unsynced
        )

    def _max_uncommitted(self) -> int:
        if self._checkpoint.wait_for_commit:
            return 0
        return self._backend.most_uncommitted(self._experiment.spec.retention)

    @property
    def _max_backlog_bytes(self) -> int | None:
        config = self._run_config.sync_config
        return None if config is None else config.max_backlog_bytes

    def _watches(self) -> Watches:
        by_disk = self._max_backlog_bytes is None
        return Watches(
            self._stop,
            stall_timeout_s=self._failure.stall_timeout_s,
            grace_s=self._failure.grace_s,
            free_space=partial(free_bytes, self._experiment.root.path) if by_disk else None,
        )

    def _make_engine(self) -> Engine:
        settings = self._run_config.engine
        if not isinstance(settings, LocalEngine):
            settings = LocalEngine()
        return LocalProcessEngine(settings, log_dir=self._experiment.root.logs)

    def _note_output_files(self) -> None:
        names, folder = self._run_config.log_files, self._experiment.root.logs
        if names is not None:
            folder.mkdir(parents=True, exist_ok=True)
            trial_logs.keep_streams(str(folder), names)

    def _setup(self, state: State) -> Setup:
        root, spec = self._experiment.root, self._experiment.spec
        at_end, older = self._checkpoint.checkpoint_at_end, self._tune_config.chdir_to_trial_dir
        return Setup(
            worker=max(state.workers, default=0) + 1,  # numbers are never used twice: old results name their workers
            experiment=spec.name,
            root=str(root.path),
            trainable_file=str(root.trainable_file),
            objects_file=str(root.values_file),
            is_class=spec.is_class,
            checkpoint_frequency=self._checkpoint.checkpoint_frequency,
            checkpoint_at_end=spec.is_class if at_end is None else at_end,
            reuse_instances=bool(self._tune_config.reuse_actors),
            chdir=self._environment.chdir_to_trial_dir if older == DEPRECATED else bool(older),
            log_to_file=self._run_config.log_files,
            memory_limit_bytes=getattr(self._run_config.engine, "memory_limit_bytes", None) or 0,
            sys_path=tuple(sys.path),
            working_dir=os.getcwd(),
            address=address_of(self._experiment),
            epoch=state.epoch,
            max_output_bytes=self._run_config.max_output_bytes or 0,
            digests=self._experiment.files.digests,
            own_processes=self._tune_config.own_processes,
        )

    def _make_proposer(self, state: State, engine: Engine) -> VariantProposer | LearningProposer:
        describe = Describer(
            state,
            prefix=self._prefix,
            request_of=self._trial_setup.request_of,
            keep_value=self._trial_setup.keep_values,
            names=partial(self._trial_setup.names, state),
        )
        search = self._algorithms.search
        if search is None:
            return VariantProposer(self._experiment.variants(), state, describe)
        search.start(describe, engine.wake)
        return search


__all__ = ["Driver", "Outcome", "make_info"]
