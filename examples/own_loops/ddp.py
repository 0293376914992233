"""DistributedDataParallel."""

import torch
import torch.distributed as dist
from task import data, loss, model
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
net = DistributedDataParallel(model())
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
sampler = DistributedSampler(data())
loader = DataLoader(data(), batch_size=16 // dist.get_world_size(), sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss(net(x), y).backward()
        optimizer.step()
if dist.get_rank() == 0:
    torch.save(net.module.state_dict(), "model.pt")
