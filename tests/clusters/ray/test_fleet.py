"""Hosts with versions that differ from the driver's."""

import importlib.metadata
from pathlib import Path

import pytest
from clusters.ray_hosts import leftovers, needs_namespaces, needs_ray, on_ray, on_the_hosts
from refusals import raised
from tasks import a_task

import paceline as pl
from paceline.errors import RunError

pytestmark = [needs_ray, needs_namespaces, on_the_hosts]


def train():
    pl.train(a_task(), "all-reduce:algorithm=ring", on_ray(workers=2), steps=1)


@pytest.fixture
def metadata_of(hosts):
    """Simulate another version of a package on the second host during a test."""
    host, changed = hosts.hosts[1], []

    def change(package, version):
        files = importlib.metadata.distribution(package)._path
        if version is None:
            host.run("mount", "-t", "tmpfs", "tmpfs", str(files))
            changed.append(str(files))
            return
        file, fake = files / "METADATA", hosts.folder / f"{package}-metadata"
        text = (
            Path(file)
            .read_text()
            .replace(f"Version: {importlib.metadata.version(package)}\n", f"Version: {version}\n")
        )
        host.run("sh", "-c", f"cat > {fake} <<'END'\n{text}\nEND\nmount --bind {fake} {file}")
        changed.append(str(file))

    yield change
    for path in changed:
        host.run("umount", path)


@pytest.mark.parametrize("package", [pytest.param("torch", marks=pytest.mark.slow), "paceline"])
def test_another_version_on_a_host_is_named(driver, metadata_of, package):
    metadata_of(package, "0.0.9")
    with raised(RunError, "rank 1", "host1", package, "0.0.9"):
        driver.call(train)
    assert driver.call(leftovers) == []


def test_a_host_without_paceline_is_named(driver, metadata_of, hosts):
    package = Path(pl.__file__).parent
    hosts.hosts[1].run("mount", "-t", "tmpfs", "tmpfs", str(package.parent))
    metadata_of("paceline", None)
    try:
        with raised(RunError, "rank 1", "host1", "paceline"):
            driver.call(train)
    finally:
        hosts.hosts[1].run("umount", str(package.parent))
    assert driver.call(leftovers) == []
