"""A batch through the segments of a model one by one, forward and backward, in one process."""

from functools import cache

from paceline.context import Crossing
from paceline.replica.batches import GlobalBatches
from paceline.replica.pieces.cutting import Layers, few_samples
from paceline.replica.pieces.part import PartReplica
from paceline.replica.replica import Replica
from paceline.replica.samples import Samples
from paceline.replica.steps import micro_batches

__all__ = ["compute_by_hand", "compute_whole", "cut_of", "first_batch", "layers_of"]


def first_batch(task, step=0):
    samples = Samples.of(task)
    return samples, GlobalBatches.of(task, samples, 0).slice(step, 0, 1)


@cache
def layers_of(task):
    """Tracing takes its time, so a task is traced once."""
    return Layers.of(task, task.build_model(0), few_samples(*first_batch(task)))


def cut_of(task, stages, cuts=(), finer=1):
    return layers_of(task).cut(stages, cuts, finer=finer)


def compute_whole(task, step=0):
    """Loss, gradients by name and buffers of the whole model."""
    samples, batch = first_batch(task, step)
    replica = Replica(task, task.build_model(0))
    loss = replica.compute(batch, samples)
    return loss, named(replica), dict(replica.module.named_buffers())


def compute_by_hand(task, segments, *, microbatches=1, parted=False, step=0):
    """The same, segment by segment; with each backward in its two parts, the weights last of all, if `parted`."""
    samples, batch = first_batch(task, step)
    cut = cut_of(task, segments)
    part = PartReplica(Replica(task, task.build_model(0)), cut, range(segments), keeps_whole=False)
    part.begin_batch()
    loss, micros = 0.0, micro_batches(batch, microbatches)
    for number, micro in enumerate(micros):
        given = Crossing()
        for segment in range(segments):
            made = part.forward(segment, micro, number, samples, given)
            given = made if isinstance(made, Crossing) else Crossing()
        loss += made.item() * micro.count / batch.count
    for number in range(len(micros)):
        gradients = ()
        for segment in reversed(range(segments)):
            walk = part.backward_inputs if parted else part.backward
            gradients = walk(segment, number, gradients)
    for number in range(len(micros) * parted):
        for segment in range(segments):
            part.backward_weights(segment, number)
    part.end_batch()
    return loss, named(part), dict(part.module.named_buffers())


def named(replica):
    views = replica.layout.views(replica.gradient)
    return {name: view.clone() for name, view in zip(replica.layout.names, views, strict=True)}
