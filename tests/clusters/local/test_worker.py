"""Memory allocation of a worker process."""

import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes
from paceline.clusters.local.worker import keep_freed_memory


class Facts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks mappings others".split()] + [
        ("rest", ctypes.c_size_t * 5)
    ]


libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Facts
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
if {keeps}:
    keep_freed_memory()
before = libc.mallinfo2().mappings
blocks = [libc.malloc(30 * 2**20) for _ in range(3)]
print(libc.mallinfo2().mappings - before)
"""


def mappings(*, keeps):
    """Of three blocks of 30 MiB, those that are mapped by themselves, and go back to the system when they are
    freed."""
    program = [sys.executable, "-c", PROGRAM.format(keeps=keeps)]
    return int(subprocess.run(program, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")
def test_what_a_step_frees_stays_with_the_process():
    assert mappings(keeps=False) == 3
    assert mappings(keeps=True) == 0
