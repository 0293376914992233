"""Runs on Ray are saved to a folder shared by the driver and all ranks, and resume from there."""

from __future__ import annotations

import pytest
import torch
from clusters.ray_hosts import needs_ray
from tasks import WORLDS, a_task

import paceline as pl

pytestmark = [needs_ray, pytest.mark.slow]


@pytest.mark.parametrize("spec", ["all-reduce:algorithm=ring", "sync", "decentralized:mode=async"])
def test_a_run_on_ray_goes_on(spec, tmp_path):
    given = {"checkpoint": tmp_path, "checkpoint_every": 2}
    with pl.Ray(workers=2, threads=1).hold() as cluster:
        pl.train(a_task(), spec, cluster, steps=4, **given)
        resumed = pl.train(a_task(), spec, cluster, steps=9, resume="must", **given)
    assert [record.step for record in resumed.history] == list(range(1, 10))
    if "async" not in spec:
        plain = pl.train(a_task(), spec, WORLDS["simulated"](2), steps=9)
        assert torch.equal(resumed.parameters, plain.parameters)
