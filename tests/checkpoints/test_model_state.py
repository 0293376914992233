import pytest
import torch

from paceline.checkpoints import Shard, Store
from paceline.checkpoints.model_state import model_state


def kept(folder, held, **model):
    store = Store(folder)
    for rank, tensors in enumerate(held):
        store.write(1, Shard(rank=rank, tensors=tensors, facts={}))
    return store.commit(1, len(held), {"model": model} if model else {}, deadline_s=60)


W, V = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 6.0])
COUNT = torch.tensor(7)


def as_lists(state):
    return {name: tensor.tolist() for name, tensor in state.items()}


def test_parameters_and_buffers_are_the_model_and_the_rest_is_not(tmp_path):
    rank = {"parameters/0.w": W, "buffers/1.count": COUNT, "optimizer/0.w/momentum": V, "state/outer": V}
    assert as_lists(model_state(kept(tmp_path, [rank]))) == {"0.w": [1, 2], "1.count": 7}


def test_pieces_of_several_ranks_are_put_together_by_name(tmp_path):
    found = model_state(kept(tmp_path, [{"parameters/0.w": W}, {"parameters/1.w": V}]))
    assert as_lists(found) == {"0.w": [1, 2], "1.w": [3, 6]}


def test_peers_with_parameters_of_their_own_are_averaged_if_the_run_says_so(tmp_path):
    ranks = [{"parameters/w": W, "buffers/n": COUNT}, {"parameters/w": V, "buffers/n": COUNT + 1}]
    assert as_lists(model_state(kept(tmp_path, ranks, ranks=[0, 1], is_mean=True))) == {"w": [2, 4], "n": 7}


def test_the_ranks_that_have_the_model_are_named(tmp_path):
    ranks = [{"parameters/w": W}, {"parameters/w": V}]
    assert as_lists(model_state(kept(tmp_path, ranks, ranks=[1]))) == {"w": [3, 6]}


def test_names_of_the_state_dict_may_share_a_tensor_or_leave_one_out(tmp_path):
    names = {"embed.weight": "parameters/embed.weight", "head.weight": "parameters/embed.weight"}
    rank = {"parameters/embed.weight": W, "buffers/transient": COUNT}
    found = model_state(kept(tmp_path, [rank], names=names, ranks=[0]))
    assert as_lists(found) == {"embed.weight": [1, 2], "head.weight": [1, 2]}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_model_of_one_rank_has_its_bits(tmp_path, dtype):
    weights = torch.randn(1000, dtype=dtype, generator=torch.Generator().manual_seed(0))
    found = model_state(kept(tmp_path, [{"parameters/w": weights}], ranks=[0], is_mean=True))
    assert torch.equal(found["w"], weights)
