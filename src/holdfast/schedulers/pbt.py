"""Population based training: poor trials continue as copies of good ones, with mutated configs.

Owns who copies whom and when. What a copy starts from is the donor's latest committed checkpoint, which retention keeps
for as long as the copy needs it; the core sees to that, and to the counters of the copy.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.requests import WAITING
from holdfast.core.retention import lookup
from holdfast.core.state import Status, Stored
from holdfast.errors import InvalidInputError, NoResultError
from holdfast.messages.warn import warn_user
from holdfast.schedulers import explore
from holdfast.schedulers.base import TrialScheduler, check_numbers, number
from holdfast.schedulers.population import Member, Population
from holdfast.space.rng import Rng

if TYPE_CHECKING:
    from holdfast.config import TuneConfig
    from holdfast.schedulers.view import ExperimentView
    from holdfast.views.trials import TrialView

logger = logging.getLogger("holdfast")

FILLING, EXPLOITING = 0, 1
"""What random numbers are for: each use has a stream of its own."""


class PopulationBasedTraining(TrialScheduler):
    """Trains a population of trials; now and then the worst copy weights and mutated configs of the best.

    Every ``perturbation_interval`` a trial is compared with the others. If it is among the best, it saves a checkpoint.
    If it is among the worst, it continues from the latest checkpoint of one of the best, with a mutation of its config.
    Trials must be able to start from checkpoints. If not all of them fit, they take turns; a function that has saved
    nothing continues instead, because it would have to begin again. ``num_samples=-1`` is refused.

    Durability: who copied whom, from which checkpoint and with which config is in the journal before a copy starts. A
    checkpoint that a copy starts from is kept until the copy has one of its own, whatever ``num_to_keep`` says.

    Args:
        time_attr: The key of results that measures training; must grow.
        metric: What is compared; by default that of ``TuneConfig``.
        mode: "min" or "max".
        perturbation_interval: How long, in ``time_attr``, a trial trains between two comparisons.
        burn_in_period: How long it trains before the first one.
        hyperparam_mutations: For each key of the config that is mutated: a list of options, a domain such as
            ``tune.uniform(0, 1)``, a function without arguments, or a dict of these. A key that a trial's config lacks
            is filled in from here when the trial is created.
        quantile_fraction: How many are the best, and how many the worst; 0 means that nobody copies.
        resample_probability: How often a value is drawn anew instead of being changed a little.
        perturbation_factors: What numbers are multiplied by.
        custom_explore_fn: Called with the mutated config; returns the config to use.
        log_config: Keep ``pbt_global.txt`` and ``pbt_policy_<trial id>.txt`` in the experiment's directory.
        require_attrs: Refuse results without ``time_attr`` or ``metric``; otherwise they are ignored, with a warning.
        synch: Compare all trials at the same time: those that are there wait for the others.

    Example:
        >>> pbt = PopulationBasedTraining(
        ...     time_attr="training_iteration", metric="loss", mode="min", perturbation_interval=4,
        ...     hyperparam_mutations={"lr": [0.1, 0.01, 0.001]},
        ... )
    """

    works_with_searchers = False
    _needs_metric = True

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        burn_in_period: float = 0.0,
        hyperparam_mutations: dict[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: tuple[float, ...] = (1.2, 0.8),
        custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
    ) -> None:
        mutations = explore.prepare({} if hyperparam_mutations is None else hyperparam_mutations)
        if not mutations and custom_explore_fn is None:
            raise InvalidInputError(
                "You must specify at least one of `hyperparam_mutations` or `custom_explore_fn` to use "
                f"{type(self).__name__}: otherwise copies would be no different from what they copy. For example "
                'hyperparam_mutations={"lr": tune.loguniform(1e-4, 1e-1)}.'
            )
        check_numbers(
            perturbation_interval=perturbation_interval,
            burn_in_period=burn_in_period,
            quantile_fraction=quantile_fraction,
            resample_probability=resample_probability,
        )
        _check_settings(mode, perturbation_interval, burn_in_period, quantile_fraction, resample_probability)
        explore.check(perturbation_factors, custom_explore_fn)
        self._metric = metric
        self._mode = mode
        self._time_attr = time_attr
        self._interval = perturbation_interval
        self._burn_in = burn_in_period
        self._mutations = mutations
        self._fraction = quantile_fraction
        self._resample_probability = resample_probability
        self._factors = tuple(perturbation_factors)
        self._explore_fn = custom_explore_fn
        self.log_config = log_config
        self._require_attrs = require_attrs
        self._synch = synch

        self._population = Population()
        self._next_sync = max(perturbation_interval, burn_in_period)
        self._turns = 0
        self._exploits = 0
        self._warned: list[str] = []
        self._has_warned_of_checkpoints = False

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Take the experiment's metric, mode and ``seed``; False if it was made with a metric or mode of its own.

        Raises:
            InvalidInputError: The experiment has no end of new trials: younger ones go first, so nobody would train.
        """
        if spec.get("num_samples") == -1:
            raise InvalidInputError(
                f"{type(self).__name__} trains a population, which needs a size, and num_samples=-1 creates new trials "
                "without end. Give for example TuneConfig(num_samples=8)."
            )
        return super().set_search_properties(metric, mode, **spec)

    def check_compatible(self, tune_config: TuneConfig) -> None:
        """Warn if there will never be a whole population."""
        limit, size = tune_config.max_concurrent_trials, tune_config.num_samples
        if limit and limit < max(size, 2):
            warn_user(
                f"max_concurrent_trials={limit} is smaller than the population: {type(self).__name__} can compare at "
                f"most {limit}, because trials are created when others have ended. Leave it out: trials that "
                "do not fit take turns."
            )

    # --- what it is told

    def on_trial_add(self, view: ExperimentView, trial: TrialView) -> None:
        config, missing = explore.fill(view.plain_config(trial), self._mutations, self.rng(FILLING, trial.n))
        if missing:
            why = f"param_space leaves out {', '.join(missing)}"
            view.reconfigure_trial(trial, config, params=dict.fromkeys([*trial.record.params, *missing]), why=why)
        self._population.add(Member(trial.n, self._next_turn()))

    def on_trial_start(self, view: ExperimentView, trial: TrialView) -> None:
        member = self._population.get(trial.n)
        if member is None:
            return
        now = self._age(trial)
        changes: dict[str, Any] = {"arrived": False}
        if member.copied:
            changes |= {"copied": False, "time": now, "perturbed_at": now}
        elif trial.record.rows == trial.record.judged:
            # Nothing is to be repeated, so if it is younger than it was, the user has sent it back to the beginning.
            changes |= {"time": min(now, member.time), "perturbed_at": min(now, member.perturbed_at)}
        self._population.change(member, **changes)

    def on_trial_result(self, view: ExperimentView, trial: TrialView, result: dict[str, Any]) -> str:
        member, time = self._population.get(trial.n), self._time_of(trial, result)
        if member is None or time is None or time < self._burn_in or time - member.perturbed_at < self._interval:
            return self.CONTINUE
        if self._synch and time < self._next_sync:
            return self.CONTINUE
        score = self.score_of(result)
        self._population.change(member, turn=self._next_turn(), time=time, score=score)
        self._learn(trial, time, score)
        if self._synch:
            self._population.change(member, arrived=True)
            view.reason = "waits for the others"
            return self.PAUSE
        compared_before, member.perturbed_at = member.perturbed_at > 0, time
        standing = self._population.standing(member, self._fraction)
        if standing > 0:
            view.save_trial(trial)
        elif standing < 0 and self._exploit(view, member):
            return self.PAUSE
        if not _would_keep_its_work(trial):
            if compared_before:  # what comes with this very report is not known yet, and may be the first one
                self._warn_if_none_saves([trial])
            return self.CONTINUE
        view.reason = "lets others train"
        return self.PAUSE if view.waits_for_slots else self.CONTINUE

    def on_trial_pause(self, view: ExperimentView, trial: TrialView) -> None:
        self._compare_if_all_arrived(view)

    def on_trial_save(self, view: ExperimentView, trial: TrialView) -> None:
        self._compare_if_all_arrived(view)

    def on_trial_complete(self, view: ExperimentView, trial: TrialView, result: dict[str, Any]) -> None:
        self._leaves(view, trial)

    def on_trial_error(self, view: ExperimentView, trial: TrialView) -> None:
        self._leaves(view, trial)

    def on_trial_remove(self, view: ExperimentView, trial: TrialView) -> None:
        self._leaves(view, trial)

    def on_standstill(self, view: ExperimentView) -> None:
        """A checkpoint that everybody waits for could not be committed: compare with what there is."""
        if self._synch:
            self._compare_all(view)

    def _leaves(self, view: ExperimentView, trial: TrialView) -> None:
        self._population.drop(trial.n)
        self._compare_if_all_arrived(view)

    # --- what it is asked

    def choose_trial_to_run(self, view: ExperimentView) -> TrialView | None:
        """The youngest waiting trial that fits."""
        for n in self._population.by_age():
            trial = view.trials[n]
            if trial.status not in WAITING:
                continue
            if view.fits(trial):
                return trial
            if trial.state.uniform and not view.is_held_back(trial):
                return None  # the others ask for the same resources
        # Those that have arrived are paused, except for one that the user has sent back to the beginning.
        return view.first_that_fits(view.pending)

    def debug_string(self) -> str:
        return f"{type(self).__name__}: {len(self._population)} unfinished trials, {self._exploits} perturbs"

    # --- decisions

    def _compare_if_all_arrived(self, view: ExperimentView) -> None:
        """In synch mode: once all have left their workers, and what they have saved is there to be copied."""
        if self._synch and self._population.all_arrived:
            trials = (view.trials[member.n] for member in self._population)
            if all(trial.status == Status.PAUSED and not trial.record.staging for trial in trials):
                self._compare_all(view)

    def _compare_all(self, view: ExperimentView) -> None:
        if not len(self._population):
            return
        oldest = max(member.time for member in self._population)
        worst = self._population.lower(self._fraction)
        for member in self._population:
            self._population.change(member, arrived=False, perturbed_at=member.time)
        for poor in filter(None, map(self._population.get, worst)):
            self._exploit(view, poor)
        self._next_sync = max(self._next_sync + self._interval, oldest)

    def _exploit(self, view: ExperimentView, member: Member) -> bool:
        """Let a trial continue as a copy of one of the best."""
        trial = view.trials[member.n]
        best = [view.trials[n] for n in self._population.upper(self._fraction)]
        # A copy that has saved nothing yet has nothing to give: it would hand on what it was given, and trials could
        # copy each other in a circle for ever.
        donors = [other for other in best if other.record.own_latest() is not None and view.can_be_copied(other)]
        if not donors:
            self._warn_if_none_saves(best)
            logger.info("%s cannot copy a better trial: none of %s has a committed checkpoint yet", trial, best)
            return False
        self._exploits += 1
        rng = self.rng(EXPLOITING, trial.n, self._exploits)
        donor = rng.choice(donors)
        config = self._new_config(view, trial, donor, rng)
        tag = explore.perturbed_tag(trial.record.tag, config, self._mutations)
        why = f"its score was among the worst {100 * self._fraction:.3g} %"
        view.reconfigure_trial(trial, config, copy_of=donor, tag=tag, why=why)
        view.reason = f"continues as a copy of {donor.trial_id}"
        other = self._population.get(donor.n)
        assert other is not None
        # Until it starts and shows how old the checkpoint is. It lines up behind the donor, so that the donor
        # continues.
        self._population.change(member, copied=True, time=other.time, perturbed_at=other.perturbed_at)
        return True

    def _warn_if_none_saves(self, trials: list[TrialView]) -> None:
        """A class saves when it is told to. A function that never does has nothing to give or to continue from."""
        if self._has_warned_of_checkpoints or any(trial.info.is_class or trial.record.next_index for trial in trials):
            return
        self._has_warned_of_checkpoints = True
        logger.warning(
            "%s compares trials that save no checkpoints, so nothing can be copied: report(..., checkpoint=...)",
            type(self).__name__,
        )

    def _new_config(self, view: ExperimentView, trial: TrialView, donor: TrialView, rng: Rng) -> dict[str, Any]:
        """The config of a copy."""
        config = view.plain_config(donor)
        config = explore.explore(config, self._mutations, rng, self._resample_probability, self._factors)
        return self._custom(config, rng, trial)

    def _custom(self, config: dict[str, Any], rng: Rng, trial: TrialView) -> dict[str, Any]:
        if self._explore_fn is None:
            return config
        return explore.explore_with(self._explore_fn, config, rng, trial.info.objects)

    def _learn(self, trial: TrialView, time: float, score: float | None) -> None:
        """For those that need more than the last score."""

    def _next_turn(self) -> int:
        self._turns += 1
        return self._turns

    # --- results

    def _time_of(self, trial: TrialView, result: dict[str, Any]) -> float | None:
        """The result's time; None if the result cannot be used."""
        time = number(lookup(result, self._time_attr))
        if time is None:
            self._missing(trial, result, "time_attr", self._time_attr)
        elif self._metric not in result and lookup(result, str(self._metric)) is None:
            self._missing(trial, result, "metric", str(self._metric))
            return None
        return None if time is None or math.isnan(time) else time

    def _missing(self, trial: TrialView, result: dict[str, Any], argument: str, key: str) -> None:
        name = type(self).__name__
        text = (
            f"Trial {trial.trial_id} has returned a result without a number for `{argument}`={key!r}, which {name} "
            f"needs. It has: {', '.join(map(repr, result))}."
        )
        if self._require_attrs:
            raise NoResultError(
                f"{text} Report {key!r} with every result, choose another {argument}, or pass require_attrs=False to "
                f"{name} to ignore such results. Nothing was lost: after the fix, restore the experiment."
            )
        if key not in self._warned:
            self._warned.append(key)
            logger.warning("%s Such results are ignored.", text)

    def _age(self, trial: TrialView) -> float:
        """``time_attr`` in the state that the trial starts with; as remembered, if its checkpoint does not say."""
        if not trial.record.rows and trial.record.source is None:
            return 0.0
        time = number(lookup(trial.last_result, self._time_attr))
        member = self._population.get(trial.n)
        assert member is not None
        return member.time if time is None or math.isnan(time) else time

    # --- memory

    def get_state(self) -> dict[str, Any] | None:
        return {
            "members": msgspec.to_builtins(list(self._population)),
            "next_sync": self._next_sync,
            "turns": self._turns,
            "exploits": self._exploits,
            "warned": list(self._warned),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self._population = Population(msgspec.convert(state["members"], list[Member]))
        self._next_sync = state["next_sync"]
        self._turns, self._exploits = state["turns"], state["exploits"]
        self._warned = list(state["warned"])


def _would_keep_its_work(trial: TrialView) -> bool:
    """Could the trial continue after a pause, instead of beginning again?

    A class saves when it pauses. A function must have saved in this life: a copy would be set back to its donor's
    checkpoint again and again.
    """
    if trial.info.is_class:
        return True
    own = trial.record
    return any(
        record.stored in (Stored.STAGED, Stored.COMMITTED)
        and record.index >= own.floor
        and record.attempt > own.origin_attempt
        for record in reversed(own.checkpoints)
    )


def _check_settings(
    mode: str | None, interval: float, burn_in: float, fraction: float, resample_probability: float
) -> None:
    if mode not in (None, "min", "max"):
        raise InvalidInputError(f"`mode` must be one of ['min', 'max'], got {mode!r}.")
    if not interval > 0:
        raise InvalidInputError(
            f"perturbation_interval must be a positive number, got {interval!r}: it is how long a trial trains between "
            "two comparisons, measured in time_attr."
        )
    if not burn_in >= 0:
        raise InvalidInputError(
            f"burn_in_period must be 0 or more, got {burn_in!r}: it is how long a trial trains before its first "
            "comparison, measured in time_attr."
        )
    if not 0 <= fraction <= 0.5:
        raise InvalidInputError(
            f"You must set `quantile_fraction` to a value between 0 and 0.5, got {fraction!r}: no trial can be among "
            "the best and the worst at once."
        )
    if not 0 <= resample_probability <= 1:
        raise InvalidInputError(f"resample_probability must lie between 0 and 1, got {resample_probability!r}.")
