"""The parts of all ranks of a tensor group, computed one after the other in one process."""

import torch
from by_hand import first_batch, named

from paceline.context import BoundaryValues
from paceline.model.cutting.layers import Layers, few_samples
from paceline.model.replica import Replica

__all__ = ["compute_in_parts", "cut_in", "replicas_of"]


def cut_in(task, size, stages=1, *, sequence=False):
    few = few_samples(*first_batch(task))
    layers = Layers.of(task, task.build_model(0), few, tensor=size, sequence=sequence)
    return layers.cut(stages)


def replicas_of(task, cut):
    held = range(len(cut.segments))
    wholes = [Replica.of(task, task.build_model(0)) for _ in range(cut.shares.size)]
    wholes[0].build()
    return [
        whole.part(cut.at(position), held, keeps_whole=position == 0) for position, whole in enumerate(wholes)
    ]


def joined(tensors, how):
    """Return the value of each rank after the reduction."""
    size = len(tensors)
    if how == "gather":
        return [torch.cat(tensors) for _ in tensors]
    total = {"max": lambda: torch.stack(tensors).amax(0), "take": lambda: tensors[0]}.get(
        how, lambda: torch.stack(tensors).sum(0)
    )()
    return list(total.chunk(size)) if how in ("scatter", "take") else [total.clone() for _ in tensors]


def join(values, together):
    """Return the values of each rank after the reductions of some of them."""
    made = [list(each) for each in values]
    for each in together:
        for rank, value in enumerate(joined([row[each.place] for row in made], each.how)):
            made[rank][each.place] = value
    return made


def compute_in_parts(task, size, stages=1, *, sequence=False):
    """Return the loss, and the gradients of each rank by name."""
    samples, batch = first_batch(task)
    cut = cut_in(task, size, stages, sequence=sequence)
    ranks = replicas_of(task, cut)
    for rank in ranks:
        rank.begin_batch()
    given, wanted = [BoundaryValues()] * size, {}
    for segment in cut.segments:
        wanted[segment.number] = given[0].wanted
        given = [
            rank.forward(segment.number, batch, 0, samples, each)
            for rank, each in zip(ranks, given, strict=True)
        ]
        if segment.reductions:
            tensors = join([each.tensors for each in given], segment.reductions)
            given = [each._replace(tensors=tuple(own)) for each, own in zip(given, tensors, strict=True)]
    gradients = [()] * size
    for segment in reversed(cut.segments):
        gradients = [
            rank.backward(segment.number, 0, each) for rank, each in zip(ranks, gradients, strict=True)
        ]
        before = wanted[segment.number]
        assert all(before[each.place] for each in segment.gradient_reductions)
        own = [each._replace(place=sum(before[: each.place])) for each in segment.gradient_reductions]
        gradients = join(gradients, own)
    for name in {name for segment in cut.segments for name in segment.partial}:
        parts = [rank.gradient[rank.holding.places[name]] for rank in ranks]
        for part, total in zip(parts, joined(parts, "sum"), strict=True):
            part.copy_(total)
    return given[0].item(), cut, [named(rank) for rank in ranks]
