"""pytest-xdist's `--dist loadgroup`, which ends after a crash.

Version 3.8.0 waits forever when a worker process has crashed (its issues 1323, 1327, 1378): it hands out the crashed
worker's completed groups again, as empty lists of tests, and it hands a new worker a single test, where a worker runs a
test only when it knows the next one. It also repeats the test that crashed until no worker may be started any more, and
stops with an internal error if two workers crash at the same time.
"""

import contextlib

import pytest
from xdist.scheduler import LoadGroupScheduling


class CrashSafeScheduling(LoadGroupScheduling):
    """Completed tests, and the one that crashed, are not handed out again."""

    def remove_node(self, node):
        left = {}
        for scope, tests in self.assigned_work.pop(node).items():
            left[scope] = {test: False for test, is_completed in tests.items() if not is_completed}
        crashed = next((test for tests in left.values() for test in tests), None)
        for scope, tests in left.items():
            tests.pop(crashed, None)
            if tests:
                self.workqueue[scope] = tests
        for other in self.nodes:
            self._reschedule(other)
        return crashed

    def _assign_work_unit(self, node):
        with contextlib.suppress(OSError):  # the process has crashed too: `remove_node` will be called for it
            super()._assign_work_unit(node)

    def _reschedule(self, node):
        if node not in self.registered_collections:
            return  # a new worker, which collects its tests first
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            if self.workqueue:
                self._assign_work_unit(node)
            else:
                node.shutdown()  # after its last test


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    if config.getvalue("dist") == "loadgroup":
        return CrashSafeScheduling(config, log)
    return None
