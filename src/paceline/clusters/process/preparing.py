"""Work of a rank before the run's clock starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from paceline.clusters.rank.loss_trial import request_trial
from paceline.clusters.rank.sharing import SharedEvaluation
from paceline.context import Context
from paceline.model.compiling import warm_up

if TYPE_CHECKING:
    from paceline.clusters.process.context import ProcessContext


def prepare(ctx: ProcessContext, *, shares_evaluations: bool) -> None:
    """Build, cut and compile the model.

    On emulated machines, pass `shares_evaluations=False`: workers that wait for each other in an evaluation would
    change the run's times.
    """
    job, declared = ctx.job, ctx.job.declared
    ctx.log.evaluations.sharing = sharing = SharedEvaluation.of(ctx) if shares_evaluations else None
    if not declared.holds_parts and job.task is not None:
        ctx.model.replica.build()
    request_trial(job, ctx.rank)
    if ctx.rank in ctx.workers:
        declared.prepare(cast(Context, ctx))
    if not job.compiles:
        return
    batches, samples = [], None
    if ctx.rank in ctx.workers:
        data, samples = ctx.data, ctx.data.samples
        batches = [data.batch_of(ctx.rank, step) for step in data.first_and_last]
    warm_up(ctx.model.replica, batches, samples, _evaluation(ctx, sharing))


def _evaluation(ctx: ProcessContext, sharing: SharedEvaluation | None) -> Callable[[], object] | None:
    """Return the function that this rank calls in an evaluation. None if it does not evaluate."""
    if sharing is not None:
        return sharing.look
    test = ctx.test_samples if ctx.is_reporter and ctx.job.evaluate_every else None
    return None if test is None else lambda: ctx.model.replica.inspection.evaluate(test)
