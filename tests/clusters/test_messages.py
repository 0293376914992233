"""Messages between ranks, in every world."""

import pytest
import torch
from tasks import numbers

from paceline.context import ANY
from paceline.errors import MismatchError


def test_a_message_carries_its_tensor_tag_and_header(run_on):
    async def program(ctx):
        if ctx.rank == 0:
            await ctx.net.send(1, numbers(3, 2), tag=7, header=(41, -2, 0.5))
            return None
        message = await ctx.net.recv(0, tag=7)
        return [message.source, message.tag, list(message.header), message.tensor]

    _, (source, tag, header, tensor) = run_on(2, program)
    assert (source, tag, header) == (0, 7, [41, -2, 0.5])
    assert [type(number) for number in header] == [int, int, float]
    assert torch.equal(tensor, numbers(3, 2))


def test_a_sent_tensor_may_be_overwritten_at_once(run_on):
    async def program(ctx):
        if ctx.rank == 0:
            tensor = torch.ones(500_000)
            await ctx.net.send(1, tensor)
            tensor.zero_()
            await ctx.net.send(1, tensor[:1], tag=1)
            return None
        await ctx.net.recv(0, tag=1)
        return (await ctx.net.recv(0)).tensor.min().item()

    assert run_on(2, program)[1] == 1


def test_messages_of_one_tag_come_in_order_and_those_of_others_do_not_disturb(run_on):
    async def program(ctx):
        if ctx.rank == 0:
            for i in range(6):
                await ctx.net.send(1, torch.tensor([i]), tag=i % 2)
            return None
        odd = [(await ctx.net.recv(0, tag=1)).tensor.item() for _ in range(3)]
        even = [(await ctx.net.recv(0, tag=0)).tensor.item() for _ in range(3)]
        return [odd, even]

    assert run_on(2, program)[1] == [[1, 3, 5], [0, 2, 4]]


@pytest.mark.parametrize("combine", ["copy", "sum", "max", "min"])
def test_what_arrives_is_combined_with_what_is_there(run_on, combine):
    async def program(ctx):
        own = numbers(5, seed=ctx.rank)
        if ctx.rank == 0:
            await ctx.net.send(1, own)
        else:
            await ctx.net.recv(0, own, combine=combine)
        return own

    functions = {"copy": lambda a, b: b, "sum": torch.add, "max": torch.maximum, "min": torch.minimum}
    expected = functions[combine](numbers(5, seed=1), numbers(5, seed=0))
    assert torch.equal(run_on(2, program)[1], expected)


def test_any_receives_the_message_that_came_first(run_on):
    async def program(ctx):
        if ctx.rank == 1:
            await ctx.net.recv(0, tag=1)  # until the message of rank 2 has arrived
        if ctx.rank:
            await ctx.net.send(0, torch.tensor([ctx.rank]))
            return None
        first = await ctx.net.recv(ANY)
        await ctx.net.send(1, torch.empty(0), tag=1)
        return [first.source, (await ctx.net.recv(ANY)).source]

    assert run_on(3, program)[0] == [2, 1]


def test_a_message_that_does_not_fit_is_named_and_the_next_can_be_received(run_on):
    async def program(ctx):
        if ctx.rank == 0:
            await ctx.net.send(1, torch.ones(5000), tag=1)
            await ctx.net.send(1, torch.tensor([7.0]), tag=2)
            return None
        try:
            await ctx.net.recv(0, torch.zeros(3), tag=1)
        except MismatchError as error:
            text = str(error)
        return [text, (await ctx.net.recv(0, tag=2)).tensor.item()]

    text, value = run_on(2, program)[1]
    assert text == "rank 0 sent float32[5000], but rank 1 expected float32[3]"
    assert value == 7
