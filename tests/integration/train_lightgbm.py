"""A training with LightGBM that saves every third round."""

import lightgbm
from interrupted import computed
from made_data import points

from holdfast.integration.lightgbm import TuneReportCheckpointCallback

PARAMETERS = {
    "objective": "binary",
    "metric": "binary_logloss",
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "min_data_in_leaf": 5,
    "verbose": -1,
}


def train(config):
    x, y = points()
    data = lightgbm.Dataset(x[:160], y[:160])

    def watch(env):
        computed(config, env.iteration + 1)

    callback = TuneReportCheckpointCallback({"loss": "valid_0-binary_logloss"}, frequency=3)
    lightgbm.train(
        PARAMETERS,
        data,
        num_boost_round=config["steps"],
        valid_sets=[data.create_valid(x[160:], y[160:])],
        callbacks=[watch, callback],
        init_model=callback.init_model,
    )
