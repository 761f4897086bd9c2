"""The keys of a result, by name: ``{tune.result.SHOULD_CHECKPOINT: True}``."""

DEFAULT_METRIC = "_metric"
"""Where a number goes that was returned or reported without a name."""

DONE = "done"
"""True ends the trial."""

SHOULD_CHECKPOINT = "should_checkpoint"
"""True in the result of a class trainable: save after this iteration."""

TRAINING_ITERATION = "training_iteration"
TIME_THIS_ITER_S = "time_this_iter_s"
TIME_TOTAL_S = "time_total_s"
TIMESTEPS_THIS_ITER = "timesteps_this_iter"
TIMESTEPS_TOTAL = "timesteps_total"
EPISODES_THIS_ITER = "episodes_this_iter"
EPISODES_TOTAL = "episodes_total"

TRIAL_ID = "trial_id"
EXPERIMENT_TAG = "experiment_tag"
TIMESTAMP = "timestamp"
DATE = "date"
HOSTNAME = "hostname"
NODE_IP = "node_ip"
PID = "pid"
CONFIG = "config"
