"""Resume an experiment that was imported from another tool: what is not stored must be passed.

None of the other tool's code is stored with the experiment, and its search space is not known. So the first restore
needs the trainable, and may be given a scheduler, a searcher and callbacks. The space may be passed once, to any
restore.

Owns these rules, and how trials and searches of imported experiments are distinguished from others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.config import RunConfig, TuneConfig
from holdfast.controller.overrides import given_settings
from holdfast.controller.spec import Spec
from holdfast.core import events as ev
from holdfast.core.state import State
from holdfast.errors import InvalidInputError
from holdfast.space.nested import is_grid
from holdfast.space.objects import is_marker
from holdfast.storage.layout import Root

if TYPE_CHECKING:
    from holdfast.controller.loop import Controller
    from holdfast.space.variants import VariantPlan

MARK: list[int] = []
"""The mark of a trial that no plan of ours has proposed."""

SPACE_GIVEN = "the search space was given"
NO_SPACE = "the search space of the imported experiment is not known"
"""Why the search of an imported experiment has ended, until the space is given."""

FIRST = {"search_alg", "scheduler", "callbacks", "failure_config", "trial_name_creator", "trial_dirname_creator"}
"""Settings that the first restore takes as they are given: nobody here has worked with others yet."""


def is_new(root: Root, spec: Spec) -> bool:
    """Whether it is imported and was never run here."""
    return bool(spec.origin) and not root.trainable_file.exists()


def no_trainable(root: Root, spec: Spec) -> InvalidInputError:
    """The error for a restore that was not given the trainable."""
    return InvalidInputError(
        f"{root.shown} was imported from {spec.origin}, and its trainable is not stored with it. Pass it: "
        f'Tuner.restore("{root.shown}", trainable=...), with the {_kind(spec)} {spec.trainable!r}, or `holdfast resume '
        "PATH --trainable MODULE:NAME`. Nothing was changed; results can be read without it."
    )


def _kind(spec: Spec) -> str:
    if not spec.is_kind_known:
        return "trainable"
    return "class" if spec.is_class else "function"


def take_first(stored_tune: TuneConfig, stored_run: RunConfig, tune: TuneConfig | None, run: RunConfig | None) -> None:
    """Let what is stored be what the first restore is given."""
    for stored, given in ((stored_tune, tune), (stored_run, run)):
        for name, _, new in given_settings(stored, given) if given is not None else ():
            if name in FIRST:
                stored._set(name, new)


def lacks_space(spec: Spec, space: Any) -> bool:
    """Whether its space would have to be given before anything new can be tried."""
    return bool(spec.origin) and not space and (bool(spec.space_keys) or not spec.is_space_known)


def known_total(spec: Spec, space: Any, state: State) -> int | None:
    """How many trials there will be, if nothing else tells: without a space those that were imported."""
    return len(state.trials) if lacks_space(spec, space) else None


def check_samples(spec: Spec, space: Any) -> None:
    """Refuse another number of samples without a space to take them from.

    Raises:
        InvalidInputError: There is none.
    """
    if lacks_space(spec, space):
        raise InvalidInputError(
            f"num_samples cannot be changed yet: the experiment was imported from {spec.origin}, and its search space "
            "is not stored with it. Pass it as well: Tuner.restore(path, trainable, param_space=...). Nothing was "
            "changed."
        )


def go_on(
    controller: Controller, spec: Spec, space: Any, plan: VariantPlan | None, warn: Callable[[str], None]
) -> None:
    """Let the search of an imported experiment continue if its space is known by now; else say what is missing.

    Args:
        controller: Of the experiment.
        spec: Its facts.
        space: Its search space as far as it is known.
        plan: All variants of that; None if a searcher chooses.
        warn: Tells the user.
    """
    if controller.state.search_ended == NO_SPACE and space:
        at = controller.edges.clock.now()
        controller.record(*_with_options(controller.state, space, plan, at))
        controller.record(ev.SearchReopened(at, SPACE_GIVEN))
    elif why := _why_no_more(controller.state, spec):
        warn(why)


def _with_options(state: State, space: Any, plan: VariantPlan | None, at: float) -> list[ev.AnyEvent]:
    """Let placeholders for options of grids name these options: the plan tells which of them each trial has."""
    events: list[ev.AnyEvent] = []
    mark = None
    for trial in state.trials:
        variant = plan.next(mark) if plan is not None and trial.mark == MARK else None
        if variant is None:
            break
        mark = variant.mark
        config = _with_option(trial.config, variant.config, space)
        if not trial.final and config != trial.config:
            events.append(ev.TrialReconfigured(at, trial.n, config, why=SPACE_GIVEN))
    return events


def _with_option(node: Any, proposed: Any, space: Any) -> Any:
    if is_marker(node):
        return proposed if is_grid(space) and is_marker(proposed) else node
    if isinstance(node, dict) and isinstance(proposed, dict) and isinstance(space, dict):
        return {key: _with_option(value, proposed.get(key), space.get(key)) for key, value in node.items()}
    return node


def _why_no_more(state: State, spec: Spec) -> str:
    """What to tell the user if trials may be missing that cannot be made; "" if none are."""
    if state.search_ended != NO_SPACE or (spec.total is not None and spec.total <= len(state.trials)):
        return ""
    wanted = f"num_samples={spec.num_samples} asks for" if spec.total is not None else "there may be"
    return (
        f"only the {len(state.trials)} trials that were imported are run: {wanted} more, but the search space is not "
        "stored with the experiment. Pass it to run them: Tuner.restore(path, trainable, param_space=...)."
    )
