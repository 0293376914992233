import torch
from torch import nn

from paceline.model.buffers import FlatBuffers


class Counting(nn.Module):
    """A module that replaces its buffers instead of changing them in place, like many user modules."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("scale", None)

    def forward(self, x):
        self.seen = self.seen + x
        return x


def test_buffers_become_views_of_one_flat_tensor_a_dtype():
    module = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(2))
    floats, counts = FlatBuffers(module).flats()
    module[1].running_mean.fill_(7)
    assert floats.tolist() == [0, 0, 0, 1, 1, 1, 7, 7, 1, 1]
    assert (counts.dtype, counts.tolist()) == (torch.int64, [0, 0])


def test_what_is_written_to_the_flat_tensor_is_in_the_module():
    module = nn.BatchNorm1d(3)
    floats, counts = FlatBuffers(module).flats()
    floats.copy_(torch.arange(6.0))
    counts.fill_(5)
    assert module.running_var.tolist() == [3, 4, 5]
    assert module.num_batches_tracked.item() == 5
    assert module.num_batches_tracked.shape == ()


def test_a_buffer_that_the_module_replaced_is_followed():
    module = Counting()
    buffers = FlatBuffers(module)
    for _ in range(2):
        module(torch.tensor([1.0, 2.0]))
        (flat,) = buffers.flats()
    assert flat.tolist() == [2, 4]
    flat.fill_(9)
    assert module.seen.tolist() == [9, 9]


def test_a_module_without_buffers_has_no_flat_tensor():
    assert FlatBuffers(nn.Linear(2, 2)).flats() == []


def test_the_state_dict_keeps_its_names_and_shapes():
    module = nn.BatchNorm1d(3)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    FlatBuffers(module)
    after = module.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
