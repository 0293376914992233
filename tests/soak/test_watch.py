"""A driver process that hangs or dies is reported with its data, and leaves nothing behind."""

import os
import signal

from processes import is_alive

from soak.watch import Driver

SEED = 4


def test_a_driver_that_hangs_is_dumped_and_ended(tmp_path):
    driver = Driver(tmp_path, None, limit_s=0.5)
    os.kill(driver.pid, signal.SIGSTOP)
    try:
        result = driver.run(SEED)
    finally:
        driver.close()
    assert result.seed == SEED
    assert "no end after" in result.violations[0]
    assert "State:\tT (stopped)" in (tmp_path / str(SEED) / f"{driver.pid}.txt").read_text()
    assert f"seed: {SEED}" in (tmp_path / str(SEED) / "case.txt").read_text()
    assert not is_alive(driver.pid)


def test_a_driver_that_dies_is_told(tmp_path):
    driver = Driver(tmp_path, None)
    os.kill(driver.pid, signal.SIGKILL)
    try:
        result = driver.run(SEED)
    finally:
        driver.close()
    assert result.violations == ["the driver ended with code -9"]
    assert (tmp_path / str(SEED) / "violations.txt").read_text() == "the driver ended with code -9\n"
