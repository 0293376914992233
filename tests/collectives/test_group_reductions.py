"""Reductions of a value over the ranks of a tensor group."""

import pytest
import torch
from tasks import WORLDS, numbers

import paceline as pl
from paceline.collectives.group_reductions import reduce_value

SIZE = 3
WHOLE = (6, 2)


def run(how, shape, world="simulated"):
    async def program(ctx):
        return await reduce_value(ctx.net, numbers(*shape, seed=ctx.rank), how)

    return pl.run_program(program, WORLDS[world](SIZE)).results


@pytest.mark.parametrize("world", WORLDS)
def test_each_rank_gets_its_part_or_all_of_it(world):
    values = [numbers(*WHOLE, seed=rank) for rank in range(SIZE)]
    parts = [numbers(2, 2, seed=rank) for rank in range(SIZE)]
    total = torch.stack(values).sum(0)
    expected = {
        "sum": [total] * SIZE,
        "max": [torch.stack(values).amax(0)] * SIZE,
        "scatter": total.chunk(SIZE),
        "take": [value.chunk(SIZE)[rank] for rank, value in enumerate(values)],
        "gather": [torch.cat(parts)] * SIZE,
    }
    for how, wanted in expected.items():
        found = run(how, (2, 2) if how == "gather" else WHOLE, world)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-14)


def test_a_part_is_a_copy_so_that_the_whole_need_not_stay():
    for how in ("scatter", "take"):
        assert all(part.untyped_storage().nbytes() == part.nbytes for part in run(how, WHOLE))


def test_a_scatter_and_a_gather_send_what_a_sum_sends():
    async def program(ctx, *hows):
        value = numbers(*WHOLE)
        for how in hows:
            value = await reduce_value(ctx.net, value, how)

    sent = [
        pl.run_program(lambda ctx, hows=hows: program(ctx, *hows), WORLDS["simulated"](SIZE)).bytes_sent
        for hows in (["sum"], ["scatter", "gather"])
    ]
    assert sent[0] == sent[1]
