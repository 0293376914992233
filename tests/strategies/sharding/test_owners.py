"""Parts of a tensor and their owners."""

import pytest
import torch
from tasks import simulated

import paceline as pl
from paceline.strategies.sharding.owners import fill_from_owners, sum_to_owners

EVEN = [slice(0, 3), slice(3, 5), slice(5, 7)]
UNEVEN = [slice(0, 6), slice(6, 6), slice(6, 7)]


@pytest.mark.parametrize("parts", [EVEN, UNEVEN], ids=["even", "whole layers"])
def test_each_owner_has_the_sum_of_its_part_and_gives_it_to_all(parts):
    async def program(ctx):
        flat = torch.arange(7.0) * (ctx.rank + 1)
        own = await sum_to_owners(ctx.net, flat, parts)
        kept = torch.full((7,), -1.0)
        kept[parts[ctx.rank]] = own
        await fill_from_owners(ctx.net, kept, parts)
        return [own.tolist(), kept.tolist()]

    whole = [6.0 * n for n in range(7)]
    for rank, (own, kept) in enumerate(pl.run_program(program, simulated(3)).results):
        assert own == whole[parts[rank]]
        assert kept == whole
