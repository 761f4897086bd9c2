"""Resuming as scripts written for Ray Tune expect it: the experiment continues as it was begun.

Owns what becomes of a specification that is given again and differs: it is ignored, and one warning says what.
"""

from __future__ import annotations

import copy
from typing import Any

from holdfast.config import RunConfig, TuneConfig
from holdfast.controller.experiment import Experiment, check_space, space_keys
from holdfast.controller.loading import check_same_space, load_experiment
from holdfast.controller.overrides import is_alike
from holdfast.errors import InvalidInputError
from holdfast.messages.shortened import shortened
from holdfast.messages.warn import warn_user
from holdfast.space.objects import extract_objects


def open_again(
    place: str, trainable: Any, param_space: Any, tune_config: TuneConfig, run_config: RunConfig
) -> Experiment:
    """The experiment at ``place``, with its objects, callbacks and code as given now, and all else as it was begun."""
    filesystem = run_config.storage_filesystem
    tune_config, run_config = copy.copy(tune_config), copy.copy(run_config)
    num_samples, stop = tune_config.num_samples, run_config.stop
    for config, name, usual in ((tune_config, "num_samples", 1), (run_config, "stop", None)):
        config._set(name, usual)
        config._set("_given", vars(config).get("_given", frozenset()) - {name})  # as if it had been left out
    space = None if param_space is None else check_space(param_space)
    is_same = space is not None and _is_same_space(place, trainable, space, filesystem)
    experiment = load_experiment(
        place, trainable, space if is_same else None, filesystem, tune_config=tune_config, run_config=run_config
    )
    settings, ignored = experiment.settings, []
    if space and not is_same:
        ignored.append("config (the search space)")
    if num_samples != 1 and num_samples != settings.tune_config.num_samples:
        ignored.append(f"num_samples={num_samples} (it has {settings.tune_config.num_samples})")
    if stop is not None and not is_alike(settings.run_config.stop, stop):
        ignored.append(f"stop={_shown(stop)} (it has {_shown(settings.run_config.stop)})")
    if ignored:
        warn_user(
            f"The experiment at {place} keeps its settings. Changed and ignored: {', '.join(ignored)}. For other "
            "settings start another one, with another name.",
            UserWarning,
        )
    return experiment


def _is_same_space(place: str, trainable: Any, space: dict[str, Any], filesystem: Any) -> bool:
    """Is it the experiment's, but for its objects and functions?"""
    stored = load_experiment(place, trainable, filesystem=filesystem)
    if space_keys(space) != stored.spec.space_keys:
        return False
    try:
        return not check_same_space(stored.settings.space, extract_objects(space)[0])
    except InvalidInputError:
        return False


def _shown(stop: Any) -> str:
    return shortened(stop) if stop is None or isinstance(stop, dict) else type(stop).__name__
