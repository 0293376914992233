"""What a role program may rely on, in every world alike."""

import pytest
import torch
from refusals import refused
from tasks import WORLDS, a_task, numbers, simulated

import paceline as pl
from paceline.context import ANY
from paceline.errors import Cancelled, MismatchError


@pytest.fixture(params=WORLDS)
def run_on(request):
    """Runs a program on so many workers of this world; gives what each returned."""
    return lambda workers, program: pl.run_program(program, WORLDS[request.param](workers)).results


# Who a rank is


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


# Messages


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
            await ctx.net.recv(0, tag=1)  # until that of rank 2 has come
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


# Handles


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
        answer = await ctx.net.recv(2, tag=2)  # comes only if the relay goes on meanwhile
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


def test_first_gives_the_one_that_is_done_first(run_on):
    async def program(ctx):
        if ctx.rank == 1:
            await ctx.net.recv(0, tag=1)  # until that of rank 2 has come
        if ctx.rank:
            await ctx.net.send(0, torch.tensor([ctx.rank]))
            return None
        handles = [ctx.start(ctx.net.recv(1)), ctx.start(ctx.net.recv(2))]
        winner = await ctx.first(handles)
        await ctx.net.send(1, torch.empty(0), tag=1)
        open_ones = [handle for handle in handles if not handle.done]
        last = await ctx.first(open_ones)
        return [handles.index(winner), (await winner).source, handles.index(last), (await last).source]

    assert run_on(3, program)[0] == [1, 2, 0, 1]


def test_first_gives_the_leftmost_where_several_are_done(run_on):
    async def program(ctx):
        handles = [ctx.start(ctx.sleep(0.03)), ctx.start(ctx.sleep(0.02)), ctx.start(ctx.sleep(0.01))]
        await ctx.sleep(0.06)
        first = await ctx.first(handles)
        return handles.index(first)

    assert run_on(1, program) == [0]


def test_the_ones_that_first_left_behind_disturb_no_later_wait(run_on):
    async def program(ctx):
        quick, slow = ctx.start(ctx.sleep(0.02)), ctx.start(ctx.sleep(0.06))
        await ctx.first([quick, slow])
        began_s = ctx.now()
        await ctx.sleep(0.2)  # the slow one ends in the midst of it
        return [ctx.now() - began_s, slow.done]

    ((slept_s, done),) = run_on(1, program)
    assert slept_s >= 0.2 - 1e-9
    assert done


def test_time_never_runs_backwards(run_on):
    async def program(ctx):
        if ctx.rank:
            for _ in range(3):
                await ctx.net.recv(0)
            return None
        times = [ctx.now()]
        for _ in range(3):
            handle = ctx.start(ctx.net.send(1, torch.ones(10)))
            await ctx.sleep(0.02)
            times.append(ctx.now())
            await ctx.first([handle])
            times.append(ctx.now())
        return times

    times = run_on(2, program)[0]
    assert times == sorted(times)


def test_sleep_takes_its_time(run_on):
    async def program(ctx):
        began_s = ctx.now()
        await ctx.sleep(0.05)
        return ctx.now() - began_s

    assert run_on(1, program)[0] >= 0.05 - 1e-9


def test_a_coroutine_that_sleeps_is_woken_while_its_rank_waits_for_a_message(run_on):
    async def program(ctx):
        if ctx.rank:
            await ctx.net.recv(0)
            await ctx.net.send(0, torch.empty(0))
            return None

        async def naps_often():
            for _ in range(20):
                await ctx.sleep(0.002)
            await ctx.net.send(1, torch.empty(0))

        ctx.start(naps_often())
        await ctx.net.recv(1)  # comes only if the coroutine is woken meanwhile
        return "woken"

    assert run_on(2, program)[0] == "woken"


# Cancelling


def test_a_cancelled_receive_is_done_and_raises_where_it_is_awaited(run_on):
    async def program(ctx):
        handle = ctx.start(ctx.net.recv(1 - ctx.rank))
        handle.cancel()
        try:
            await handle
        except Cancelled:
            return handle.done

    assert run_on(2, program) == [True, True]


def test_a_program_may_end_with_a_cancelled_handle_that_nobody_awaits(run_on):
    async def program(ctx):
        ctx.start(ctx.net.recv(1 - ctx.rank)).cancel()
        return "well"

    assert run_on(2, program) == ["well", "well"]


def test_a_cancelled_receive_takes_no_message(run_on):
    async def program(ctx):
        if ctx.rank == 0:
            await ctx.net.recv(1, tag=1)
            await ctx.net.send(1, torch.tensor([5.0]))
            return None
        handle = ctx.start(ctx.net.recv(0))
        handle.cancel()
        await ctx.net.send(0, torch.empty(0), tag=1)
        return (await ctx.net.recv(0)).tensor.item()

    assert run_on(2, program)[1] == 5


def test_cancelling_what_is_done_changes_nothing(run_on):
    async def program(ctx):
        handle = ctx.start(ctx.sleep(0))
        await handle
        handle.cancel()
        return await handle

    assert run_on(1, program) == [None]


def test_a_cancelled_coroutine_runs_its_finally_and_goes_no_further(run_on):
    async def program(ctx):
        notes = []

        async def waits():
            try:
                notes.append("began")
                await ctx.net.recv(1 - ctx.rank)
                notes.append("received")
            finally:
                notes.append("cleaned up")

        handle = ctx.start(waits())
        await ctx.sleep(0.01)
        handle.cancel()
        return [notes, handle.done]

    assert run_on(2, program) == [[["began", "cleaned up"], True]] * 2


def test_whoever_awaits_a_handle_that_is_cancelled_learns_of_it(run_on):
    async def program(ctx):
        handle = ctx.start(ctx.net.recv(1 - ctx.rank))

        async def waits():
            try:
                await handle
            except Cancelled:
                return "cancelled"

        waiter = ctx.start(waits())
        await ctx.sleep(0.01)
        handle.cancel()
        return await waiter

    assert run_on(2, program) == ["cancelled", "cancelled"]


def test_first_of_handles_one_of_which_is_cancelled_gives_that_one(run_on):
    async def program(ctx):
        handles = [ctx.start(ctx.net.recv(1 - ctx.rank)), ctx.start(ctx.net.recv(1 - ctx.rank, tag=1))]

        async def cancels():
            await ctx.sleep(0.01)
            handles[1].cancel()

        ctx.start(cancels())
        winner = await ctx.first(handles)
        handles[0].cancel()
        return handles.index(winner)

    assert run_on(2, program) == [1, 1]


def test_a_half_sent_message_that_is_cancelled_arrives_whole(run_on):
    async def program(ctx):
        if ctx.rank:
            await ctx.sleep(0.05)
            return (await ctx.net.recv(0)).tensor.min().item()
        tensor = torch.ones(1_000_000)  # larger than a ring
        handle = ctx.start(ctx.net.send(1, tensor))
        handle.cancel()
        tensor.zero_()
        return handle.done

    assert run_on(2, program) == [True, 1]


class Cancels:
    """Computes a gradient, cancels another half way, and computes the first again."""

    def roles(self, workers):
        return ("worker",) * workers

    async def worker(self, ctx):
        async for batch in ctx.batches():
            if batch.step == 0:
                await ctx.model.compute(batch)
                first, expected = batch, ctx.model.gradient.clone()
                continue
            handle = ctx.start(ctx.model.compute(batch))
            await ctx.sleep(0.005)
            handle.cancel()
            await ctx.model.compute(first)
            assert torch.equal(ctx.model.gradient, expected), "the cancelled computation went on in it"


def slow_tanh():
    from torch import nn

    class Slow(nn.Module):
        def forward(self, x):
            import time

            time.sleep(0.03)
            return torch.tanh(x)

    return nn.Sequential(nn.Linear(4, 5), Slow(), Slow(), nn.Linear(5, 2)).double()


@pytest.mark.parametrize("world", WORLDS)
def test_a_cancelled_gradient_does_not_disturb_the_next(world):
    pl.train(a_task(model=slow_tanh), Cancels(), WORLDS[world](1), steps=2)


# Windows


def test_a_window_is_memory_that_all_ranks_see(run_on):
    async def program(ctx):
        window = ctx.net.window("board", rows=ctx.net.size, like=torch.zeros(5))
        window.tensor[ctx.rank] = ctx.rank + 1.0
        await window.barrier()
        return window.tensor.sum(1)

    for seen in run_on(3, program):
        assert seen.tolist() == [5, 10, 15]


def test_windows_of_two_names_or_groups_are_two(run_on):
    async def program(ctx):
        like = torch.zeros(1)
        both = ctx.net.split((0, 1)).window("a", rows=1, like=like)
        other = ctx.net.split((0, 1)).window("b", rows=1, like=like)
        own = ctx.net.split((ctx.rank,)).window("a", rows=1, like=like)
        own.tensor.fill_(7.0 + ctx.rank)
        if ctx.rank == 0:
            both.tensor.fill_(1)
            other.tensor.fill_(2)
        await both.barrier()
        return [both.tensor.item(), other.tensor.item(), own.tensor.item()]

    assert run_on(2, program) == [[1, 2, 7], [1, 2, 8]]


def test_nobody_passes_a_barrier_before_the_last_has_come(run_on):
    async def program(ctx):
        window = ctx.net.window("board", rows=1, like=torch.zeros(ctx.net.size, dtype=torch.int64))
        seen = []
        for visit in range(1, 30):
            if ctx.rank == visit % 3:
                await ctx.sleep(0.0005)
            window.tensor[0, ctx.rank] = visit
            await window.barrier()
            seen.append(int(window.tensor.min()) >= visit)
        return all(seen)

    assert run_on(3, program) == [True] * 3


@pytest.mark.parametrize("combine", ["sum", "max", "min"])
def test_a_window_is_reduced_in_the_order_of_the_rows_given(run_on, combine):
    async def program(ctx):
        window = ctx.net.window("board", rows=3, like=torch.zeros(7))
        window.tensor[ctx.rank] = numbers(7, seed=ctx.rank, dtype=torch.float32)
        await window.barrier()
        into = torch.zeros(4)
        await window.reduce(slice(2, 6), [2, 0, 1], into, combine=combine)
        return into

    functions = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}
    zero, one, two = (numbers(7, seed=seed, dtype=torch.float32)[2:6] for seed in range(3))
    expected = functions[combine](functions[combine](two, zero), one)
    assert all(torch.equal(result, expected) for result in run_on(3, program))


# Reports


class Reports:
    """Reports a value a step."""

    def roles(self, workers):
        return ("worker",) * workers

    async def worker(self, ctx):
        async for batch in ctx.batches():
            await ctx.model.compute(batch)
            ctx.log.report(squared=float(batch.step**2), loss=5.0)


@pytest.mark.parametrize("world", WORLDS)
def test_what_a_strategy_reports_is_in_the_record_of_its_step(world):
    run = pl.train(a_task(), Reports(), WORLDS[world](2), steps=3)
    assert [record["squared"] for record in run.history] == [0, 1, 4]
    assert run.loss == 5


@pytest.mark.parametrize("world", WORLDS)
def test_bytes_and_messages_are_counted_where_they_are_sent(world):
    async def program(ctx):
        if ctx.rank == 0:
            await ctx.net.send(1, torch.zeros(10))
            await ctx.net.send(1, torch.zeros(0))
        else:
            await ctx.net.recv(0)
            await ctx.net.recv(0)

    run = pl.run_program(program, WORLDS[world](2))
    assert run.bytes_sent == [40, 0]
    assert run.messages_sent == [2, 0]
