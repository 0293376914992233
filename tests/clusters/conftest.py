import pytest
from processes import workers


@pytest.fixture(autouse=True)
def no_worker_is_left():
    """However a run ends, its processes are gone, and reaped, when it has ended."""
    yield
    assert workers() == []
