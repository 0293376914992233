"""A script with an ordinary loop. Its arguments enable features."""

from __future__ import annotations

from pathlib import Path

import torch

__all__ = ["SCRIPT", "weights", "write_script"]

SCRIPT = """
import json, sys
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset
import paceline as pl

def wanted(word):
    return word in sys.argv[1:]

torch.manual_seed(0)
generator = torch.Generator().manual_seed(5)
inputs = torch.randn(50, 6, dtype=torch.float64, generator=generator)
data = TensorDataset(inputs, inputs @ torch.arange(6.0, dtype=torch.float64)[:, None])
model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)).double()
names = list(model.state_dict())
optimizer = torch.optim.SGD(
    [{"params": model[0].parameters(), "lr": 0.02}, {"params": model[2].parameters()}], lr=0.01, momentum=0.9
)
if wanted("adam"):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5) if wanted("schedule") else None
how = {"num_workers": 2, "collate_fn": torch.utils.data.default_collate} if wanted("loaders") else {}
loader = DataLoader(data, batch_size=8, shuffle=True, drop_last=wanted("drop"), **how)
if wanted("sampler"):
    loader = DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 3, drop_last=False))
if wanted("iterable"):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(data)
    loader = DataLoader(Stream(), batch_size=8)
frozen = model[2].bias
frozen.requires_grad = not wanted("thaw")
state = None
if wanted("load"):
    F.mse_loss(model(inputs), data.tensors[1]).backward()
    optimizer.step()
    state = optimizer.state_dict()
if wanted("without"):
    model, optimizer = pl.prepare(model, optimizer)
    loader = [data[start : start + 8] for start in range(0, 50, 8)]
elif scheduler is not None:
    model, optimizer, loader, scheduler = pl.prepare(model, optimizer, loader, scheduler)
else:
    model, optimizer, loader = pl.prepare(model, optimizer, loader)
assert list(model.state_dict()) == names and isinstance(optimizer, torch.optim.Optimizer)
if state is not None:
    optimizer.load_state_dict(state)
parts = 2 if wanted("accumulate") else 1
step = 0
first = pl.resume("../kept").get("epoch", 0) if wanted("keep") else 0
epochs = 1 if wanted("half") else 2
for epoch in range(first, epochs):
    model.train()
    optimizer.zero_grad()
    for number, (x, y) in enumerate(loader):
        if wanted("without"):
            x, y = pl.shard(x, y)
        loss = F.mse_loss(model(x), y) / parts
        loss.backward()
        if (number + 1) % parts:
            continue
        if wanted("raise") and pl.rank() == 1 and step == 3:
            raise LookupError("a broken sample")
        if wanted("thaw"):
            frozen.requires_grad = True
        if wanted("early") and pl.rank() == 1 and step == 3:
            pl.finish()
            sys.exit()
        if wanted("torch-clip"):
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if wanted("clip"):
            optimizer.clip_grad_norm_(0.5)
        if wanted("by-hand"):
            for group in optimizer.param_groups:
                group["lr"] = 0.02 / (1 + step)
        if not wanted("never"):
            pl.log(loss=loss)
            optimizer.step()
            step += 1
        if scheduler is not None:
            scheduler.step()
        optimizer.zero_grad()
    model.eval()
    if pl.is_main():
        with torch.no_grad():
            print("loss", F.mse_loss(model(data.tensors[0]), data.tensors[1]).item())
            if wanted("by-hand"):  # another loader draws from torch's generator, on one worker
                list(DataLoader(data, batch_size=16, shuffle=True))
    if wanted("keep"):
        pl.save("../kept", epoch=epoch + 1)
    if wanted("gather"):
        found = pl.gather(torch.full((pl.rank() + 1,), float(pl.rank())))
        assert [each.tolist() for each in found] == [[float(r)] * (r + 1) for r in range(pl.workers())], found
        assert pl.gather(pl.rank()) == list(range(pl.workers()))
if pl.is_main():
    torch.save(model.state_dict(), "after-loop.pt")
run = pl.finish()
if pl.is_main():
    torch.save(model.state_dict(), "after-run.pt")
    if run is not None:
        facts = {"steps": run.steps, "staleness": sum(run.staleness.values()), "losses": [
            record.loss for record in run.history], "spans": len(run.trace.spans), "lost": run.lost}
        json.dump(facts, open("run.json", "w"))
"""


def write_script(folder: Path) -> Path:
    path = folder / "train.py"
    path.write_text(SCRIPT)
    return path


def weights(folder: Path, name: str = "after-loop") -> torch.Tensor:
    state = torch.load(folder / f"{name}.pt")
    return torch.cat([tensor.flatten() for tensor in state.values()])
