import pytest
import torch

import paceline as pl
from paceline.clusters.base.threads import computing_threads


def fail_with(threads: int) -> None:
    with computing_threads(threads):
        assert torch.get_num_threads() == threads
        raise KeyError


def test_the_number_of_threads_is_as_before_even_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(KeyError):
        fail_with(before + 1)
    assert torch.get_num_threads() == before


def test_a_simulation_computes_with_as_many_as_it_is_told():
    async def look(ctx):
        return torch.get_num_threads()

    before = torch.get_num_threads()
    run = pl.run_program(look, pl.Simulated(workers=2, compute=pl.times.Constant(1.0), threads=before + 1))
    assert list(run.results) == [before + 1] * 2
    assert torch.get_num_threads() == before
