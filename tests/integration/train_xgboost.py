"""A training with XGBoost that saves every third round."""

import xgboost
from interrupted import computed
from made_data import points

from holdfast.integration.xgboost import TuneReportCheckpointCallback

PARAMETERS = {"objective": "binary:logistic", "eval_metric": "logloss", "nthread": 1, "eta": 0.3, "max_depth": 3}


class Watch(xgboost.callback.TrainingCallback):
    def __init__(self, config):
        self.config = config

    def after_iteration(self, model, epoch, evals_log):
        if "update" not in vars(model):  # else the round was done by an earlier attempt
            computed(self.config, epoch + 1)
        return False


def train(config):
    x, y = points()
    data = xgboost.DMatrix(x[:160], y[:160], nthread=1)
    test = xgboost.DMatrix(x[160:], y[160:], nthread=1)
    xgboost.train(
        PARAMETERS,
        data,
        num_boost_round=config["steps"],
        evals=[(test, "eval")],
        callbacks=[Watch(config), TuneReportCheckpointCallback({"loss": "eval-logloss"}, frequency=3)],
        verbose_eval=False,
    )
