"""Plain PyTorch."""

import torch
from task import data, loss, model

import paceline as pl

torch.manual_seed(0)
net = model()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
loader = torch.utils.data.DataLoader(data(), batch_size=16, shuffle=True)
net, optimizer, loader = pl.prepare(net, optimizer, loader)
for _epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss(net(x), y).backward()
        optimizer.step()
if pl.is_main():
    torch.save(net.state_dict(), "model.pt")
