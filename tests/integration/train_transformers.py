"""A training with ``transformers.Trainer``: a tiny language model with dropout; saves after every epoch."""

import warnings

import numpy as np
import torch
import transformers
from interrupted import computed

from holdfast.integration.transformers import TuneReportCheckpointCallback


class Watch(transformers.TrainerCallback):
    def __init__(self, config):
        self.config = config

    def on_epoch_begin(self, args, state, control, **kwargs):
        computed(self.config, round(state.epoch) + 1)


def sentences(count, seed):
    generator = np.random.default_rng(seed)
    words = [torch.from_numpy((generator.integers(1, 30) + np.arange(8)) % 30) for _ in range(count)]
    return [{"input_ids": text, "labels": text} for text in words]


def make_trainer(callbacks, **arguments):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(3)
    settings = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=16)
    known = {
        "output_dir": "trainer",
        "per_device_train_batch_size": 8,
        "eval_strategy": "epoch",
        "logging_strategy": "epoch",
        "save_strategy": "epoch",
        "learning_rate": 0.01,
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": [],
    }
    return transformers.Trainer(
        transformers.GPT2LMHeadModel(settings),
        transformers.TrainingArguments(**{**known, **arguments}),
        train_dataset=sentences(32, 1),
        eval_dataset=sentences(16, 2),
        callbacks=callbacks,
    )


def train(config):
    callback = TuneReportCheckpointCallback({"loss": "eval_loss", "epoch": "epoch"})
    trainer = make_trainer([callback, Watch(config)], num_train_epochs=config["steps"])
    trainer.train(resume_from_checkpoint=callback.resume_from_checkpoint)
