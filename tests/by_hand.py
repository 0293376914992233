"""Computes a batch segment by segment, forward and backward, in one process."""

from functools import cache

from paceline.context import BoundaryValues
from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples
from paceline.model.cutting.layers import Layers, few_samples
from paceline.model.replica import Replica
from paceline.model.steps import micro_batches

__all__ = ["compute_by_hand", "compute_whole", "cut_of", "first_batch", "layers_of"]


def first_batch(task, step=0):
    samples = Samples.of(task)
    return samples, GlobalBatches.of(task, samples, 0).slice(step, 0, 1)


@cache
def layers_of(task):
    """Tracing is slow, so each task is traced once."""
    return Layers.of(task, task.build_model(0), few_samples(*first_batch(task)))


def cut_of(task, stages, cuts=(), finer=1):
    return layers_of(task).cut(stages, cuts, finer=finer)


def compute_whole(task, step=0):
    """Return loss, gradients by name and buffers of the whole model."""
    samples, batch = first_batch(task, step)
    replica = Replica.of(task, task.build_model(0))
    loss = replica.compute(batch, samples)
    return loss, named(replica), dict(replica.module.named_buffers())


def compute_by_hand(task, segments, *, microbatches=1, parted=False, step=0):
    """Return the same, computed segment by segment.

    With `parted`, backward passes are in two parts, the weights last.
    """
    samples, batch = first_batch(task, step)
    cut = cut_of(task, segments)
    part = Replica.of(task, task.build_model(0)).part(cut, range(segments))
    part.begin_batch()
    loss, micros = 0.0, micro_batches(batch, microbatches)
    for number, micro in enumerate(micros):
        given = BoundaryValues()
        for segment in range(segments):
            made = part.forward(segment, micro, number, samples, given)
            given = made if isinstance(made, BoundaryValues) else BoundaryValues()
        loss += made.item() * micro.count / batch.count
    for number in range(len(micros)):
        gradients = ()
        for segment in reversed(range(segments)):
            gradients = part.backward(segment, number, gradients, "inputs" if parted else "both")
    for number in range(len(micros) * parted):
        for segment in range(segments):
            part.backward(segment, number, (), "weights")
    part.end_batch()
    return loss, named(part), dict(part.module.named_buffers())


def named(replica):
    views = replica.layout.views(replica.gradient)
    return {name: view.clone() for name, view in zip(replica.layout.names, views, strict=True)}
