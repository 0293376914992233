import torch

from paceline.strategies.push_pull.shards import cut


def test_a_shard_is_a_view():
    whole = torch.zeros(5)
    first, second = cut(whole, [slice(0, 3), slice(3, 5)])
    first += 1
    second += 2
    assert whole.tolist() == [1, 1, 1, 2, 2]


def test_the_only_shard_is_the_tensor_itself():
    whole = torch.zeros(5)
    assert cut(whole, [slice(0, 5)])[0] is whole
