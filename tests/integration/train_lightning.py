"""A fit with Lightning: shuffled batches, dropout, momentum; saves after every second validation."""

import warnings

import lightning
import torch
from interrupted import computed
from made_data import points

from holdfast.integration.pytorch_lightning import TuneReportCheckpointCallback


class Network(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(16, 2)
        )

    def training_step(self, batch):
        return torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch):
        self.log("val_loss", torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)]


class Watch(lightning.Callback):
    def __init__(self, config):
        self.config = config

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.is_last_batch:
            computed(self.config, trainer.current_epoch + 1)


def train(config):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(3)
    x, y = (torch.from_numpy(part) for part in points())
    data = torch.utils.data.TensorDataset(x[:160], y[:160])
    test = torch.utils.data.TensorDataset(x[160:], y[160:])
    trainer = lightning.Trainer(
        max_epochs=config["steps"],
        accelerator="cpu",
        callbacks=[
            TuneReportCheckpointCallback({"loss": "val_loss"}, frequency=2),
            Watch(config),
        ],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(
        Network(),
        torch.utils.data.DataLoader(data, batch_size=32, shuffle=True),
        torch.utils.data.DataLoader(test, batch_size=80),
    )
