"""The pipeline strategy in the simulator against the published bubble rates and the closed forms."""

import pytest
import torch
from torch import nn

import paceline as pl

# Qi et al., "Zero Bubble Pipeline Parallelism": p, m, milliseconds of F, B, W and of a message, bubble rates.
PUBLISHED = [
    (8, 24, (18.522, 18.086, 9.337, 0.601), (0.2431, 0.1585, 0.1083)),
    (8, 32, (29.802, 29.428, 19.530, 0.577), (0.1898, 0.1045, 0.0559)),
    (16, 48, (11.347, 11.248, 8.132, 0.377), (0.2552, 0.1397, 0.0672)),
    pytest.param(16, 128, (11.325, 11.308, 8.109, 0.378), (0.1251, 0.0576, 0.0266), marks=pytest.mark.slow),
    pytest.param(32, 96, (10.419, 10.207, 7.715, 0.408), (0.2646, 0.1421, 0.0641), marks=pytest.mark.slow),
    pytest.param(32, 128, (10.408, 10.204, 7.703, 0.408), (0.2168, 0.1106, 0.0490), marks=pytest.mark.slow),
]


def deep_task(layers, batch):
    return pl.Task(
        model=lambda: nn.Sequential(*(nn.Linear(2, 2) for _ in range(layers))),
        data=(torch.zeros(batch, 2), torch.zeros(batch, 2)),
        loss=nn.functional.mse_loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        batch_size=batch,
    )


def bubble_of(order, p, m, times, latency_s=0.0, *, chunks=1, steps=1):
    cluster = pl.Simulated(
        workers=p, compute=pl.times.Phases(*times), link=pl.Link("1e15Gbps", latency_s), math="none"
    )
    spec = f"pipeline:order={order},microbatches={m},chunks={chunks}"
    return pl.train(deep_task(p * chunks, m), spec, cluster, steps=steps).trace.bubble


@pytest.mark.parametrize(("p", "m", "costs", "rates"), PUBLISHED)
def test_the_published_rates_come_out_to_four_decimals(p, m, costs, rates):
    f, b, w, latency = (cost / 1000 for cost in costs)
    found = [bubble_of(order, p, m, (f, b, w), latency) for order in ("1f1b", "zb-h1", "zb-h2")]
    assert [round(rate, 4) for rate in found] == list(rates)


@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 2), (4, 4), (4, 12), (5, 7)])
def test_equal_stages_wait_for_p_minus_1_of_m_plus_p_minus_1(p, m):
    for order in ("gpipe", "1f1b"):
        assert bubble_of(order, p, m, (0.01, 0.01, 0.01), steps=2) == pytest.approx((p - 1) / (m + p - 1))


def test_interleaving_divides_the_bubble_over_ideal_time_by_the_chunks():
    p, m, chunks = 4, 8, 2
    share = bubble_of("interleaved", p, m, (0.01, 0.01, 0.01), chunks=chunks)
    assert share / (1 - share) == pytest.approx((p - 1) / (chunks * m))
