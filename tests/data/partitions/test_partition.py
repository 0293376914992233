import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import has, refused, unknown

from paceline.data.partitions import Partition
from paceline.data.partitions.partition import dirichlet, iid, shards

SEEDS = st.integers(0, 2**32 - 1)
CLIENTS = st.integers(1, 30)
LABELS = st.lists(st.integers(-3, 6), min_size=1, max_size=200).map(np.array)


def assert_each_once(parts, length):
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(length))


def by_hand(*parts):
    """A partition function that gives these parts."""
    return lambda targets, clients, seed: parts


# The kinds


@given(length=st.integers(1, 300), clients=CLIENTS, seed=SEEDS)
def test_iid_deals_every_sample_once_in_parts_that_differ_by_one_at_most(length, clients, seed):
    parts = iid(length, clients, seed)
    assert_each_once(parts, length)
    sizes = [len(part) for part in parts]
    assert len(parts) == clients
    assert max(sizes) - min(sizes) <= 1


@given(targets=LABELS, clients=CLIENTS, seed=SEEDS, alpha=st.floats(1e-3, 1e6))
def test_dirichlet_deals_every_sample_once(targets, clients, seed, alpha):
    parts = dirichlet(targets, clients, seed, alpha=alpha)
    assert len(parts) == clients
    assert_each_once(parts, len(targets))


@given(targets=LABELS, clients=CLIENTS, seed=SEEDS, each=st.integers(1, 5))
def test_shards_deal_every_sample_once(targets, clients, seed, each):
    parts = shards(targets, clients, seed, shards_per_client=each)
    assert len(parts) == clients
    assert_each_once(parts, len(targets))
    # Shards differ by one sample at most, so clients differ by as many as they have shards.
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= each


@given(targets=LABELS, clients=CLIENTS, seed=SEEDS)
def test_every_kind_is_the_same_for_the_same_seed(targets, clients, seed):
    for kind in ("iid", "dirichlet", "shards"):
        partition = Partition(kind=kind, seed=seed, allow_empty=True)
        first, second = (partition.parts(targets.copy(), clients) for _ in range(2))
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "shards"])
def test_every_kind_is_another_for_another_seed(kind):
    targets = np.arange(400) % 10
    first, second = (Partition(kind=kind, seed=seed).parts(targets, 4) for seed in (0, 1))
    assert any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_two_of_two_hundred_shards_give_a_client_two_labels_at_most():
    """McMahan et al.: 60,000 images of ten digits, 200 shards of 300, two for each of 100 clients."""
    targets = np.repeat(np.arange(10), 6000)
    parts = shards(targets, 100, 0, shards_per_client=2)
    assert {len(part) for part in parts} == {600}
    kinds = [len(np.unique(targets[part])) for part in parts]
    assert set(kinds) == {1, 2}


def test_a_large_alpha_gives_every_client_its_share_of_every_label():
    targets = np.repeat(np.arange(3), 4000)
    for part in dirichlet(targets, 4, 0, alpha=1e6):
        np.testing.assert_allclose(np.bincount(targets[part], minlength=3), 1000, rtol=0.02)


def test_a_small_alpha_gives_nearly_all_of_a_label_to_one_client():
    targets = np.repeat(np.arange(5), 100)
    counts = [np.bincount(targets[part], minlength=5) for part in dirichlet(targets, 8, 0, alpha=0.001)]
    assert (np.max(counts, axis=0) > 90).all()


def test_dirichlet_shares_have_the_mean_and_variance_of_the_distribution():
    """A share of Dirichlet(a, …, a) over k: mean 1/k, variance (1/k)(1 - 1/k)/(k a + 1)."""
    targets, clients, alpha = np.zeros(1000, dtype=int), 5, 0.7
    drawn = [[len(part) / 1000 for part in dirichlet(targets, clients, s, alpha=alpha)] for s in range(2000)]
    mean, variance = 1 / clients, (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    np.testing.assert_allclose(np.mean(drawn, axis=0), mean, atol=0.02)
    np.testing.assert_allclose(np.var(drawn, axis=0), variance, rtol=0.12)


# The choice


def test_a_users_function_gets_targets_clients_and_seed_and_its_parts_come_sorted():
    seen = []

    def halves(targets, clients, seed):
        seen.append((targets.tolist(), clients, seed))
        return [[3, 1], [0]]

    parts = Partition(kind=halves, seed=5).parts(np.array([7, 8, 9, 7]), 2)
    assert seen == [([7, 8, 9, 7], 2, 5)]
    assert [part.tolist() for part in parts] == [[1, 3], [0]]


def test_clients_that_ask_about_the_same_array_share_one_answer():
    targets = np.arange(100) % 3
    partition = Partition(kind="dirichlet", seed=3)
    assert partition.parts(targets, 4) is Partition(kind="dirichlet", seed=3).parts(targets, 4)
    assert partition.parts(targets, 5) is not partition.parts(targets, 4)


@pytest.mark.parametrize(
    ("kind", "refusal"),
    [
        (by_hand([0, 1]), refused("partition", 1, bound=has(2))),
        (by_hand([0, 4], [1]), refused("partition", 4, bound=has(0, 3))),
        (by_hand([0, -1], [1]), refused("partition", -1, bound=has(0, 3))),
        (by_hand([0, 2], [2]), refused("partition", 2)),
        (by_hand([0.5], [1]), refused("partition", has("float64"))),
        (by_hand([[0, 1]], [2]), refused("partition", has("int64"))),
        (by_hand([0, 1], []), refused("partition", has(1), bound=has(2))),
    ],
)
def test_parts_that_are_none_are_refused(kind, refusal):
    with refusal:
        Partition(kind=kind).parts(np.zeros(4), 2)


def test_clients_without_samples_are_named_unless_they_are_allowed():
    targets = np.zeros(5, dtype=int)
    with refused("partition", has(5, 2), remedy=has("allow_empty=true")):
        Partition().parts(targets, 8)
    assert [len(part) for part in Partition(allow_empty=True).parts(targets, 8)] == [1] * 5 + [0] * 3
    with refused("partition"):
        Partition(kind="dirichlet").parts(targets, 8)


@pytest.mark.parametrize("kind", ["dirichlet", "shards"])
@pytest.mark.parametrize("targets", [np.zeros(10), np.zeros((10, 2), dtype=int)])
def test_targets_that_are_no_labels_cannot_be_parted_by_label(kind, targets):
    with refused("partition", remedy=has("iid")):
        Partition(kind=kind).parts(targets, 2)
    assert len(Partition().parts(targets, 2)) == 2


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"alpha": 0.0}, refused("alpha", 0.0)),
        ({"alpha": -1.0}, refused("alpha", bound=has(0))),
        ({"alpha": math.nan}, refused("alpha", bound=has(0))),
        ({"shards_per_client": 0}, refused("shards_per_client", 0, bound=has(1))),
        ({"shards_per_client": 1.5}, refused("shards_per_client", 1.5)),
        ({"seed": -1}, refused("partition_seed", -1, bound=has(0))),
        ({"kind": 3}, refused("partition")),
        ({"kind": [[0], [1]]}, refused("partition")),
    ],
)
def test_what_cannot_be_right_is_refused(changes, refusal):
    with refusal:
        Partition(**changes)


def test_an_unknown_kind_is_answered_with_the_nearest():
    with unknown("partition", "dirichlett", nearest="dirichlet"):
        Partition(kind="dirichlett")
