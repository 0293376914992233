import pytest
import torch
from tasks import WORLDS

import paceline as pl
from paceline.context import BoundaryValues
from paceline.strategies.shared.pipelining.messages import (
    gradients_out,
    outputs_out,
    receive_gradients,
    receive_outputs,
)

TENSORS = (torch.arange(6.0).view(2, 3), torch.ones(2, dtype=torch.int64), torch.zeros(()))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("chance", [None, torch.arange(5, dtype=torch.uint8)], ids=["calm", "drawn"])
def test_what_goes_over_a_cut_arrives_with_its_shapes_and_marks(world, chance):
    async def program(ctx):
        crossing = BoundaryValues(TENSORS, (True, False, True), chance)
        if ctx.rank == 0:
            sends = [
                ctx.start(each) for micro in (0, 1) for each in outputs_out(ctx.net, 1, 4, micro, crossing)
            ]
            for each in sends:
                await each
            return None
        later, first = [await receive_outputs(ctx.net, 0, 4, micro) for micro in (1, 0)]
        assert later.wanted == first.wanted == crossing.wanted
        assert (first.chance is None) == (chance is None)
        return [tensor.clone() for tensor in first.tensors]

    found = pl.run_program(program, WORLDS[world](2)).results[1]
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, TENSORS, strict=True))


def test_gradients_come_back_beside_outputs_of_the_same_segment_and_micro_batch():
    async def program(ctx):
        other = 1 - ctx.rank
        own = torch.full((2,), float(ctx.rank))
        sends = [
            *outputs_out(ctx.net, other, 3, 0, BoundaryValues((own,), (True,))),
            *gradients_out(ctx.net, other, 3, 0, [own + 10]),
        ]
        handles = [ctx.start(each) for each in sends]
        (gradient,) = await receive_gradients(ctx.net, other, 3, 0, 1)
        crossing = await receive_outputs(ctx.net, other, 3, 0)
        for handle in handles:
            await handle
        return gradient[0].item(), crossing.tensors[0][0].item()

    assert pl.run_program(program, WORLDS["simulated"](2)).results == [(11.0, 1.0), (10.0, 0.0)]


def test_no_gradients_are_no_messages():
    async def program(ctx):
        return list(gradients_out(ctx.net, 0, 1, 0, ())), await receive_gradients(ctx.net, 0, 1, 0, 0)

    assert pl.run_program(program, WORLDS["simulated"](1)).results == [([], [])]
