import pytest
from processes import workers
from tasks import WORLDS

import paceline as pl


@pytest.fixture(autouse=True)
def no_worker_is_left():
    """When a run has ended, in whatever way, its processes have ended and are reaped."""
    yield
    assert workers() == []


@pytest.fixture(params=WORLDS)
def run_on(request):
    """Runs a program on a number of workers of this world, and returns what each program returned."""
    return lambda workers, program: pl.run_program(program, WORLDS[request.param](workers)).results
