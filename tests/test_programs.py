import pytest
from refusals import has, refused
from tasks import WORLDS, simulated

import paceline as pl


@pytest.mark.parametrize("world", WORLDS)
def test_a_program_that_is_not_async_is_refused_by_name(world):
    def count(ctx):
        return ctx.rank

    with refused("program", has("count", "int"), remedy=has("async def f(ctx)")):
        pl.run_program(count, WORLDS[world](2))


def test_a_program_that_yields_is_refused_before_ranks_start():
    def count(ctx):
        yield ctx.rank

    async def count_async(ctx):
        yield ctx.rank

    for program in (count, count_async):
        with refused("program"):
            pl.run_program(program, simulated(2))


def test_what_cannot_be_called_is_refused():
    with refused("program", 3):
        pl.run_program(3, simulated(2))


def test_a_function_that_returns_a_coroutine_is_a_program():
    async def count(ctx, more):
        return ctx.rank + more

    assert pl.run_program(lambda ctx: count(ctx, 5), simulated(2)).results == [5, 6]
