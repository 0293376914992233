"""The conformance suite of one strategy, as a class for pytest."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
import pytest
import torch

import paceline as pl
from paceline.errors import ConfigurationError
from paceline.testing import checks
from paceline.testing.tasks import (
    ABOUT_UPDATES,
    CASES,
    OPTIMIZERS,
    WORKERS,
    batch_norm_task,
    in_turn,
    make_task,
    odd_task,
)
from paceline.testing.worlds import WORLDS, simulated

# Process tests are slow: each case and each optimizer is tested once or twice, on 1 to 4 workers in turn.
_IN_PROCESSES = in_turn(zip(WORKERS * 3), CASES, OPTIMIZERS)
_WITH_BATCH_NORM = [*itertools.product(["simulated"], WORKERS), ("local", 2), ("local", 3)]


class StrategySuite:
    """Conformance tests of a strategy. Subclass it with a name that begins with `Test`, and set `spec`.

    The strategy is trained on 1 to 4 workers, in simulation and in processes. The tasks have uneven batches, frozen,
    unused and tied layers, parameter groups, clipping, schedules, BatchNorm, and several optimizers.

    - A synchronous strategy (the default) gives the weights of `single`.
    - A reproducible strategy gives the same bits in processes and in simulation. Stragglers, checkpoints and resuming
      do not change any bit.
    - Every strategy completes all its steps and ends with finite weights. Its history is consistent. Two simulations
      with the same seed are identical, byte for byte, and another seed gives another run.
    """

    spec: ClassVar[str]
    """The strategy as text, such as "mine:k=2". Its name must be registered, or belong to an entry point."""

    synchronous: ClassVar[bool] = True
    """Whether it gives the weights of `single`. Set False for model averaging, for instance."""

    reproducible: ClassVar[bool] = True
    """Whether the weights depend on the task and the seed only. Set this and `synchronous` to False if they depend on
    which worker is quicker."""

    fewest_workers: ClassVar[int] = 1
    """Minimum number of workers of the strategy, at most 3. Tests with fewer are skipped."""

    __test__ = False  # set for subclasses only

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__test__ = True
        _check_settings(cls)
        # A strategy may be defined in the test file, which other processes may be unable to import.
        cloudpickle.register_pickle_by_value(sys.modules[cls.__module__])

    @pytest.mark.parametrize("workers", WORKERS)
    @pytest.mark.parametrize("case", CASES)
    def test_every_task_in_simulation(self, case: str, workers: int) -> None:
        for optimizer in OPTIMIZERS if case in ABOUT_UPDATES else ["momentum"]:
            self._check_weights("simulated", workers, case, optimizer)

    @pytest.mark.parametrize(("workers", "case", "optimizer"), _IN_PROCESSES)
    def test_every_task_in_processes(self, workers: int, case: str, optimizer: str) -> None:
        self._check_weights("local", workers, case, optimizer)

    @pytest.mark.parametrize("workers", WORKERS)
    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    def test_single_precision(self, optimizer: str, workers: int) -> None:
        self._check_weights("simulated", workers, "batch-not-divisible", optimizer, torch.float32)

    @pytest.mark.parametrize(("world", "workers"), _WITH_BATCH_NORM)
    def test_batch_norm(self, world: str, workers: int) -> None:
        self._skip_if_too_few(workers)
        if self.synchronous:
            checks.check_batch_norm(self.spec, world, workers)
        else:
            checks.check_trains(self.spec, WORLDS[world](workers), batch_norm_task(of_any_batch=True))

    @pytest.mark.parametrize(("workers", "dtype"), [(2, torch.float32), (3, torch.float64)], ids=str)
    def test_both_worlds(self, workers: int, dtype: torch.dtype) -> None:
        self._check_both_worlds(workers, odd_task(dtype))

    def test_both_worlds_clip_alike(self) -> None:
        self._check_both_worlds(3, odd_task(torch.float32, clip_norm=0.1))

    def test_stragglers(self) -> None:
        if self.reproducible:
            checks.check_stragglers_change_no_bit(self.spec)
        else:
            checks.check_trains(self.spec, simulated(3, slow={0: 4.0}), make_task())

    def test_checkpoints(self, tmp_path: Path) -> None:
        if self.reproducible:
            checks.check_checkpoints_change_no_bit(self.spec, tmp_path)
        else:
            kept: dict[str, Any] = {"checkpoint": tmp_path, "checkpoint_every": 2}
            pl.train(make_task(), self.spec, simulated(3), steps=3, **kept)
            assert pl.train(make_task(), self.spec, simulated(3), steps=6, resume="must", **kept).steps == 6

    def test_the_same_seed_gives_the_same_course(self, tmp_path: Path) -> None:
        checks.check_the_same_seed_gives_the_same_course(self.spec, tmp_path)

    def test_another_seed_gives_another_course(self, tmp_path: Path) -> None:
        checks.check_another_seed_gives_another_course(self.spec, tmp_path)

    @pytest.mark.parametrize("world", WORLDS)
    def test_the_history_adds_up(self, world: str) -> None:
        run = checks.train_for_history(self.spec, world)
        checks.check_steps_count_up(run)
        checks.check_seconds_never_decrease(run)
        checks.check_samples_and_bytes_never_decrease(run)
        checks.check_no_metric(run)
        checks.check_every_update_has_its_gradients(run)
        if self.synchronous:
            checks.check_every_sample_is_counted_once(run)
            checks.check_losses_are_those_of_single(run)

    def _skip_if_too_few(self, workers: int) -> None:
        if workers < self.fewest_workers:
            pytest.skip(f"{self.spec} takes at least {self.fewest_workers} workers")

    def _check_weights(
        self, world: str, workers: int, case: str, optimizer: str, dtype: torch.dtype = torch.float64
    ) -> None:
        self._skip_if_too_few(workers)
        cluster = WORLDS[world](workers)
        if self.synchronous:
            checks.check_weights_of_single(self.spec, cluster, case, optimizer, dtype)
        else:
            checks.check_trains(self.spec, cluster, make_task(case, optimizer, dtype))

    def _check_both_worlds(self, workers: int, task: pl.Task) -> None:
        self._skip_if_too_few(workers)
        if self.reproducible:
            checks.check_both_worlds_give_the_same_bits(self.spec, workers, task)
        else:
            for world in WORLDS.values():
                checks.check_trains(self.spec, world(workers), task)


def _check_settings(suite: type[StrategySuite]) -> None:
    spec, name = getattr(suite, "spec", None), suite.__name__
    if not isinstance(spec, str) or not spec:
        remedy = 'for example spec = "mine:k=2"'
        raise ConfigurationError(f"{name}.spec", "must be a strategy as text", spec, remedy)
    if suite.synchronous and not suite.reproducible:
        bound = "must be False if reproducible is False"
        raise ConfigurationError(f"{name}.synchronous", bound, True, "set synchronous = False")
    if suite.fewest_workers not in (1, 2, 3):
        remedy = "choose parameters with which it takes 3 workers"
        raise ConfigurationError(f"{name}.fewest_workers", "must be 1, 2 or 3", suite.fewest_workers, remedy)
