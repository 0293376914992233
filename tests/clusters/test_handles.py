"""Started operations and coroutines, in every world."""

import torch

from paceline.context import ANY


def test_a_started_coroutine_goes_on_while_its_rank_waits_for_others(run_on):
    async def relay(ctx):
        message = await ctx.net.recv(0, tag=1)
        await ctx.net.send(2, message.tensor * 2, tag=1)
        return "relayed"

    async def program(ctx):
        if ctx.rank == 0:
            await ctx.net.send(1, torch.tensor([21.0]), tag=1)
            return None
        if ctx.rank == 2:
            message = await ctx.net.recv(1, tag=1)
            await ctx.net.send(1, message.tensor, tag=2)
            return None
        handle = ctx.start(relay(ctx))
        answer = await ctx.net.recv(2, tag=2)  # arrives only if the relay continues meanwhile
        return [answer.tensor.item(), await handle, handle.done]

    assert run_on(3, program)[1] == [42, "relayed", True]


def test_many_handles_are_under_way_at_once(run_on):
    async def program(ctx):
        receives = [
            ctx.start(ctx.net.recv(peer, tag=tag))
            for peer in range(ctx.net.size)
            if peer != ctx.rank
            for tag in range(5)
        ]
        sends = [
            ctx.start(ctx.net.send(peer, torch.tensor([10.0 * ctx.rank + tag]), tag=tag))
            for peer in reversed(range(ctx.net.size))
            if peer != ctx.rank
            for tag in reversed(range(5))
        ]
        for handle in sends:
            await handle
        return sum([(await handle).tensor.item() for handle in receives])

    total = 5 * 10 * (0 + 1 + 2) + 3 * 10
    assert run_on(3, program) == [total - 5 * 10 * rank - 10 for rank in range(3)]


async def fails(ctx):
    await ctx.sleep(0.01)
    raise LookupError("not here")


def test_an_error_in_a_started_coroutine_is_raised_where_it_is_awaited(run_on):
    async def program(ctx):
        handle = ctx.start(fails(ctx))
        try:
            await handle
        except LookupError as error:
            return [handle.done, str(error)]

    assert run_on(1, program) == [[True, "not here"]]


def test_an_error_in_a_started_coroutine_that_nobody_awaits_is_raised_at_the_next_wait(run_on):
    async def program(ctx):
        handle = ctx.start(fails(ctx))
        try:
            await ctx.net.recv(1 - ctx.rank)  # which never comes
        except LookupError as error:
            return [handle.done, str(error)]

    assert run_on(2, program) == [[True, "not here"]] * 2


def test_an_error_in_a_coroutine_that_fails_as_it_starts_is_raised_at_the_next_wait(run_on):
    async def fails_at_once(ctx):
        raise LookupError("not here")

    async def program(ctx):
        ctx.start(fails_at_once(ctx))
        try:
            await ctx.net.recv(1 - ctx.rank)
        except LookupError as error:
            return str(error)

    assert run_on(2, program) == ["not here"] * 2


def test_a_rank_may_send_to_itself_between_its_programs(run_on):
    async def echo(ctx):
        for _ in range(3):
            message = await ctx.net.recv(ctx.rank, tag=1)
            await ctx.net.send(ctx.rank, message.tensor * 2, tag=2, header=message.header)

    async def program(ctx):
        ctx.start(echo(ctx))
        heard = []
        for i in range(3):
            await ctx.net.send(ctx.rank, torch.full((5,), float(i)), tag=1, header=(i, 0.5))
            message = await ctx.net.recv(ctx.rank, tag=2)
            heard.append([message.source, *message.header, message.tensor.sum().item()])
        return [*heard, ctx.outcome.bytes_sent]

    for rank, heard in enumerate(run_on(2, program)):
        assert heard == [[rank, 0, 0.5, 0.0], [rank, 1, 0.5, 10.0], [rank, 2, 0.5, 20.0], 0]


def test_a_receive_from_any_rank_takes_messages_of_the_rank_itself(run_on):
    async def program(ctx):
        await ctx.net.send(ctx.rank, torch.zeros(1), tag=7)
        await ctx.net.send(1 - ctx.rank, torch.zeros(1), tag=7)
        return sorted([(await ctx.net.recv(ANY, tag=7)).source for _ in range(2)])

    assert run_on(2, program) == [[0, 1], [0, 1]]


def test_a_handle_may_be_awaited_again(run_on):
    async def program(ctx):
        if ctx.rank == 0:
            await ctx.net.send(1, torch.tensor([3.0]))
            return None
        handle = ctx.start(ctx.net.recv(0))
        return [(await handle).tensor.item(), (await handle).tensor.item()]

    assert run_on(2, program)[1] == [3, 3]


def test_a_send_under_way_is_done_when_its_time_has_come(run_on):
    async def program(ctx):
        if ctx.rank:
            await ctx.net.recv(0)
            return None
        handle = ctx.start(ctx.net.send(1, torch.ones(10)))
        await ctx.sleep(0.05)
        return handle.done

    assert run_on(2, program)[0] is True
