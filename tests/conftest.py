import contextlib
import os
import shutil
import signal
import subprocess
import warnings

import cloudpickle
import hypothesis
import pytest
from clusters.namespaces import can_make_hosts, one_machine, several_hosts
from harness import limits, shutdown
from harness.scheduling import pytest_xdist_make_scheduler  # noqa: F401 (a hook)
from report.chromium import Chromium, find_chromium
from stand_in.build import build, reason_not_to_build
from stand_in.process import device_process

# Before torch is imported. Models here are small: threads that wait for each other would take most of the cores' time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest.register_assert_rewrite("paceline.testing.checks", "refusals")  # a check that fails shows its values

# Slow examples are not errors, because a busy machine is slow.
hypothesis.settings.register_profile("paceline", deadline=None)
hypothesis.settings.load_profile("paceline")


def pytest_addoption(parser):
    shutdown.add_option(parser)


def pytest_configure(config):
    limits.register(config)


def pytest_generate_tests(metafunc):
    shutdown.repeat_shutdown_test(metafunc)


def pytest_collection_modifyitems(items):
    """Mark tests of shutdown. Pickle the functions of test modules by value: importing pytest would slow workers."""
    shutdown.mark_shutdown_tests(items)
    for module in {item.module for item in items}:
        cloudpickle.register_pickle_by_value(module)


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard():
    """If a script starts the tests in the background, they and their child processes ignore Ctrl-C. Undo that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def file_descriptors():
    """A function that returns the number of files that this process has open."""
    return lambda: len(os.listdir("/proc/self/fd"))


@pytest.fixture
def on_a_quick_disk(monkeypatch):
    """In simulations, finish each checkpoint before the next one is due. Their steps are faster than any disk."""
    from paceline.checkpoints import BackgroundWriter

    def submit(self, *args):
        self.finish(120.0)
        return plainly(self, *args)

    plainly = BackgroundWriter.submit
    monkeypatch.setattr(BackgroundWriter, "submit", submit)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    command = [mount, "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if mount is None or subprocess.run(command, capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("mounting is not permitted here")
    yield place
    subprocess.run(["umount", str(place)], check=True, timeout=60)


@pytest.fixture(scope="session")
def hosts():
    """Two hosts with a Ray cluster on them, and one host without Ray: for all tests, since starting them takes
    long."""
    with _hosts(bare=1) as made:
        yield made


@pytest.fixture
def own_hosts():
    """Two hosts that a test may break."""
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


@pytest.fixture(scope="session")
def on_device(tmp_path_factory):
    """Runs a function in a process that has a device: see `stand_in`. Tests that use it are of one group."""
    reason = reason_not_to_build()
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("stand_in")
    with device_process(folder, build(folder)) as run:
        yield run


@pytest.fixture(scope="session")
def browser():
    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium here: as root on Debian, `apt-get install chromium` (make test does it)")
    chromium = Chromium(path)
    yield chromium
    chromium.close()


@pytest.fixture
def open_page(browser):
    """Opens pages, and closes them after the test."""
    opened = []

    def open_one(path, **how):
        opened.append(browser.page(path, **how))
        return opened[-1]

    yield open_one
    for page in opened:
        page.close()
