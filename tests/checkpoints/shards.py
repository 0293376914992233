"""Shards of a fictitious run, for tests of checkpoints."""

import torch

from paceline.checkpoints import Shard, Store

RANKS = 3


def shard_of(rank, step=0, size=40):
    chance = torch.Generator().manual_seed(1000 * step + rank)
    tensors = {
        "parameters/0.weight": torch.randn(size, 4, generator=chance),
        "optimizer/0.weight/momentum_buffer": torch.randn(size, 4, generator=chance, dtype=torch.float64),
        "history/losses": torch.arange(float(step)),
    }
    return Shard(rank=rank, tensors=tensors, facts={"rank": rank, "step": step, "streams": [1, "µ", None]})


def save(store, step, *, metric=None, ranks=RANKS, size=40):
    store.folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        store.write(step, shard_of(rank, step, size))
    return store.commit(step, ranks, {"metric": metric, "strategy": "all-reduce"}, deadline_s=60)


def assert_same(found, expected):
    assert (found.rank, found.facts) == (expected.rank, expected.facts)
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert torch.equal(found.tensors[name], tensor), name


def assert_whole(checkpoint, ranks=RANKS, size=40):
    checkpoint.verify()
    for rank in range(ranks):
        assert_same(checkpoint.shard(rank), shard_of(rank, checkpoint.step, size))


def steps_in(folder):
    return [each.step for each in Store(folder).checkpoints()]
