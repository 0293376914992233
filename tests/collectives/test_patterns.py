"""Every pattern, on every number of ranks, in every world, gives the result of its definition."""

import math

import pytest
import torch
from refusals import has, refused, unknown
from tasks import WORLDS, a_task, numbers, simulated

import paceline as pl
from paceline import collectives
from paceline.collectives.tensors import overwrite
from paceline.errors import MismatchError
from paceline.schedules.collectives import ALL_REDUCE, COLLECTIVES

SIZES = (1, 2, 3, 4, 5)
LENGTHS = (0, 1, 3, 13)  # fewer elements than ranks, as many, and uneven chunks
ALGORITHMS = [*ALL_REDUCE, "shared"]
REDUCERS = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin}


def own(rank, length, dtype=torch.float64):
    return numbers(length, seed=rank, dtype=dtype)


def run(program, size, world="simulated"):
    return pl.run_program(program, WORLDS[world](size)).results


def assert_close(got, expected):
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_reduce_leaves_the_combination_on_every_rank(algorithm, size):
    async def program(ctx):
        results = []
        for length in LENGTHS:
            for op in REDUCERS:
                results.append(own(ctx.rank, length))
                await collectives.all_reduce(ctx, results[-1], algorithm, op=op)
        return results

    given = [torch.stack([own(rank, length) for rank in range(size)]) for length in LENGTHS]
    expected = [reducer(each, dim=0) for each in given for reducer in REDUCERS.values()]
    for results in run(program, size):
        for result, wanted in zip(results, expected, strict=True):
            assert_close(result, wanted)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("algorithm", ["auto", *ALGORITHMS])
def test_all_ranks_get_the_same_bits(algorithm, world):
    async def program(ctx):
        tensor = own(ctx.rank, 1003, torch.float32)
        await collectives.all_reduce(ctx, tensor, algorithm)
        return tensor

    first, *others = run(program, 4, world)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_world_gives_the_same_bits(algorithm):
    async def program(ctx):
        tensor = own(ctx.rank, 1003, torch.float32)
        await collectives.all_reduce(ctx, tensor, algorithm)
        return tensor

    assert torch.equal(*(run(program, 3, world)[0] for world in WORLDS))


def test_torchs_own_all_reduce_gives_the_same_sum():
    async def program(ctx):
        tensor = own(ctx.rank, 13)
        await collectives.all_reduce(ctx, tensor, "native")
        return tensor

    expected = sum(own(rank, 13) for rank in range(3))
    for result in run(program, 3, "local"):
        assert_close(result, expected)


def test_torchs_own_all_reduce_is_refused_where_time_is_virtual():
    async def program(ctx):
        await collectives.all_reduce(ctx, torch.ones(3), "native")

    with refused("algorithm", "native"):
        run(program, 2)


UNEVEN = [slice(0, 900), slice(900, 900), slice(900, 1003)]


@pytest.mark.parametrize("world", WORLDS)
def test_parts_of_any_length_are_summed_in_the_rings_order_and_gathered(world):
    async def program(ctx):
        part = await collectives.reduce_scatter(ctx, own(ctx.rank, 1003, torch.float32), parts=UNEVEN)
        whole = torch.full((1003,), -1.0)
        whole[UNEVEN[ctx.rank]] = part
        await collectives.all_gather(ctx, whole, parts=UNEVEN)
        return whole

    a, b, c = (own(rank, 1003, torch.float32) for rank in range(3))
    expected = torch.cat([((b + c) + a)[UNEVEN[0]], ((a + b) + c)[UNEVEN[2]]])
    assert all(torch.equal(whole, expected) for whole in run(program, 3, world))


@pytest.mark.parametrize(
    ("parts", "refusal"),
    [
        ([slice(0, 4), slice(5, 7)], refused("parts")),
        ([slice(0, 4), slice(4, 6)], refused("parts", has(2), bound=has(7))),
        ([slice(0, 7)], refused("parts", has(7), bound=has(2))),
    ],
)
def test_parts_that_do_not_make_up_the_tensor_are_refused(parts, refusal):
    async def program(ctx):
        await collectives.all_gather(ctx, torch.ones(7), parts=parts)

    with refusal:
        run(program, 2)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_pattern_gives_what_its_definition_says(size, world):
    length, root = 13, size - 1

    async def program(ctx):
        results = {}
        for goal in ("broadcast", "reduce"):
            for algorithm in COLLECTIVES[goal]:
                tensor = results[f"{goal} {algorithm}"] = own(ctx.rank, length)
                await getattr(collectives, goal)(ctx, tensor, root, algorithm=algorithm)
        results["scatter"] = await collectives.scatter(ctx, own(ctx.rank, length), root)
        results["reduce_scatter"] = await collectives.reduce_scatter(ctx, own(ctx.rank, length))
        for name, words in (("gather", [root]), ("all_gather", [])):
            results[name] = own(ctx.rank, length)
            await getattr(collectives, name)(ctx, results[name], *words)
        results["all_to_all"] = own(ctx.rank, 2 * size)
        await collectives.all_to_all(ctx, results["all_to_all"])
        await collectives.barrier(ctx)
        return results

    given = torch.stack([own(rank, length) for rank in range(size)])
    pieces = torch.tensor_split(torch.arange(length), size)
    gathered = torch.cat([given[rank][piece] for rank, piece in enumerate(pieces)])
    exchanged = torch.stack([own(rank, 2 * size).view(size, 2) for rank in range(size)])
    for rank, results in enumerate(run(program, size, world)):
        for algorithm in COLLECTIVES["broadcast"]:
            assert_close(results[f"broadcast {algorithm}"], given[root])
        if rank == root:
            for algorithm in COLLECTIVES["reduce"]:
                assert_close(results[f"reduce {algorithm}"], given.sum(0))
            assert_close(results["gather"], gathered)
        assert_close(results["scatter"], given[root][pieces[rank]])
        assert_close(results["reduce_scatter"], given.sum(0)[pieces[rank]])
        assert_close(results["all_gather"], gathered)
        assert_close(results["all_to_all"], exchanged[:, rank].reshape(-1))


@pytest.mark.parametrize("world", WORLDS)
def test_nobody_passes_a_barrier_before_the_last_has_come(world):
    async def program(ctx):
        await ctx.sleep(0.01 * ctx.rank)
        came_s = ctx.now()
        await collectives.barrier(ctx)
        return [came_s, ctx.now()]

    times = run(program, 4, world)
    assert max(came_s for came_s, _ in times) <= min(left_s for _, left_s in times)


@pytest.mark.parametrize("world", WORLDS)
def test_several_collectives_may_be_under_way_at_once(world):
    async def program(ctx):
        tensors = [own(ctx.rank + 10 * i, 100) for i in range(4)]
        handles = [ctx.start(collectives.all_reduce(ctx, tensor, "ring")) for tensor in tensors]
        for handle in reversed(handles):
            await handle
        return tensors

    expected = [sum(own(rank + 10 * i, 100) for rank in range(3)) for i in range(4)]
    for tensors in run(program, 3, world):
        for tensor, wanted in zip(tensors, expected, strict=True):
            assert_close(tensor, wanted)


@pytest.mark.parametrize("world", WORLDS)
def test_two_groups_do_not_disturb_each_other(world):
    async def program(ctx):
        tensor = torch.tensor([float(ctx.rank)])
        group = [0, 2] if ctx.rank % 2 == 0 else [3, 1]
        await collectives.all_reduce(ctx, tensor, "ring", group=group)
        await collectives.all_reduce(ctx, tensor, "ring", group=range(4))
        return tensor.item()

    assert run(program, 4, world) == [12, 12, 12, 12]


@pytest.mark.parametrize("world", WORLDS)
def test_a_pull_is_answered_with_what_the_other_holds(world):
    async def program(ctx):
        if ctx.rank == 0:
            return [await collectives.answer(ctx, torch.full((3,), 7.0)) for _ in range(2)]
        tensor = torch.zeros(3)
        await collectives.pull(ctx, tensor, 0)
        return tensor.tolist()

    answered, *pulled = run(program, 3, world)
    assert sorted(answered) == [1, 2]
    assert pulled == [[7, 7, 7]] * 2


def test_a_tensor_of_any_shape_and_stride_is_reduced_in_place():
    async def program(ctx):
        tensor = torch.arange(6.0).view(2, 3).t()
        await collectives.all_reduce(ctx, tensor, "ring")
        return tensor.contiguous()

    assert all(torch.equal(result, 2 * torch.arange(6.0).view(2, 3).t()) for result in run(program, 2))


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_the_gradients_norm_is_summed_from_the_shards(shards):
    class Norms:
        def roles(self, workers):
            return ("worker",) * workers

        async def worker(self, ctx):
            async for _ in ctx.batches():
                overwrite(ctx.model.gradient, numbers(len(ctx.model.gradient)))
                shard = ctx.model.shards(len(ctx.workers))[ctx.rank]
                ctx.log.report(norm=await collectives.gradient_norm(ctx.net, ctx.model.gradient[shard]))

    run = pl.train(a_task(clip_norm=1.0), Norms(), simulated(shards), steps=1)
    assert run.history[0]["norm"] == pytest.approx(float(numbers(37).norm()), rel=1e-14)
    blank = pl.train(a_task(), Norms(), simulated(shards, math="none"), steps=1)
    assert math.isnan(blank.history[0]["norm"])


# Refusals


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("algorithm", ["ring", "tree", "recursive-doubling"])
def test_tensors_of_two_lengths_are_named_whole(algorithm, world):
    async def program(ctx):
        await collectives.all_reduce(ctx, torch.ones(10 + ctx.rank), algorithm)

    with pytest.raises(MismatchError):
        run(program, 2, world)


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ({"algorithm": "rign"}, unknown("algorithm", "rign", nearest="ring")),
        ({"op": "product"}, unknown("op", "product")),
        ({"group": [0, 0]}, refused("group")),
        ({"group": [0, 9]}, refused("group")),
        ({"group": []}, refused("group")),
    ],
)
def test_words_that_do_not_fit_are_refused(words, refusal):
    async def program(ctx):
        await collectives.all_reduce(ctx, torch.ones(3), **words)

    with refusal:
        run(program, 2)


def test_a_group_must_contain_who_calls():
    async def program(ctx):
        await collectives.all_reduce(ctx, torch.ones(3), group=[1, 2])

    with refused("group", (1, 2), bound=has(0)):
        run(program, 3)


def test_a_root_must_be_of_the_group():
    async def program(ctx):
        await collectives.broadcast(ctx, torch.ones(3), root=7)

    with refused("root", 7, bound=has(0, 2)):
        run(program, 3)


def test_an_all_to_all_needs_equal_chunks():
    async def program(ctx):
        await collectives.all_to_all(ctx, torch.ones(4))

    with refused("tensor", 4, bound=has(3)):
        run(program, 3)


def test_a_mean_of_whole_numbers_is_refused():
    async def program(ctx):
        await collectives.all_reduce(ctx, torch.ones(4, dtype=torch.int64), op="mean")

    with refused("op", "torch.int64"):
        run(program, 2)


def test_what_is_not_a_program_is_refused():
    with refused("program", "program"):
        pl.run_program("program", simulated(2))
