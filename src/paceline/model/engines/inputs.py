"""Batches on the device of a rank, and the random numbers of the passes that use them."""

from __future__ import annotations

from typing import Any

from paceline.context import Batch
from paceline.data.samples import Source
from paceline.model.devices import Accelerator
from paceline.model.engines.settings import Settings
from paceline.system.seeding import part_seed, rank_seed, seed_all


class Inputs:
    """Samples of one rank.

    Random numbers of a pass (for dropout, for example) depend on rank, step and micro-batch only, so they are the same
    in every cluster.
    """

    def __init__(self, settings: Settings, accelerator: Accelerator | None) -> None:
        self._settings = settings
        self._seed = rank_seed(settings.seed, settings.rank)
        self._accelerator = accelerator

    def fetch(self, batch: Batch, samples: Source, part: int = 0) -> Any:
        """Return the samples of a batch, or of its micro-batch `part`. Seed the pass that uses them."""
        content = samples.content(batch, part_seed(self._seed, batch.step, part))
        self.seed_part(batch, part)
        return content if self._accelerator is None else self._accelerator.take(content)

    def seed_part(self, batch: Batch, part: int = 0) -> None:
        """Seed the next pass.

        If several models are trained in turn, all turns of a global batch have the same seed.
        """
        turn = batch.step // (len(self._settings.task.turns) or 1)
        self._seed_all(part_seed(self._seed, turn, part))

    def seed_test(self, number: int) -> None:
        """Seed the evaluation of a test batch. The seed does not depend on the rank."""
        self._seed_all(part_seed(self._settings.seed, 0, number))

    def _seed_all(self, seed: int) -> None:
        seed_all(seed)
        if self._accelerator is not None:
            self._accelerator.seed(seed)
