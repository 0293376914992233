"""Accelerate."""

import torch
from accelerate import Accelerator
from task import data, loss, model

accelerator = Accelerator()
torch.manual_seed(0)
net = model()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
loader = torch.utils.data.DataLoader(data(), batch_size=16, shuffle=True)
net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
for _epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(loss(net(x), y))
        optimizer.step()
if accelerator.is_main_process:
    torch.save(accelerator.unwrap_model(net).state_dict(), "model.pt")
