import contextlib
import os
import signal
import warnings

import cloudpickle
import hypothesis
import pytest
from clusters.namespaces import can_make_hosts, one_machine, several_hosts

# Before torch is imported. Models here are small: threads that wait for each other would take most of the cores' time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest.register_assert_rewrite("paceline.testing.checks")  # a check that fails shows its values

hypothesis.settings.register_profile("paceline", deadline=None)  # a busy machine is slow: that proves nothing
hypothesis.settings.load_profile("paceline")


def pytest_collection_modifyitems(items):
    """The functions of test modules travel to workers by value: a worker that imported pytest would start slowly."""
    for module in {item.module for item in items}:
        cloudpickle.register_pickle_by_value(module)


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard():
    """Where a script starts the tests in the background, it has them ignore Ctrl-C, and all that they start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def file_descriptors():
    """How many files this process has open: a function, so that a test may look again."""
    return lambda: len(os.listdir("/proc/self/fd"))


@pytest.fixture(scope="session")
def hosts():
    """Two hosts with a Ray cluster on them, and one host without Ray: for all tests, since starting them takes long."""
    with _hosts(bare=1) as made:
        yield made


@pytest.fixture
def own_hosts():
    """Two hosts that a test may ruin."""
    with _hosts(quick_to_miss=True) as made:
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
