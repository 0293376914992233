import torch
from torch import nn

from paceline.model.cutting.chain import Chain, is_chain
from paceline.model.cutting.parts import Arguments


def chain_of(model, *shape):
    return Chain(model, Arguments((torch.zeros(*shape),), {}), shape[0])


def test_sequentials_within_a_sequential_are_opened():
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Tanh(), nn.Sequential(nn.Linear(3, 1))))
    assert [part.name for part in chain_of(model, 5, 2).parts] == ["0", "1.0", "1.1.0"]


def test_a_sequential_that_does_more_than_its_layers_is_none():
    class Louder(nn.Sequential):
        def forward(self, x):
            return 2 * super().forward(x)

    hooked = nn.Sequential(nn.Linear(2, 2))
    hooked.register_forward_hook(lambda *_: None)
    assert is_chain(nn.Sequential(nn.Linear(2, 2)))
    assert not is_chain(Louder(nn.Linear(2, 2)))
    assert not is_chain(hooked)


def test_bytes_and_operations_are_those_of_one_sample():
    first, second = chain_of(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), 5, 2).parts
    assert first.crossing_bytes == 3 * 4
    assert first.operations == 2 * 2 * 3 + 20 * 3
    assert second.operations == 2 * 3 * 1 + 20 * 1


def test_it_computes_without_touching_the_statistics_of_batch_norm():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    chain_of(model, 5, 2)
    assert model[1].num_batches_tracked == 0


def test_parts_are_computed_with_the_parameters_of_any_copy():
    model, other = (nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)) for _ in range(2))
    chain, x = chain_of(model, 5, 2), torch.ones(4, 2)
    (middle,) = chain.compute(other, 0, 2)(Arguments((x,), {}), [])
    torch.testing.assert_close(chain.compute(other, 2, 3)(None, [middle]), other(x))
