"""``Tuner`` as scripts written for Ray Tune use it: an experiment whose name exists already is resumed.

Owns that policy and what a changed specification means then. Everything else is ``holdfast.Tuner``.
"""

from __future__ import annotations

import copy
import logging
from typing import Any

from holdfast import tuner as modern
from holdfast.compat import ray
from holdfast.compat.reopening import open_again
from holdfast.config import RunConfig, TuneConfig
from holdfast.controller.experiment import Experiment

logger = logging.getLogger("holdfast")


class Tuner(modern.Tuner):
    """``holdfast.Tuner``, but ``RunConfig(name=...)`` of an experiment that exists resumes it.

    What else is given then, and differs from what the experiment was begun with, is ignored with a warning.

    Args:
        trainable: A function of one argument ``config``, a ``Trainable`` subclass, or a registered name.
        param_space: The search space; plain values are constants.
        tune_config: What to search: metric, number of samples, scheduler, seed.
        run_config: How to run: name, storage, failure and checkpoint rules, stop criteria, callbacks.
    """

    def __init__(
        self,
        trainable: Any = None,
        *,
        param_space: dict[str, Any] | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
    ) -> None:
        if run_config is None:
            run_config = RunConfig()
        if isinstance(run_config, RunConfig):
            run_config = copy.copy(run_config)
            if run_config.if_exists == "error":
                run_config._set("if_exists", "resume")
            if run_config.engine is None:
                run_config._set("engine", ray.engine())
        super().__init__(trainable, param_space=param_space, tune_config=tune_config, run_config=run_config)

    def _load_existing(
        self, place: str, trainable: Any, param_space: Any, tune_config: TuneConfig, run_config: RunConfig
    ) -> Experiment:
        logger.warning(
            "resuming the experiment that exists at %s (for another one choose another name, or write "
            'RunConfig(if_exists="new"))',
            place,
        )
        return open_again(place, trainable, param_space, tune_config, run_config)
