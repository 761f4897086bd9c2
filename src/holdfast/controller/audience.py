"""Make everybody who is told of a run: callbacks, writers of files, the display, the advisor.

Owns how they are put together from the user's settings. What each of them does, and when it is told what, is decided
elsewhere (``notify``).
"""

from __future__ import annotations

from functools import partial

from holdfast.callbacks.callback import CallbackList
from holdfast.callbacks.defaults import callbacks_from_paths, default_callbacks
from holdfast.callbacks.file_writer import FileWriter
from holdfast.callbacks.loggers import ErrorFiles, FileLogger
from holdfast.callbacks.policy_log import PolicyLog
from holdfast.config import Environment
from holdfast.controller import imported
from holdfast.controller.advice import Advisor
from holdfast.controller.algorithms import Algorithms
from holdfast.controller.callback_edge import CallbackEdge
from holdfast.controller.clock import RealClock
from holdfast.controller.display_edge import DisplayEdge
from holdfast.controller.experiment import Experiment
from holdfast.controller.history_reader import HistoryReader
from holdfast.controller.loop import JournalWriter
from holdfast.controller.notify import Audience
from holdfast.controller.result_file_edge import ErrorFileEdge, ResultFileEdge
from holdfast.core.state import DriverMemory, State
from holdfast.display.display import Display, ExperimentFacts, make_display
from holdfast.display.trial_output import TrialOutput
from holdfast.engines.base import Engine, PrintsHere, RunsElsewhere
from holdfast.journal.claims import Claim
from holdfast.journal.epoch import is_fenced
from holdfast.storage.mounts import disk_of
from holdfast.views.results import ResultBuilder
from holdfast.views.trials import ExperimentInfo, TrialList, shown_root


class AudienceFactory:
    """Makes the audience of one driver.

    Args:
        experiment: What is run.
        environment: Settings from outside.
        info: The experiment, as callbacks and displays see it.
        results: Makes full results.
        algorithms: The scheduler and searcher.
        memory: What the driver knows for now.
    """

    def __init__(
        self,
        experiment: Experiment,
        environment: Environment,
        info: ExperimentInfo,
        results: ResultBuilder,
        algorithms: Algorithms,
        memory: DriverMemory,
    ) -> None:
        self._experiment = experiment
        self._environment = environment
        self._run_config = experiment.settings.run_config
        self._info = info
        self._results = results
        self._algorithms = algorithms
        self._memory = memory

    def make(self, state: State, clock: RealClock, journal: JournalWriter, engine: Engine, claim: Claim) -> Audience:
        """Who is told of the run. Everything that writes files shares one writer."""
        config, environment, info, root = self._run_config, self._environment, self._info, self._experiment.root
        history = HistoryReader(root.path, self._experiment.spec.retention, self._results)
        info.load_rows = history.rows
        given = [*(config.callbacks or ()), *callbacks_from_paths(environment.callbacks)]
        writer = FileWriter(is_void=partial(is_fenced, root.path, claim, disk=disk_of(root.path)))
        callbacks = CallbackList(default_callbacks(environment.disable_auto_callback_loggers, given), writer)
        loggers = [each for each in callbacks.callbacks if isinstance(each, FileLogger)]
        trials, display = TrialList(state, info, self._results), self._make_display(engine)
        policies = PolicyLog(info.root, writer) if self._algorithms.chosen.log_config else None
        metrics = [*filter(None, [info.metric]), *dict(self._algorithms.needed_metrics)]
        return Audience(
            CallbackEdge(callbacks, state, info, self._results, trials),
            ResultFileEdge(writer, loggers, policies, history, trials, root, config.log_files or ()),
            ErrorFileEdge(ErrorFiles(writer), trials, history),
            DisplayEdge(display, self._facts(state, clock.now(), engine), state, clock, journal),
            Advisor(state, info, metrics, display.note if display.shows_notes else lambda text: None),
        )

    def _make_display(self, engine: Engine) -> Display:
        config = self._run_config
        display = make_display(config.verbose, self._experiment.stream, reporter=config.progress_reporter)
        if isinstance(engine, PrintsHere):
            display.watch(TrialOutput(self._info, engine.output_files, config.log_files))
        return display

    def _facts(self, state: State, now: float, engine: Engine) -> ExperimentFacts:
        info, spec, space = self._info, self._experiment.spec, self._experiment.settings.space
        return ExperimentFacts(
            name=info.name,
            root=shown_root(info),
            metric=info.metric,
            mode=info.mode,
            total=info.total_samples if info.total_samples is not None else imported.known_total(spec, space, state),
            started_at=now,
            resumed=bool(state.trials),
            trainable=info.trainable_name,
            info=info,
            notes=self._first_notes(),
            given_as=self._experiment.trainable_as_written,
            by_name=self._experiment.by_name,
            engine="ray" if isinstance(engine, RunsElsewhere) else "local",
            memory=self._memory,
        )

    def _first_notes(self) -> tuple[str, ...]:
        """What is not as before, or not as the user may think."""
        change, notes = self._experiment.change, self._experiment.notes
        return (*notes,) if change is None else (f"changed: {'; '.join(change.words)}", *notes)
