"""Lightning."""

import torch
from task import data, loss, model

import paceline as pl


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = model()

    def training_step(self, batch, number):
        return loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def step(module, batch):
    return module.training_step(batch, 0)


if __name__ == "__main__":
    torch.manual_seed(0)
    module = Module()
    loader = torch.utils.data.DataLoader(data(), batch_size=16, shuffle=True)
    task = pl.Task(model=module, data=loader, step=step, optimizer=Module.configure_optimizers)
    run = pl.train(task, "all-reduce", pl.Local(workers=4), epochs=3)
    torch.save(run.model.net.state_dict(), "model.pt")
