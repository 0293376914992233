"""A client in a round: local steps on its own data from the round's model, without state between rounds."""

import numpy as np
import pytest
import torch
from refusals import raised
from strategies.local_cases import flat, in_parts, labelled, train_one_client
from strategies.server_cases import Counter, negated_mean, spans_of
from tasks import WORLDS, a_task, simulated

import paceline as pl
from paceline.errors import LossNotFiniteError
from paceline.strategies.fedavg import FedAvg
from paceline.trace import Kind


def counting_task(samples, **changes):
    """Its weights tell how often each sample was used, in steps of how many samples."""
    numbers = torch.arange(samples)
    given = {
        "model": lambda: Counter(samples),
        "data": (numbers, numbers),
        "loss": negated_mean,
        "optimizer": lambda params: torch.optim.SGD(params, lr=1.0),
        "batch_size": 6,
    }
    return pl.Task(**(given | changes))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("epochs", [1, 3])
def test_it_goes_through_each_of_its_samples_once_an_epoch(epochs, world):
    sizes = (12, 20)
    strategy = FedAvg(batch=4, epochs=epochs, partition=in_parts(*sizes))
    run = pl.train(counting_task(32), strategy, WORLDS[world](2), steps=2)
    # Each use of a sample adds 1/4 to its weight. The mean multiplies this by the client's share.
    expected = np.repeat([12 / 32, 20 / 32], sizes) * epochs / 4 * 2
    np.testing.assert_allclose(run.parameters.numpy(), expected, atol=1e-12)
    assert [record.samples for record in run.history] == [32 * epochs, 64 * epochs]


@pytest.mark.parametrize(
    ("batch", "local_steps"), [("4", [3, 5]), ("5", [3, 4]), ("0", [1, 1]), ("None", [2, 4])]
)
def test_its_batches_have_the_size_that_it_is_told_or_the_tasks(batch, local_steps):
    given = {} if batch == "None" else {"batch": int(batch)}
    run = pl.train(counting_task(32), FedAvg(partition=in_parts(12, 20), **given), simulated(2), steps=1)
    assert [len(spans) for spans in spans_of(run, Kind.COMPUTE)] == local_steps


def test_its_order_differs_from_round_to_round_and_from_client_to_client():
    seen = []

    def loss(output, target):
        seen.append(target.tolist())
        return output.mean()

    strategy = FedAvg(batch=0, partition=lambda *_: [range(16), range(16, 32)])
    pl.train(counting_task(32, loss=loss), strategy, simulated(2), steps=2)
    orders = [tuple(number % 16 for number in order) for order in seen]
    assert len(orders) == len(set(orders)) == 4
    assert all(sorted(order) == list(range(16)) for order in orders)


def test_the_rate_of_a_round_holds_throughout_the_round():
    task = labelled(
        schedule=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    )
    run = pl.train(task, "fedavg:batch=0,epochs=3", simulated(1), steps=3)
    model = task.build_model(0)
    for round_number in range(3):
        model = train_one_client(task, model, range(60), 3, rate=0.5**round_number)
    torch.testing.assert_close(run.parameters, flat(model), rtol=0, atol=1e-12)


def test_momentum_does_not_outlive_a_round():
    task = labelled(optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9))
    rounds = pl.train(task, "fedavg:batch=0", simulated(1), steps=4)
    without = pl.train(
        labelled(optimizer=lambda params: torch.optim.SGD(params, lr=0.1)),
        "fedavg:batch=0",
        simulated(1),
        steps=4,
    )
    assert torch.equal(rounds.parameters, without.parameters)
    epochs = pl.train(task, "fedavg:batch=0,epochs=4", simulated(1), steps=1)
    assert not torch.allclose(epochs.parameters, without.parameters, atol=1e-6)


def test_dropout_layers_draw_anew_in_every_local_step():
    class Noise(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
            self.dropout = torch.nn.Dropout(0.5)

        def forward(self, inputs):
            masks.append(tuple(self.dropout(torch.ones(16)).tolist()))
            return inputs[:, :2] * self.weight

    masks = []
    pl.train(a_task(model=Noise), "fedavg:batch=8,epochs=2", simulated(1), steps=2)
    assert len(masks) == len(set(masks)) == 12


def test_a_loss_that_is_no_number_is_told_with_its_round():
    calls = []

    def loss(output, target):
        calls.append(1)
        return torch.nn.functional.cross_entropy(output, target) * (float("nan") if len(calls) == 5 else 1)

    with raised(LossNotFiniteError, rank=0, step=2):
        pl.train(labelled(loss=loss), "fedavg:batch=30", simulated(1), steps=5)
