import random

import numpy as np
import pytest
import torch

from paceline.system.seeding import (
    RngLease,
    fetch_seed,
    rank_seed,
    rng_preserved,
    seed_all,
    seeded,
    stream_seed,
)


def draw():
    return random.random(), np.random.rand(), torch.rand(1).item()


def test_a_seed_sets_all_three():
    with rng_preserved():
        seed_all(2**62 + 7)
        first = draw()
        seed_all(2**62 + 7)
        assert draw() == first
        seed_all(2**62 + 8)
        assert all(a != b for a, b in zip(draw(), first, strict=True))


@pytest.mark.parametrize("keeping", [rng_preserved, lambda: seeded(5)])
def test_the_caller_goes_on_as_if_nothing_had_been_drawn(keeping):
    with rng_preserved():
        seed_all(1)
        expected = draw()
        seed_all(1)
        with keeping():
            draw()
            seed_all(3)
        assert draw() == expected


def test_it_does_so_after_an_error():
    with rng_preserved():
        seed_all(1)
        expected = draw()
        seed_all(1)
        with pytest.raises(ZeroDivisionError), seeded(2):
            print(draw()[0] / 0)
        assert draw() == expected


def test_within_a_seed_chance_is_the_seeds():
    with seeded(4):
        first = draw()
    with seeded(4):
        assert draw() == first


def test_every_rank_step_and_purpose_has_a_seed_of_its_own_that_torch_takes():
    numbers = [
        rank_seed(seed, rank) + step for seed in (0, 2**32 - 1) for rank in range(9) for step in range(9)
    ]
    numbers += [fetch_seed(number) for number in numbers]
    numbers += [stream_seed(seed, batch) for seed in (0, 2**32 - 1) for batch in range(9)]
    assert len({number % 2**32 for number in numbers}) == len(numbers), "torch and numpy take 32 bits"
    with rng_preserved():
        for number in numbers:
            seed_all(number)


def test_computations_that_alternate_find_the_generators_as_they_left_them():
    expected = {}
    for seed in (1, 2):
        seed_all(seed)
        expected[seed] = [draw(), draw()]
    leases, found = {seed: RngLease() for seed in (1, 2)}, {1: [], 2: []}
    for seed, lease in leases.items():
        lease.take()
        seed_all(seed)
        found[seed].append(draw())
    for seed, lease in leases.items():
        lease.take()
        found[seed].append(draw())
        lease.end()
    assert found == expected
