"""Lightning."""

import lightning
import torch
from task import data, loss, model


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = model()

    def training_step(self, batch, number):
        return loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


if __name__ == "__main__":
    torch.manual_seed(0)
    module = Module()
    loader = torch.utils.data.DataLoader(data(), batch_size=16, shuffle=True)
    trainer = lightning.Trainer(max_epochs=3, devices=4, strategy="ddp")
    trainer.fit(module, loader)
    torch.save(module.net.state_dict(), "model.pt")
