"""The programs of a rank, from one generation of the run to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.clusters.rank.rank import Rank


async def run_to_end(rank: Rank) -> Any:
    """Run the program for each generation until the end of the run. Return the result of the last generation."""
    while True:
        result = await rank.run_program(rank)
        if end_program(rank):
            return result
        rank.begin_generation(rank.generation_end)


def end_program(rank: Rank) -> bool:
    """Complete all operations, and save a checkpoint if the run has them. Return whether the run ends here."""
    rank.settle()
    for each in (rank, *rank.twins):
        each.drawn = each.step + 1 if each.own_pace else each.drawn
    end = rank.generation_end
    rank.stopped = rank.announced_end == 2 * end + 1
    ends = rank.stopped or end >= rank.last_step
    if rank.checkpoint_writer is not None:
        rank.checkpoint_writer.save(end, is_last=ends)
    return ends


def has_ended_before(rank: Rank) -> bool:
    """Return whether the run resumes from a checkpoint at which it had already ended."""
    return 0 < rank.job.generations.first == rank.begun and rank.begun >= rank.last_step
