"""What to type after a mistake in the settings, ready to paste."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from holdfast.core.policies import Rules
from holdfast.errors import MetricMissingError

CONFIG = "tune.TuneConfig()"
"""Who needs the metric, if it is the experiment itself rather than its scheduler or searcher."""


def metric_missing(rules: Rules, trial_id: str, name: str, who: str, metrics: Mapping[str, Any]) -> MetricMissingError:
    """The error that ends a run whose reports do not have a metric that is needed, and how to continue.

    Args:
        rules: The user's settings.
        trial_id: Who has reported.
        name: The metric.
        who: ``CONFIG``, or the scheduler or searcher that needs it.
        metrics: What was reported.
    """
    numbers = [key for key, value in metrics.items() if isinstance(value, int | float)]
    likely = get_close_matches(name, numbers, 1, 0.0) or ["..."]
    aim = f'metric="{likely[0]}", mode="{rules.mode or "min"}"'
    if who != CONFIG:
        argument = "scheduler" if who in rules.schedulers else "search_alg"
        aim = f"{argument}={who}({aim}, ...)"
    change = f"tune_config=TuneConfig({aim})"
    if rules.restore:
        advice = (
            f"To optimise another metric: {rules.restore}, {change}).fit(). To report {name!r} as well, change the "
            f"code and give it: {rules.restore}, trainable={rules.trainable}).fit(). To go without it, set "
            "TUNE_DISABLE_STRICT_METRIC_CHECKING=1 and restore."
        )
    else:
        advice = (
            f"To optimise another metric, write {change} and run the script again. To report {name!r} as well, change "
            f"{rules.trainable} and run it again. To go without it, set TUNE_DISABLE_STRICT_METRIC_CHECKING=1 and run "
            "it again."
        )
    fact = (
        f"Trial {trial_id} returned a result which did not include the specified metric `{name}` that "
        f"`{who}` expects. It reported: {', '.join(map(repr, metrics)) or 'nothing'}."
    )
    return MetricMissingError(f"{fact} Nothing was lost. {advice}", change, fact)
