"""A training loop with PyTorch: shuffled batches, dropout, momentum, a scheduler; saves every second epoch."""

import torch
from interrupted import computed
from made_data import points

from holdfast.integration.torch import TrainingState


def train(config):
    torch.set_num_threads(1)
    torch.manual_seed(3)
    x, y = (torch.from_numpy(part) for part in points())
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32, shuffle=True)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 2)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
    state = TrainingState(model=model, optimizer=optimizer, schedule=schedule, frequency=2)
    for epoch in range(state.resume(), config["steps"]):
        for batch, target in data:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
        schedule.step()
        state.report({"loss": loss.item()})
        computed(config, epoch + 1)
