import os

import cloudpickle
import hypothesis
import pytest

hypothesis.settings.register_profile("paceline", deadline=None)  # a busy machine is slow: that proves nothing
hypothesis.settings.load_profile("paceline")


def pytest_collection_modifyitems(items):
    """The functions of test modules travel to workers by value: a worker that imported pytest would start slowly."""
    for module in {item.module for item in items}:
        cloudpickle.register_pickle_by_value(module)


@pytest.fixture
def file_descriptors():
    """How many files this process has open: a function, so that a test may look again."""
    return lambda: len(os.listdir("/proc/self/fd"))
