import math

import numpy as np
import pytest
from refusals import has, refused

from paceline.costs.fit import fit_link, largest_error
from paceline.costs.link import Link

SIZES = [4096 * 4**k for k in range(8)]


def times(link, sizes=SIZES):
    return [link.seconds(size) for size in sizes]


@pytest.mark.parametrize(
    "link", [Link("10Gbps", "50us"), Link("1Gbps", "1ms"), Link("400Gbps", "2us"), Link("1MB/s", "1s")]
)
def test_times_of_a_link_give_that_link_back(link):
    found = fit_link(SIZES, times(link))
    assert found.latency_s == pytest.approx(link.latency_s, rel=1e-9)
    assert found.bytes_per_s == pytest.approx(link.bytes_per_s, rel=1e-9)
    assert largest_error(found, SIZES, times(link)) < 1e-9


def test_noise_of_five_percent_moves_latency_and_bandwidth_by_few_percent():
    link = Link("10Gbps", "50us")
    chance = np.random.default_rng(0)
    noisy = np.array(times(link)) * chance.uniform(0.95, 1.05, len(SIZES))
    found = fit_link(SIZES, noisy)
    assert found.latency_s == pytest.approx(link.latency_s, rel=0.05)
    assert found.bytes_per_s == pytest.approx(link.bytes_per_s, rel=0.05)


def test_an_outlier_at_the_largest_size_does_not_spoil_the_latency():
    link = Link("10Gbps", "50us")
    seconds = times(link)
    seconds[-1] *= 1.2
    assert fit_link(SIZES, seconds).latency_s == pytest.approx(link.latency_s, rel=0.1)


def test_times_that_shrink_with_size_have_no_bandwidth_limit():
    found = fit_link([1000, 2000, 4000], [3e-3, 2e-3, 1e-3])
    assert math.isinf(found.bytes_per_s)
    assert 1e-3 < found.latency_s < 3e-3


def test_times_that_grow_faster_than_size_have_no_latency():
    found = fit_link([1000, 10_000], [1e-6, 1e-4])
    assert found.latency_s == 0.0
    assert math.isfinite(found.bytes_per_s)


def test_a_curved_link_shows_in_the_largest_error():
    sizes, seconds = [1000, 10_000, 100_000], [1e-5, 1e-5, 1e-2]
    assert largest_error(fit_link(sizes, seconds), sizes, seconds) > 0.2


@pytest.mark.parametrize(
    ("sizes", "seconds", "refusal"),
    [
        ([4096], [1e-3], refused("nbytes", bound=has(2))),
        ([4096, 4096], [1e-3, 2e-3], refused("nbytes", bound=has(2))),
        ([1, 2, 3], [1e-3, 2e-3], refused("nbytes", (3,))),
        ([1, 2], [1e-3, 0.0], refused("seconds", has(0))),
        ([1, 2], [1e-3, math.nan], refused("seconds", has(0))),
    ],
)
def test_times_that_tell_no_link_are_refused(sizes, seconds, refusal):
    with refusal:
        fit_link(sizes, seconds)
