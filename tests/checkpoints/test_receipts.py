import errno
import os

from refusals import raised

from paceline.checkpoints.receipts import leave_failure, leave_receipt, remove_receipts, wait_for_receipts
from paceline.errors import DamagedError
from paceline.files.checksums import Checksum

SUMS = {rank: Checksum(rank, f"{rank:x}" * 64) for rank in range(4)}


def test_receipts_are_found_in_the_order_of_the_ranks(tmp_path):
    for rank in (2, 0, 3, 1):
        leave_receipt(tmp_path, rank, SUMS[rank])
    found = wait_for_receipts(tmp_path, 4, 60)
    assert list(found.items()) == list(SUMS.items())
    remove_receipts(tmp_path)
    assert not list(tmp_path.iterdir())


def test_many_missing_ranks_are_told_in_short(tmp_path):
    with raised(TimeoutError, *range(10), 990):
        wait_for_receipts(tmp_path, 1000, 0)


def test_a_failure_is_told_at_once(tmp_path):
    leave_failure(tmp_path, 1, "No space left on device")
    with raised(OSError, "rank 1", os.strerror(errno.ENOSPC)):
        wait_for_receipts(tmp_path, 2, 3600)


def test_a_failure_without_a_reason_is_told_too(tmp_path):
    (tmp_path / "failure-1.txt").touch()
    with raised(OSError, "rank 1"):
        wait_for_receipts(tmp_path, 2, 3600)


def test_a_failure_that_cannot_be_left_is_no_error(tmp_path):
    leave_failure(tmp_path / "nowhere", 1, "gone")


def test_a_receipt_that_is_not_whole_is_refused(tmp_path):
    leave_receipt(tmp_path, 0, SUMS[0])
    path = tmp_path / "receipt-0.json"
    path.write_bytes(path.read_bytes().replace(b"bytes", b"bites"))
    with raised(DamagedError, file="receipt-0.json"):
        wait_for_receipts(tmp_path, 1, 3600)
