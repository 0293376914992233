"""The parts of all ranks of a tensor group, computed one after the other in one process."""

import torch
from by_hand import first_batch, named

from paceline.context import Crossing
from paceline.replica.pieces.cutting import Layers, few_samples
from paceline.replica.pieces.part import PartReplica
from paceline.replica.replica import Replica

__all__ = ["compute_in_parts", "cut_in", "replicas_of"]


def cut_in(task, size, stages=1):
    layers = Layers.of(task, task.build_model(0), few_samples(*first_batch(task)), tensor=size)
    return layers.cut(stages)


def replicas_of(task, cut):
    held = range(len(cut.segments))
    return [
        PartReplica(Replica(task, task.build_model(0)), cut.at(position), held, keeps_whole=position == 0)
        for position in range(cut.shares.size)
    ]


def joined(tensors, how):
    together = torch.stack(tensors)
    total = together.amax(0) if how == "max" else together.sum(0)
    for tensor in tensors:
        tensor.copy_(total)


def compute_in_parts(task, size, stages=1):
    """Loss, and the gradients of each rank by name."""
    samples, batch = first_batch(task)
    cut = cut_in(task, size, stages)
    ranks = replicas_of(task, cut)
    for rank in ranks:
        rank.begin_batch()
    given, wanted = [Crossing()] * size, {}
    for segment in cut.segments:
        wanted[segment.number] = given[0].wanted
        given = [
            rank.forward(segment.number, batch, 0, samples, each)
            for rank, each in zip(ranks, given, strict=True)
        ]
        for place, how in segment.sums:
            joined([each.tensors[place] for each in given], how)
    gradients = [()] * size
    for segment in reversed(cut.segments):
        gradients = [
            rank.backward(segment.number, 0, each) for rank, each in zip(ranks, gradients, strict=True)
        ]
        for place, how in segment.gradient_sums:
            assert wanted[segment.number][place]
            joined([each[sum(wanted[segment.number][:place])] for each in gradients], how)
    return given[0].item(), cut, [named(rank) for rank in ranks]
