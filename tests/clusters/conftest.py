import contextlib
import warnings

import pytest
from clusters.namespaces import can_make_hosts, one_machine, several_hosts
from processes import workers


@pytest.fixture(autouse=True)
def no_worker_is_left():
    """However a run ends, its processes are gone, and reaped, when it has ended."""
    yield
    assert workers() == []


@pytest.fixture(scope="session")
def hosts():
    """Two hosts with a Ray cluster on them, and one host without Ray: for all tests, since starting them takes long."""
    with _hosts(bare=1) as made:
        yield made


@pytest.fixture
def own_hosts():
    """Two hosts that a test may ruin."""
    with _hosts() as made:
        yield made


@contextlib.contextmanager
def _hosts(**options):
    reason = can_make_hosts()
    if not reason:
        with several_hosts(**options) as made:
            yield made
        return
    warnings.warn(f"no network namespaces here ({reason}): Ray's nodes are all on this machine", stacklevel=2)
    with one_machine() as made:
        yield made


@pytest.fixture(scope="session")
def driver(hosts):
    """A process on the first host."""
    return hosts.driver()
