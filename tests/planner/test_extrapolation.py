"""Predictions for devices, sequences and recomputation that are not in the published tables are plausible."""

import pytest
import torch

import paceline as pl


def seconds(device, sequence=2048, **words):
    task = pl.models.GPT(4, 4096, 32, sequence, 32000, 8, dtype=torch.bfloat16, **words)
    return pl.predict(task, "single", pl.Simulated(workers=1, math="none", device=device)).step_seconds


def test_faster_devices_take_less_time():
    h100, a100, v100 = (seconds(getattr(pl.devices, name)) for name in ("H100", "A100", "V100"))
    assert 1.4 < a100 / h100 < 3.2
    assert 1.8 < v100 / a100 < 3.0


def test_full_recomputation_takes_a_third_longer():
    assert seconds(pl.devices.A100, recompute="full") / seconds(pl.devices.A100) == pytest.approx(
        4 / 3, rel=0.03
    )


def test_longer_sequences_take_more_time_for_each_token():
    short, long = (seconds(pl.devices.A100, sequence=length) / length for length in (2048, 8192))
    assert 1.0 < long / short < 1.6


def test_attention_that_is_not_fused_takes_more_time():
    assert seconds(pl.devices.A100, fused_attention=False) > 1.1 * seconds(pl.devices.A100)
