"""The experiment's scheduler and searcher: checked when it is created, and prepared for each driver."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from holdfast.config import TuneConfig
from holdfast.config.arguments import accepted
from holdfast.controller.advice import objective_text
from holdfast.controller.replay import Memory
from holdfast.controller.searching import LearningProposer
from holdfast.core.policies import Scheduler
from holdfast.errors import InvalidInputError
from holdfast.messages.warn import ExperimentWarning, warn_user
from holdfast.schedulers import FIFOScheduler, TrialScheduler, create_scheduler
from holdfast.schedulers.fifo import FirstInFirstOut
from holdfast.schedulers.scheduler_adapter import SchedulerAdapter
from holdfast.search import Searcher, create_searcher
from holdfast.search.basic_variant import planner_of
from holdfast.search.replayable import ReplayableSearcher, Script
from holdfast.search.searcher import hears_results
from holdfast.search.spaces import Filler, has_domains
from holdfast.space.objects import unpack_space
from holdfast.trainable.pickling import dump_settings
from holdfast.views.results import ResultBuilder
from holdfast.views.trials import ExperimentInfo

LOOKAHEAD = 64
LEARNERS_LOOKAHEAD = 1
"""A suggestion that is made long before it is needed knows less than one that is made in time."""


def check_algorithms(config: TuneConfig, space: Mapping[str, Any], seed: int) -> None:
    """Refuse what cannot work, before anything is written.

    Raises:
        InvalidInputError: It is no scheduler or searcher, or metric, mode or space do not go together.
        NotSerializableError: It cannot be stored with the experiment.
    """
    scheduler = make_scheduler(config, seed)
    scheduler.check_compatible(config)
    _check_limits(config)
    searcher = make_searcher(config, space, seed)
    if searcher is not None and not scheduler.works_with_searchers:
        raise InvalidInputError(
            f"Search algorithms cannot be used with {type(scheduler).__name__} schedulers: it chooses new "
            "configurations by itself. Leave search_alg out, or choose another scheduler."
        )
    if searcher is None and scheduler.needed_searcher:
        needed = scheduler.needed_searcher
        raise InvalidInputError(
            f"{type(scheduler).__name__} ends trials at the budgets that {needed} suggests them with, and search_alg="
            f"{config.search_alg!r} suggests none. Write TuneConfig(search_alg={needed}(...), scheduler=...)."
        )
    if searcher is not None:
        _advise(searcher, scheduler, config.num_samples)
    half = objective_text(config.metric, config.mode, dict(_needed(scheduler, searcher)))
    if half:
        warn_user(half, ExperimentWarning)


def _advise(searcher: Searcher, scheduler: TrialScheduler, num_samples: int) -> None:
    """Warn of what works, but not as it was meant."""
    if -1 < num_samples < searcher.trials_given:
        warn_user(
            f"{type(searcher).__name__} has points to try first for {searcher.trials_given} trials, but "
            f"num_samples={num_samples} leaves the last ones out. Raise num_samples to try them all.",
            UserWarning,
        )
    wanted = searcher.scheduler_class
    if wanted and wanted not in (each.__name__ for each in type(scheduler).__mro__):
        warn_user(
            f"{type(searcher).__name__} suggests budgets, and without {wanted} nothing ends trials there, unless the "
            f"trainable does. Give TuneConfig(scheduler={wanted}()).",
            UserWarning,
        )


def make_scheduler(config: TuneConfig, seed: int) -> TrialScheduler:
    """The scheduler for one driver's life: it knows nothing yet, and is nobody else's."""
    given = config.scheduler
    if isinstance(given, str):
        given = create_scheduler(given)
    if given is None:
        return FIFOScheduler()
    if not isinstance(given, TrialScheduler):
        raise InvalidInputError(
            f"TuneConfig.scheduler={config.scheduler!r} is not a scheduler. Give one of tune.schedulers, its name, or "
            "an object of a class derived from tune.schedulers.TrialScheduler."
        )
    scheduler: TrialScheduler = _copied_from(config, given)
    take = scheduler.set_search_properties
    spec = {"seed": seed, "num_samples": config.num_samples}  # which Ray Tune's schedulers did not take once
    if not take(config.metric, config.mode, **accepted(take, spec)):
        raise InvalidInputError(
            f"TuneConfig has metric={config.metric!r} and mode={config.mode!r}, but {type(scheduler).__name__} was "
            f"already instantiated with metric={scheduler.metric!r} and mode={scheduler.mode!r}. Give them in one "
            "place."
        )
    scheduler.check_ready()
    return scheduler


def make_searcher(config: TuneConfig, space: Mapping[str, Any], seed: int) -> Searcher | None:
    """The searcher for one driver's life; None if the default one is used, which need not learn."""
    given = config.search_alg
    if planner_of(given) is not None:
        return None
    if isinstance(given, str):
        given = create_searcher(given)
    if not isinstance(given, Searcher):
        raise InvalidInputError(
            f"TuneConfig.search_alg={config.search_alg!r} is not a searcher. Give one of tune.search, its name, or an "
            "object of a class derived from tune.search.Searcher."
        )
    searcher: Searcher = _copied_from(config, given)
    name, take = type(searcher).__name__, searcher.set_search_properties
    spec = {"seed": seed, "num_samples": config.num_samples}  # which Ray Tune's searchers did not take once
    if not take(config.metric, config.mode, unpack_space(space), **accepted(take, spec)) and has_domains(space):
        raise InvalidInputError(
            f"param_space has something to search, but {name} does not take it: it was already instantiated with a "
            "search space, a metric or a mode of its own, or cannot be given one. Put everything in one place."
        )
    return searcher


class Algorithms:
    """A scheduler and perhaps a searcher, with their memories.

    Args:
        config: The user's choice.
        space: The search space, its objects replaced by markers.
        seed: The experiment's.
        info: The experiment.
        results: Makes full results.
        name: Trial number -> trial id.
        begun: ``num_samples`` as it was at the beginning (events tell of later changes); None: as in ``config``.
        relearned: How often, by now, another metric came to count.
    """

    def __init__(
        self,
        config: TuneConfig,
        space: Mapping[str, Any],
        seed: int,
        info: ExperimentInfo,
        results: ResultBuilder,
        name: Callable[[int], str],
        begun: int | None = None,
        relearned: int = 0,
    ) -> None:
        self.memories: list[Memory] = []
        """Those that must be told the past when the experiment is opened again."""

        self.scheduler: Scheduler = FirstInFirstOut()
        """What the core asks."""

        self.search: LearningProposer | None = None
        """The searcher's edge; None if configurations do not depend on results."""

        self.chosen = make_scheduler(config, seed)
        if type(self.chosen) is not FIFOScheduler:
            adapter = SchedulerAdapter(self.chosen, info, results, relearned)
            self.scheduler = adapter
            self.memories.append(adapter)
        searcher = make_searcher(config, space, seed)
        if searcher is not None:
            budget_of = getattr(self.chosen, "hyperband_info", None)
            first = config.num_samples if begun is None else begun
            limit = None if first == -1 else first
            script = Script(results.last, with_results=hears_results(searcher), budget_of=budget_of)
            filler = Filler(space, type(searcher).__name__)
            self.search = LearningProposer(
                lambda: ReplayableSearcher(_learner(config, space, seed), name, limit, relearned), script, filler
            )
            self.memories.append(self.search)
        self._searcher = searcher

    @property
    def searcher(self) -> Searcher | None:
        """The searcher that has heard everything so far; None if configurations do not depend on results."""
        return None if self.search is None else self.search.searcher

    @property
    def lets_everything_pass(self) -> bool:
        """Whether no report can make a scheduler or searcher decide anything."""
        return isinstance(self.scheduler, FirstInFirstOut) and self.search is None

    @property
    def lookahead(self) -> int:
        """How many trials to create before there is room for them."""
        if self._searcher is None:
            return max(LOOKAHEAD, self.chosen.trials_ahead)
        return int(getattr(self._searcher, "max_concurrent", 0) or LEARNERS_LOOKAHEAD)

    @property
    def needed_metrics(self) -> tuple[tuple[str, str], ...]:
        """Metrics that reports must have, and who needs them."""
        return _needed(self.chosen, self._searcher)


def _needed(*policies: Any) -> tuple[tuple[str, str], ...]:
    needed = []
    for who in policies:
        names = getattr(who, "metric", None) or ()
        needed += [(name, type(who).__name__) for name in ([names] if isinstance(names, str) else names)]
    return tuple(needed)


def _learner(config: TuneConfig, space: Mapping[str, Any], seed: int) -> Searcher:
    searcher = make_searcher(config, space, seed)
    assert searcher is not None
    return searcher


def _check_limits(config: TuneConfig) -> None:
    """``max_concurrent_trials`` and a ``ConcurrencyLimiter`` may say the same, but not two things."""
    own, wanted = getattr(config.search_alg, "max_concurrent", None), config.max_concurrent_trials
    if not wanted or not own or not hasattr(config.search_alg, "searcher"):
        return
    if own != wanted:
        raise InvalidInputError(
            f"TuneConfig.max_concurrent_trials={wanted} and ConcurrencyLimiter(max_concurrent={own}) do not agree. "
            "Set it in one place."
        )
    warn_user(f"max_concurrent_trials={wanted} is set twice: by TuneConfig and by the ConcurrencyLimiter.", UserWarning)


def _copied_from(config: TuneConfig, given: Any) -> Any:
    try:
        return copied(given)
    except Exception:
        dump_settings(SimpleNamespace(tune_config=config))  # raises what says which object it is, and what to do
        raise


def copied(value: Any) -> Any:
    """An independent copy of one of the user's objects; anything that can be stored can be copied this way."""
    import cloudpickle

    return pickle.loads(cloudpickle.dumps(value))
