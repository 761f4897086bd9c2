"""A training with scikit-learn whose estimator draws from NumPy's global random numbers; saves every second pass."""

import numpy as np
from interrupted import computed
from made_data import points
from sklearn.neural_network import MLPClassifier

from holdfast.integration.sklearn import TrainingState


def train(config):
    np.random.seed(5)
    x, y = points()
    model = MLPClassifier(hidden_layer_sizes=(8,), batch_size=16, random_state=np.random.RandomState(1))
    state = TrainingState(model, frequency=2)
    for step in range(state.resume(), config["steps"]):
        order = np.random.permutation(len(x))
        model.partial_fit(x[order], y[order], classes=[0, 1])
        state.report({"accuracy": model.score(x, y), "loss": model.loss_})
        computed(config, step + 1)
