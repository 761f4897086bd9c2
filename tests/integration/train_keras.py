"""A fit with Keras: shuffled batches, dropout, momentum; saves after every second epoch."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
from interrupted import computed
from made_data import points

from holdfast.integration.keras import TuneReportCheckpointCallback


class Watch(keras.callbacks.Callback):
    def __init__(self, config):
        super().__init__()
        self.config = config

    def on_epoch_end(self, epoch, logs=None):
        computed(self.config, epoch + 1)


def make_model():
    if keras.backend.backend() == "torch":
        import torch

        torch.set_num_threads(1)
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(2)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss=loss)
    return model


def train(config):
    x, y = points()
    make_model().fit(
        x[:160],
        y[:160],
        validation_data=(x[160:], y[160:]),
        epochs=config["steps"],
        batch_size=32,
        # TensorFlow has no state of its shuffling that could be saved.
        shuffle=keras.backend.backend() == "torch",
        callbacks=[TuneReportCheckpointCallback({"loss": "val_loss"}, frequency=2), Watch(config)],
        verbose=0,
    )
