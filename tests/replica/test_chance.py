import random

import numpy as np
import torch

from paceline.replica.chance import chance_kept, fetch_seed, rank_seed, seed_all


def drawn():
    return random.random(), np.random.rand(), torch.rand(1).item()


def test_a_number_sets_every_generator():
    seed_all(12)
    first = drawn()
    seed_all(13)
    other = drawn()
    seed_all(12)
    assert drawn() == first
    assert all(a != b for a, b in zip(first, other, strict=True))


def test_what_is_drawn_inside_leaves_no_trace_outside():
    seed_all(1)
    expected = drawn()
    seed_all(1)
    with chance_kept():
        seed_all(99)
        drawn()
    assert drawn() == expected


def test_every_rank_step_and_purpose_has_a_seed_of_its_own_that_torch_takes():
    numbers = [
        rank_seed(seed, rank) + step for seed in (0, 2**32 - 1) for rank in range(9) for step in range(9)
    ]
    numbers += [fetch_seed(number) for number in numbers]
    assert len(set(numbers)) == len(numbers)
    for number in numbers:
        seed_all(number)
