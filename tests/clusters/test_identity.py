"""The identity of a rank and the result of its program, in every world."""

import torch
from refusals import refused
from tasks import WORLDS, simulated

import paceline as pl


def test_a_rank_knows_itself_and_the_others(run_on):
    async def program(ctx):
        return [ctx.rank, ctx.role, list(ctx.workers), list(ctx.servers), ctx.net.size, list(ctx.net.hosts)]

    assert run_on(3, program) == [[r, "worker", [0, 1, 2], [], 3, [0, 0, 0]] for r in range(3)]


def test_chance_is_the_same_in_every_world_and_another_on_every_rank():
    async def program(ctx):
        return ctx.rng.random(3).tolist()

    local, virtual = (pl.run_program(program, WORLDS[world](3), seed=9).results for world in WORLDS)
    assert local == virtual
    assert len({tuple(numbers) for numbers in local}) == 3
    assert pl.run_program(program, simulated(3), seed=8).results != local


def test_a_program_without_a_task_has_no_parameters(run_on):
    async def program(ctx):
        return ctx.model.parameters

    with refused("task", None):
        run_on(2, program)


def test_what_a_program_returns_comes_back(run_on):
    async def program(ctx):
        return {
            "rank": ctx.rank,
            "tensor": torch.full((2, 3), float(ctx.rank)),
            "list": [None, True, "é", 1.5],
        }

    for rank, result in enumerate(run_on(2, program)):
        assert result["rank"] == rank
        assert torch.equal(result["tensor"], torch.full((2, 3), float(rank)))
        assert result["list"] == [None, True, "é", 1.5]
