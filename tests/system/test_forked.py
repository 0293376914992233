import os

import torch

from paceline.system.forked import limit_threads_after_fork


def threads_in_a_fork():
    """How many threads torch has in a forked child that asked for three."""
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(3)
        limit_threads_after_fork()
        os._exit(torch.get_num_threads())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_process_computes_in_one_thread():
    assert threads_in_a_fork() == 1


def test_a_process_that_was_not_forked_keeps_its_threads():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        limit_threads_after_fork()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
