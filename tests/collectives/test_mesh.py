"""Nets along the axes of a mesh. Messages and collectives of different nets are independent."""

import math

import pytest
import torch
from refusals import has, refused, unknown
from tasks import WORLDS, simulated

import paceline as pl
from paceline.collectives import all_reduce, broadcast
from paceline.collectives.mesh import Mesh

SHAPES = {
    "16 x 8 x 2": {"data": 16, "pipeline": 8, "tensor": 2},
    "5 x 3": {"data": 5, "tensor": 3},
    "1 x 12 x 1": {"data": 1, "pipeline": 12, "tensor": 1},
    "16 x 16 x 16": {"data": 16, "pipeline": 16, "tensor": 16},
    "64 x 64": {"data": 64, "tensor": 64},
}


def coordinates(rank, axes):
    found = {}
    for name, size in reversed(axes.items()):
        rank, found[name] = divmod(rank, size)
    return found


def along(rank, axis, axes):
    """Return the ranks that differ from one rank along one axis only."""
    own = coordinates(rank, axes)
    others = {name: place for name, place in own.items() if name != axis}
    return [
        other
        for other in range(math.prod(axes.values()))
        if others.items() <= coordinates(other, axes).items()
    ]


async def sums_along(ctx, axes):
    """For all axes at the same time: the sum of the ranks along the axis, their number, and the first rank."""
    mesh, found = Mesh(ctx.net, **axes), []
    nets = [mesh[axis] for axis in axes]
    tensors = [torch.tensor([float(ctx.rank), 1.0]) for _ in nets]
    under_way = [
        ctx.start(all_reduce(net, tensor, "recursive-doubling"))
        for net, tensor in zip(nets, tensors, strict=True)
    ]
    for handle in under_way:
        await handle
    for net, tensor in zip(nets, tensors, strict=True):
        first = torch.tensor([float(ctx.rank)])
        await broadcast(net, first, root=0)
        found.append([*tensor.tolist(), first.item()])
    return found


@pytest.mark.parametrize(
    "shape",
    [*list(SHAPES)[:-2], *(pytest.param(shape, marks=pytest.mark.slow) for shape in list(SHAPES)[-2:])],
)
def test_collectives_along_each_axis_of_a_mesh_do_not_disturb_each_other(shape):
    axes = SHAPES[shape]
    ranks = math.prod(axes.values())
    results = pl.run_program(lambda ctx: sums_along(ctx, axes), simulated(ranks)).results
    for rank in range(0, ranks, max(1, ranks // 40)):
        members = [along(rank, axis, axes) for axis in axes]
        assert results[rank] == [[sum(group), len(group), group[0]] for group in members]


@pytest.mark.parametrize("world", WORLDS)
def test_a_mesh_is_the_same_in_every_world(world):
    axes = {"data": 2, "pipeline": 1, "tensor": 3}
    results = pl.run_program(lambda ctx: sums_along(ctx, axes), WORLDS[world](6)).results
    assert results == [
        [[sum(group), len(group), group[0]] for group in (along(rank, axis, axes) for axis in axes)]
        for rank in range(6)
    ]


def test_the_last_axis_joins_neighbours():
    async def program(ctx):
        mesh = Mesh(ctx.net, data=2, tensor=2)
        return [mesh.position("data"), mesh.position("tensor"), mesh["tensor"].rank, mesh["tensor"].size]

    assert pl.run_program(program, simulated(4)).results == [
        [0, 0, 0, 2],
        [0, 1, 1, 2],
        [1, 0, 0, 2],
        [1, 1, 1, 2],
    ]


@pytest.mark.parametrize(
    ("axes", "refusal"),
    [
        ({"data": 3}, refused("mesh", "data=3", bound=has(4))),
        ({"data": 0}, refused("data", 0, bound=has(1))),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(axes, refusal):
    async def program(ctx):
        Mesh(ctx.net, **axes)

    with refusal:
        pl.run_program(program, simulated(4))


def test_an_axis_that_is_not_there_is_refused():
    async def program(ctx):
        Mesh(ctx.net, data=4)["tensor"]

    with unknown("axis", "tensor"):
        pl.run_program(program, simulated(4))
