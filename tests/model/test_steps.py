import numpy as np
import pytest
import torch
from gans import BATCH, NOISE, REAL, a_gan, alternate, flat, generator_with_batch_norm, is_fake, is_real, step
from refusals import has, refused
from tasks import a_task, numbers, perceptron, samples
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from paceline.context import Batch
from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples
from paceline.model.replica import Replica
from paceline.model.steps import micro_batches

DATA = Samples(samples())


def a_batch(count=8, step=0):
    return Batch(step, 0, count, count, lambda _: np.arange(count))


def a_replica(task):
    return Replica.of(task, task.build_model(0))


def squares(model, batch):
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


def a_step_task(step, **changes):
    return a_task(loss=None, step=step, **changes)


# A step that returns


def test_a_step_has_the_gradient_of_the_loss_that_it_returns():
    own, plain = a_replica(a_step_task(squares)), a_replica(a_task())
    assert own.compute(a_batch(), DATA) == plain.compute(a_batch(), DATA)
    assert torch.equal(own.gradient, plain.gradient)


def test_what_a_step_tells_besides_its_loss_is_kept():
    def step(model, batch):
        loss = squares(model, batch)
        return {"loss": loss, "double": 2 * loss, "size": len(batch[0])}

    replica = a_replica(a_step_task(step))
    loss = replica.compute(a_batch(), DATA)
    assert replica.logged == {"double": 2 * loss, "size": 8.0}
    replica.compute(a_batch(0), DATA)
    assert replica.logged == {}


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        (None, refused("step", "None")),
        (torch.zeros(2), refused("step", has(2))),
        (1.5, refused("step")),
        ((torch.zeros(()), 1), refused("step")),
        ({"cost": torch.zeros(())}, refused("step")),
        (torch.zeros(()), refused("step")),
    ],
)
def test_what_is_no_loss_is_refused(given, refusal):
    with refusal:
        a_replica(a_step_task(lambda model, batch: given)).compute(a_batch(), DATA)


@pytest.mark.parametrize(
    ("name", "value", "refusal"),
    [("seconds", 1.0, refused("step", "seconds")), ("outputs", torch.zeros(3), refused("step's 'outputs'"))],
)
def test_what_cannot_be_in_a_record_is_refused(name, value, refusal):
    def step(model, batch):
        return {"loss": squares(model, batch), name: value}

    with refusal:
        a_replica(a_step_task(step)).compute(a_batch(), DATA)


# A step that yields


def turns(replica, batches, data):
    """So many updates of a replica, each turn of a global batch after the other."""
    order, count = GlobalBatches(data.length, BATCH, 0), len(replica.task.turns)
    for number in range(batches * count):
        whole = order.indices(number // count)
        replica.compute(Batch(number, 0, len(whole), len(whole), lambda _, whole=whole: whole), data)
        replica.apply()


@pytest.mark.parametrize("g", [None, generator_with_batch_norm], ids=["plain", "batch-norm"])
def test_turns_give_the_weights_of_a_loop_that_alternates(g):
    task = a_gan() if g is None else a_gan(model=a_gan().model | {"g": g})
    replica = a_replica(task)
    turns(replica, 5, Samples((REAL, NOISE)))
    expected = alternate(task, 5)
    torch.testing.assert_close(replica.parameters, flat(expected), rtol=0, atol=1e-14)
    for name, buffer in expected.named_buffers():
        torch.testing.assert_close(replica.inspection.state()[name], buffer, rtol=0, atol=1e-14)


def test_a_layer_whose_buffers_change_its_outputs_sees_each_batch_once():
    def normed():
        return nn.Sequential(spectral_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2)).double()

    task = a_gan(model=a_gan().model | {"g": normed})
    replica = a_replica(task)
    turns(replica, 4, Samples((REAL, NOISE)))
    torch.testing.assert_close(replica.parameters, flat(alternate(task, 4)), rtol=0, atol=1e-12)


def test_a_gradient_is_of_the_model_whose_turn_it_is_alone():
    replica = a_replica(a_gan())
    data, names = Samples((REAL, NOISE)), replica.layout.names
    for turn, name in enumerate(("d", "g")):
        replica.compute(a_batch(step=turn), data)
        views = replica.layout.views(replica.gradient)
        assert {each[0] for each, view in zip(names, views, strict=True) if view.any()} == {name}


def test_a_loss_that_is_yielded_as_a_function_is_computed_in_its_own_turn_alone():
    called = []

    def lazy(model, batch):
        real, noise = batch
        fake = model["g"](noise)

        def of_d():
            called.append("d")
            return is_real(model["d"](real)) + is_fake(model["d"](fake.detach()))

        def of_g():
            called.append("g")
            return is_real(model["d"](fake))

        yield "d", of_d
        yield "g", of_g

    replica, eager = a_replica(a_gan(step=lazy)), a_replica(a_gan())
    data = Samples((REAL, NOISE))
    turns(replica, 2, data)
    turns(eager, 2, data)
    assert called == ["d", "g", "d", "g"]
    assert torch.equal(replica.parameters, eager.parameters)


def test_the_turns_of_a_batch_draw_the_same_random_numbers():
    drawn = []

    def noisy(model, batch):
        noise = torch.randn(len(batch[0]), 3, dtype=torch.float64)
        drawn.append(noise)
        yield from step(model, (batch[0], noise))

    replica = a_replica(a_gan(step=noisy, data=(REAL,)))
    turns(replica, 2, Samples((REAL,)))
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[2], drawn[3])
    assert not torch.equal(drawn[0][:2], drawn[2][:2])


def test_a_cancelled_step_is_closed():
    closed = []

    def step(model, batch):
        try:
            yield "d", None
        finally:
            closed.append(True)

    with refused("step", "None"):
        a_replica(a_gan(step=step)).compute(a_batch(), Samples((REAL, NOISE)))
    assert closed == [True]


def loss_of_d(model):
    return model["d"](REAL).mean()


@pytest.mark.parametrize(
    ("yielded", "turn", "refusal"),
    [
        (["g"], 0, refused("step", "g", bound=has(1))),
        (["d"], 1, refused("step", 1, bound=has(2))),
        ([None], 0, refused("step", remedy=has("d"))),
        (["d", "g", "d"], 1, refused("step", bound=has(2))),
    ],
)
def test_yields_that_do_not_fit_the_turns_are_refused(yielded, turn, refusal):
    def step(model, batch):
        for name in yielded:
            yield loss_of_d(model) if name is None else (name, loss_of_d(model) + model["g"](NOISE).mean())

    with refusal:
        a_replica(a_gan(step=step)).compute(a_batch(step=turn), Samples((REAL, NOISE)))


# Parts of a batch


@pytest.mark.parametrize(("count", "parts"), [(8, 1), (8, 3), (8, 8), (3, 8), (1, 4)])
def test_parts_of_a_batch_are_nearly_equal_and_have_all_its_samples(count, parts):
    batch = Batch(4, 2, count, 20, lambda _: np.arange(100, 120))
    made = micro_batches(batch, parts)
    assert len(made) == min(parts, count)
    assert np.concatenate([part.indices for part in made]).tolist() == batch.indices.tolist()
    assert max(part.count for part in made) - min(part.count for part in made) <= 1
    assert {part.step for part in made} == {4}


class Changing(nn.Module):
    """It uses one layer for samples of one kind, and another for the others."""

    def __init__(self):
        super().__init__()
        self.often, self.seldom = nn.Linear(4, 2).double(), nn.Linear(4, 2).double()

    def forward(self, x):
        layer = self.seldom if len(x) == 3 else self.often
        return layer(x)


@pytest.mark.parametrize("parts", [2, 3, 4, 100])
@pytest.mark.parametrize("accumulate", [False, True])
def test_a_gradient_in_parts_is_that_of_the_whole(parts, accumulate):
    replica, whole = a_replica(a_task(accumulate=parts)), a_replica(a_task())
    for each in (replica, whole):
        each.gradient.fill_(1.0)
    ready = []
    how = {"weight": 0.25, "accumulate": accumulate}
    loss = replica.compute(a_batch(7), DATA, ready.append, **how)
    assert loss == pytest.approx(whole.compute(a_batch(7), DATA, **how), rel=1e-14)
    torch.testing.assert_close(replica.gradient, whole.gradient, rtol=0, atol=1e-15)
    assert ready == [0]  # once, when all parts are done


def test_a_layer_that_takes_part_in_some_parts_only_has_their_gradient():
    replica = a_replica(a_task(model=Changing, accumulate=2))
    replica.gradient.fill_(1e9)
    replica.compute(a_batch(7), DATA)  # 3 samples, then 4
    model = replica.task.build_model(0)
    inputs, targets = DATA.fetch(np.arange(7))
    for part in (slice(0, 3), slice(3, 7)):
        loss = nn.functional.mse_loss(model(inputs[part]), targets[part])
        (loss * len(inputs[part]) / 7).backward()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])
    torch.testing.assert_close(replica.gradient, expected, rtol=0, atol=1e-15)


def test_what_a_step_tells_is_the_mean_over_the_parts():
    def step(model, batch):
        return {"loss": squares(model, batch), "mean": batch[0].mean()}

    replica = a_replica(a_step_task(step, accumulate=3))
    replica.compute(a_batch(8), DATA)
    assert replica.logged["mean"] == pytest.approx(DATA.fetch(np.arange(8))[0].mean().item(), rel=1e-13)


def test_parts_of_a_batch_have_dropout_of_their_own():
    seen = []

    class Remembering(nn.Dropout):
        def forward(self, x):
            made = super().forward(torch.ones_like(x))
            seen.append(made)
            return x * made

    replica = a_replica(a_task(model=lambda: nn.Sequential(perceptron(), Remembering(0.5)), accumulate=2))
    replica.compute(a_batch(8), Samples((numbers(8, 4), numbers(8, 2))))
    assert not torch.equal(*seen)
