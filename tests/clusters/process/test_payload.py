import pytest
import torch

from paceline.clusters.process import payload


def roundtrip(value):
    memory = payload.store(value)
    try:
        return payload.load(memory.fd, memory.nbytes)
    finally:
        memory.close_fd()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(10),
        torch.arange(10_000.0).view(100, 100),
        torch.arange(10_000.0).view(100, 100).t(),
        torch.arange(10_000.0)[5000:],
        torch.ones(10_000, dtype=torch.bfloat16),
        torch.ones(10_000, requires_grad=True),
        torch.ones(10_000).to_sparse(),
        torch.nn.Parameter(torch.ones(10_000)),
        torch.empty(0),
    ],
    ids=lambda tensor: f"{tensor.dtype}{list(tensor.shape)}",
)
def test_every_kind_of_tensor_travels(tensor):
    arrived = roundtrip({"data": tensor})["data"]
    assert type(arrived) is type(tensor)
    assert arrived.requires_grad == tensor.requires_grad
    assert torch.equal(arrived.to_dense(), tensor.to_dense())


def test_tensors_that_are_one_stay_one():
    large = torch.arange(10_000.0)
    first, second = roundtrip((large, large))
    assert first is second


def test_a_receiver_that_writes_to_a_large_tensor_changes_its_own_copy_only():
    memory = payload.store([torch.zeros(10_000)])
    (mine,), (other,) = (payload.load(memory.fd, memory.nbytes) for _ in range(2))
    mine.fill_(1)
    assert not other.any()
    memory.close_fd()


def test_functions_and_classes_of_no_module_travel():
    factor = 3

    class Scale:
        def __call__(self, x):
            return factor * x

    assert roundtrip(lambda x: Scale()(x) + 1)(2) == 7
