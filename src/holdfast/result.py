"""The keys of a result, by name: ``{tune.result.SHOULD_CHECKPOINT: True}``."""

from holdfast.core import retention

DEFAULT_METRIC = retention.DEFAULT_METRIC
"""Where a number goes that was returned or reported without a name."""

DONE = "done"
"""True ends the trial."""

SHOULD_CHECKPOINT = "should_checkpoint"
"""True in the result of a class trainable: save after this iteration."""

TRAINING_ITERATION = "training_iteration"
"""The number of the report, from 1; it continues after a restore."""

TIME_THIS_ITER_S = "time_this_iter_s"
"""Seconds since the report before."""

TIME_TOTAL_S = "time_total_s"
"""Seconds of training up to this report, over all attempts."""

TIMESTEPS_THIS_ITER = "timesteps_this_iter"
"""Steps of an environment in this iteration, if the trainable reports them."""

TIMESTEPS_TOTAL = "timesteps_total"
"""Steps of an environment up to this report."""

EPISODES_THIS_ITER = "episodes_this_iter"
"""Episodes in this iteration, if the trainable reports them."""

EPISODES_TOTAL = "episodes_total"
"""Episodes up to this report."""

EPISODE_REWARD_MEAN = "episode_reward_mean"
"""A metric by the name that libraries of reinforcement learning give it."""

MEAN_ACCURACY = "mean_accuracy"
"""A metric by the name that many scripts give it."""

MEAN_LOSS = "mean_loss"
"""A metric by the name that many scripts give it."""

TRIAL_ID = "trial_id"
"""The id of the trial."""

EXPERIMENT_TAG = "experiment_tag"
"""The trial's number and its sampled values, as one short text."""

TIMESTAMP = "timestamp"
"""When the report was made, in seconds since 1970."""

DATE = "date"
"""The same as a text in local time."""

HOSTNAME = "hostname"
"""The machine on which the trial ran."""

NODE_IP = "node_ip"
"""Its address."""

PID = "pid"
"""The worker's process id."""

CONFIG = "config"
"""The trial's configuration."""
