"""One driver, from start to end: claim the experiment, open it, run the loop, shut down gracefully.

Composes the parts; decides nothing. Whatever happens, the claim is released and no process that it started is left when
``run`` returns or raises.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta
from functools import partial

import msgspec

from holdfast.config import Environment, ResumeConfig
from holdfast.controller import imported
from holdfast.controller.advice import unreported_text
from holdfast.controller.algorithms import Algorithms, copied
from holdfast.controller.audience import AudienceFactory
from holdfast.controller.backend_choice import backend_of
from holdfast.controller.backends import JobContext, close_journal
from holdfast.controller.changes import take_change
from holdfast.controller.clock import RealClock
from holdfast.controller.engine_choice import bring_period_s, check_cluster, choose_engine
from holdfast.controller.experiment import Experiment, check_settings, check_unchanged, keep_replacements, make_info
from holdfast.controller.lifecycle import LEAVING, OPENING, STARTING, DriverLife
from holdfast.controller.loop import Controller, Edges, change_of
from holdfast.controller.notify import Notifier
from holdfast.controller.own_objects import OwnObjects
from holdfast.controller.proposing import Describer, RunProposer, VariantProposer, complete_rebuilt
from holdfast.controller.renewed_values import renew_values
from holdfast.controller.replay import StopRuleMemory, open_with_memory, stored_memories
from holdfast.controller.request_edge import requests_of
from holdfast.controller.run_notices import RunNotices
from holdfast.controller.signals import SignalWatch, watch_signals
from holdfast.controller.snapshots import Snapshotter
from holdfast.controller.spec import sole_use
from holdfast.controller.stop_rule import UserStopRule
from holdfast.controller.trial_setup import TrialSetup
from holdfast.controller.watches import ResourceWatch, Watches
from holdfast.core import events as ev
from holdfast.core import observations as ob
from holdfast.core.metric_advice import CONFIG
from holdfast.core.policies import Policies, Rules, ignore
from holdfast.core.state import DriverMemory, State
from holdfast.display.restore_calls import restore_call
from holdfast.display.words import plural
from holdfast.engines.base import Engine, MakesAttemptsWait, NeedsCluster, RunsElsewhere
from holdfast.errors import EngineLostError
from holdfast.journal.epoch import release
from holdfast.journal.snapshot import SnapshotStore
from holdfast.search.basic_variant import planner_of
from holdfast.space.naming import trial_id
from holdfast.stopper import resolve_stopper
from holdfast.storage.mounts import free_bytes
from holdfast.trainable.spool_writer import SpoolFolder
from holdfast.views.results import ResultBuilder
from holdfast.views.trials import ExperimentInfo, shown_root

logger = logging.getLogger("holdfast")

LAST_JOBS_S = 5.0  # for jobs that are under way when the driver leaves: the next one must not meet them half done
AHEAD = 64  # reports that a trial may send without waiting: enough to keep the driver busy, heard within milliseconds
SHIPPED = "what was missing in the store was uploaded"
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


class Driver(DriverLife):
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
        self._chosen: Engine | None = None  # before the experiment is opened
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
        self._memory = DriverMemory()
        budget = self._tune_config.time_budget_s
        assert not isinstance(budget, timedelta)  # TuneConfig makes it seconds
        # A copy: the rule's memory belongs to this run, and a second fit() must begin with a rule that knows nothing.
        self._stopper = None if config.stop is None else copied(config.stop)
        self.stop = UserStopRule(resolve_stopper(self._stopper), budget)
        self._remembers = False  # the past was told to scheduler, searcher and stop rule
        self._prefix = prefix = (environment.trial_id_prefix or experiment.spec.uid)[:5]
        spec, space = experiment.spec, experiment.settings.space
        name = partial(trial_id, prefix)
        change, changed = experiment.change, experiment.changed
        self._settings = changed if change is None else changed.after(change)
        times = experiment.begun_samples, self._settings.relearned
        self._algorithms = Algorithms(self._tune_config, space, spec.seed, self._info, self._results, name, *times)
        self._memories = self._algorithms.memories
        if self.stop.has_memory:
            self._memories.append(StopRuleMemory(self.stop, self._results))

    def run(self) -> Outcome:
        """Drive the experiment until it is finished or interrupted.

        Durability: when this returns normally, everything that the outcome shows is fsynced under the root (I9).
        """
        if not self._only_ship:
            check_cluster(self._run_config, self._environment)  # a restore may have named another one
        self._trial_setup.check_resources(self._run_config.engine)
        self._trial_setup.check_names()
        with ExitStack() as self._closing:
            if not self._only_ship:
                self._join_cluster()
            self.take(OPENING)
            with self._watch_signals() as signals:
                try:
                    self.take(STARTING)
                    self._loop()
                    self.take(LEAVING)
                except BaseException as error:
                    self.controller.record_failure(error)
                    self._notices.failed(error)
                    raise
            if self._proposer.error is not None:
                raise self._proposer.error
            if self._lost:
                raise self._lost_error()
            notices = self._notices
            return Outcome(
                self._state,
                self._info,
                interrupted=self._memory.draining,
                exit_code=signals.exit_code,
                failure=notices.failure if self._failure.fail_fast == "raise" else None,
                advice=notices.advice(),
            )

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

    # --- opening

    def _join_cluster(self) -> None:
        """Refuse what a cluster refuses while the experiment is still as it was."""
        engine = self._chosen = choose_engine(self._experiment, self._environment)
        if isinstance(engine, NeedsCluster):
            self._closing.callback(engine.close)
            engine.join()
            if isinstance(engine, RunsElsewhere):
                self._trial_setup.check_cluster(engine)

    def claim(self) -> None:
        root = self._experiment.root
        with sole_use(root):
            check_unchanged(self._experiment)
            self._claim = self._backend.claim(takeover=self._takeover)
        self._closing.callback(release, root.path, self._claim)
        keep_replacements(self._experiment, self._claim.epoch)

    def open_journal(self) -> None:
        root = self._experiment.root
        self._store = SnapshotStore(root.path, epoch=self._claim.epoch)
        self._closing.callback(self._store.close)
        self._closing.callback(self._backend.close)  # after the journal, which may still have something to ship
        self.journal = self._backend.open(self._claim)
        self._closing.push(close_journal(self.journal))
        self.spools = SpoolFolder(root.path)

    def fold_journal(self) -> None:
        root, retention = self._experiment.root, self._experiment.spec.retention
        opened = open_with_memory(root, retention, self._store, self._memories, self._settings.retold)
        self._state, self._memory.changed = opened.state, opened.changed
        self._remembers = True

    def compare_storage(self) -> None:
        state, experiment = self._state, self._experiment
        self._trial_setup.check_directories(state)
        experiment.files.check(state)
        self._backend.compare(state, experiment.spec.uid)
        check_settings(experiment, state.settings)
        renew_values(experiment, state, self._claim.epoch)

    def make_edges(self) -> None:
        state, leaving, backend = self._state, self._closing, self._backend
        clock = RealClock(not_before=state.last_at)
        engine = self._engine = self._chosen or choose_engine(self._experiment, self._environment)
        leaving.callback(engine.close)
        journal = backend.follow(self.journal, engine.wake, state)
        factory = AudienceFactory(
            self._experiment, self._environment, self._info, self._results, self._algorithms, self._memory
        )
        audience = factory.make(state, clock, journal, engine, self._claim)
        hooks = Notifier(state, self.stop, audience)
        self._files = files = audience.files
        self._notices = RunNotices(state, self._experiment.root, audience)
        leaving.callback(self._notices.close)
        backend.start(hooks.trouble, files.take_written)
        directory = partial(self._trial_setup.directory, state)
        stages = engine if isinstance(engine, RunsElsewhere) else None
        rule, period_s = self._experiment.spec.retention, bring_period_s(self._run_config)
        context = JobContext(state, self._memory, clock, directory, hooks.trouble, rule, stages, period_s)
        jobs = backend.checkpoint_jobs(engine.wake, context)
        leaving.callback(jobs.close, LAST_JOBS_S)
        self._proposer = self._make_proposer(state, engine)
        leaving.callback(self._proposer.close)
        edges = Edges(
            engine=engine,
            journal=journal,
            jobs=jobs.edge,
            proposer=self._proposer,
            clock=clock,
            run_message=partial(self._trial_setup.run_message, state, self._memory),
        )
        policies = self._policies(ahead=0 if hooks.answers_wait else AHEAD)
        self._requests = requests_of(self._experiment, state, journal, self._claim.epoch, self._notices.warn)
        self.controller = Controller(state, self._memory, policies, edges, hooks, self._watches())
        self._snapshots = Snapshotter(
            state,
            self._store,
            clock,
            self.journal,
            changed=self._memory.changed,
            period_s=self._environment.snapshot_period_s,
            policies=partial(stored_memories, self._memories),
            flush_files=files.flush,
        )

    def first_records(self) -> list[ev.AnyEvent]:
        experiment, claim, now = self._experiment, self._claim, self.controller.edges.clock.now()
        digests = dict(experiment.files.digests)
        begin = ev.EpochStarted(now, claim.epoch, claim.writer, claim.host, claim.pid, digests)
        change = experiment.change
        return [begin] if change is None else [begin, msgspec.structs.replace(change, at=now)]

    def epoch_recorded(self) -> None:
        """Changed settings hold from now on, and what an import or a repair left open is completed."""
        experiment, controller, state = self._experiment, self.controller, self._state
        change, experiment.change = experiment.change, None
        experiment.changed = state.settings
        if change is not None and change.num_samples is not None and state.stopping:
            self._notices.warn(
                f"nothing more is started, because the experiment was stopped: {state.stopping}. Give another "
                "time_budget_s or stop as well."
            )
        if change is not None and change.metric is not None:
            unreported = unreported_text(state, self._results, change.metric)
            if unreported:
                self._notices.warn(unreported)
        plan = experiment.variants() if self._algorithms.search is None else None
        imported.go_on(controller, experiment.spec, experiment.settings.space, plan, self._notices.warn)
        for event in complete_rebuilt(plan, state, self._trial_setup.keep_values, controller.edges.clock.now()):
            controller.record(event)

    def resumed(self, former: str, spent: str) -> ob.Resumed:
        how, setup = self._resume, self._trial_setup
        requests = setup.new_requests(self._state) if self._experiment.has_new_requests else {}
        return ob.Resumed(how.finished.value, how.unfinished.value, how.errored.value, former, spent, requests)

    # --- running

    def _watch_signals(self) -> AbstractContextManager[SignalWatch]:
        watches, edges = self.controller.watches, self.controller.edges
        self._notices.be_told_of_end(lambda: watches.is_ending)

        def end(reason: str) -> None:
            watches.end(reason, edges.clock.now())
            edges.engine.wake()

        self._end_now = end
        if self._only_ship:
            watches.end(SHIPPED)
        return watch_signals(end, watches.insist, sigint=not self._environment.disable_sigint_handler)

    def start_hooks(self) -> None:
        self._notices.start(self._memory.changed)

    def open_engine(self) -> None:
        self.journal.flush()  # raises if somebody has taken over meanwhile, whose workers opening would end
        self._trial_setup.keep_output_names()
        self._engine.open(self._trial_setup.worker_setup(self._state, self._environment))

    def _loop(self) -> None:
        controller, state, clock = self.controller, self._state, self.controller.edges.clock
        period_s, elsewhere = self._environment.warn_insufficient_resources_s, isinstance(self._engine, RunsElsewhere)
        shortage = ResourceWatch(state, self._memory, self._notices.warn, period_s, elsewhere=elsewhere)
        thresholds = gc.get_threshold()
        gc.set_threshold(*CALM_GC)
        try:
            while not controller.done():
                controller.step()
                if state.settings is not self._experiment.changed:
                    self._take_change()
                if controller.watches.hurry:
                    self._hurry(state)
                why = self._backend.why_give_up()
                if why and not self._memory.draining:
                    controller.watches.end(why)
                elif why and self._only_ship:  # nothing else would end the wait for its uploads
                    controller.tell(ob.GraceOver())
                if self._snapshots.maybe():
                    self._notices.keep_states()
                shortage.look(clock.now())
        finally:
            gc.set_threshold(*thresholds)

    def _take_change(self) -> None:
        """A user has asked for more samples, and that is a fact now: search, display and a later fit() follow it."""
        experiment = self._experiment
        take_change(experiment, self._info, self._state.settings)
        self._proposer.replan(experiment.variants)

    def _hurry(self, state: State) -> None:
        """Leave at once; or gracefully, if only storage is waited for, because that says what is missing there."""
        missing = self._backend.missing(state)
        if missing and not state.running:
            return
        if missing:
            self._notices.warn(missing)
        raise KeyboardInterrupt

    # --- leaving

    def make_durable(self) -> None:
        """Callbacks speak last: only then may ``fit()`` claim anything (I9)."""
        state, watches, clock = self._state, self.controller.watches, self.controller.edges.clock
        try:
            self._notices.last_words()
        finally:
            self._backend.finish(state, lambda: watches.why_leave(clock.now()), self._memory.draining)
        self._requests.close()
        failed = self._proposer.error is not None or bool(self._lost)
        self._notices.finish(self._memory.draining, failed=failed, change=self.needed_change())

    def needed_change(self) -> str:
        return change_of(self._proposer.error)

    @property
    def _lost(self) -> str:
        """Why the engine is lost, if that is why the driver ends; "" if it is not."""
        lost = self._engine.lost if isinstance(self._engine, NeedsCluster) else ""
        return lost if lost == self._memory.draining else ""

    def _lost_error(self) -> EngineLostError:
        call = f"{restore_call(shown_root(self._info))}.fit()"
        return EngineLostError(
            f"{self._lost[0].upper()}{self._lost[1:]}. The run has ended with "
            f"{plural(len(list(self._state.unfinished())), 'trial')} unfinished. Everything that was reported is safe; "
            f"when the cluster is back, continue with {call}",
            call,
        )

    def take_last_snapshot(self) -> None:
        self._snapshots.finish()

    def sweep(self, trials: set[int]) -> None:
        self._trial_setup.tidy(self._state, self._memory, trials)

    # --- the parts

    def _policies(self, ahead: int) -> Policies:
        tune, experiment, algorithms = self._tune_config, self._experiment, self._algorithms
        required: tuple[tuple[str, str], ...] = ()
        if not self._environment.disable_strict_metric_checking:
            own = ((tune.metric, CONFIG),) if tune.metric else ()
            required = (*own, *(need for need in algorithms.needed_metrics if need[0] != tune.metric))
        planner = planner_of(tune.search_alg)
        limit = tune.max_concurrent_trials or (planner.max_concurrent if planner is not None else 0)
        lookahead = self._environment.max_pending_trials or algorithms.lookahead
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
            spans_machines=self._trial_setup.may_span_machines(),
            num_samples=tune.num_samples,
            mode=tune.mode or algorithms.chosen.mode,
            schedulers=(type(algorithms.chosen).__name__,),
            restore="" if experiment.by_name else restore_call(shown_root(self._info)).removesuffix(")"),
            trainable=experiment.trainable_as_written,
        )
        tell = ignore if algorithms.search is None else algorithms.search.tell
        return Policies(rules, algorithms.scheduler, self.stop, self._results, tell)

    def _lets_everything_pass(self) -> bool:
        """Whether no report can lead to anything but "continue", and a spool is as safe as an answer."""
        free = self._algorithms.lets_everything_pass and self.stop.is_idle
        elsewhere = isinstance(self._engine, RunsElsewhere)
        return free and not self._experiment.spec.is_class and self._backend.accepts_unsynced and not elsewhere

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
            self.stop,
            stall_timeout_s=self._failure.stall_timeout_s,
            grace_s=self._failure.grace_s,
            free_space=partial(free_bytes, self._experiment.root.path) if by_disk else None,
            requests=self._requests.look,
            is_waiting=self._engine.is_waiting if isinstance(self._engine, MakesAttemptsWait) else None,
        )

    def _make_proposer(self, state: State, engine: Engine) -> RunProposer:
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
