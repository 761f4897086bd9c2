"""An experiment as callbacks, results and displays know it."""

from __future__ import annotations

from holdfast.controller.experiment import Experiment
from holdfast.views.trials import ExperimentInfo


def make_info(experiment: Experiment) -> ExperimentInfo:
    """What callbacks, results and displays need to know about the experiment."""
    spec = experiment.spec
    return ExperimentInfo(
        root=experiment.root.path,
        url="" if experiment.root.remote is None else experiment.root.remote.url,
        filesystem=None if experiment.root.remote is None else experiment.root.remote.filesystem,
        name=spec.name,
        trainable_name=spec.trainable,
        is_class=spec.is_class,
        metric=spec.metric,
        mode=spec.mode,
        num_samples=spec.num_samples,
        total_samples=spec.total,
        stop=experiment.settings.run_config.stop,
        objects=experiment.objects,
        may_unpickle=True,
        max_identifier_len=spec.max_identifier_len,
        utc_offset_s=spec.utc_offset_s,
    )
