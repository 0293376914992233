import contextlib
import os
import warnings

import cloudpickle
import hypothesis
import pytest
from clusters.namespaces import can_make_hosts, one_machine, several_hosts

# Before torch is imported. Models here are small: threads that wait for each other would take most of the cores' time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

hypothesis.settings.register_profile("paceline", deadline=None)  # a busy machine is slow: that proves nothing
hypothesis.settings.load_profile("paceline")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """The functions of test modules travel to workers by value: a worker that imported pytest would start slowly."""
    for module in {item.module for item in items}:
        cloudpickle.register_pickle_by_value(module)
    if getattr(config.option, "loadgroup", False):
        _name_groups(items)


def _name_groups(items):
    """Put a test's group at the end of its id, where the scheduler of xdist looks for it.

    xdist 3.8 does so itself, but under pytest 9.2 to no effect: tests of one group were shared out among all processes,
    and each of these started Ray (https://github.com/pytest-dev/pytest-xdist/issues/1386).
    """
    for item in items:
        groups = sorted({mark.args[0] for mark in item.iter_markers("xdist_group")})
        suffix = f"@{'_'.join(groups)}"
        if groups and not item.nodeid.endswith(suffix):
            item._id = type(item._id).parse(f"{item.nodeid}{suffix}")


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
