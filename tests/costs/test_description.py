import dataclasses

import pytest
from refusals import has, refused

import paceline as pl
from paceline.costs.description import ClusterDescription, HostGroup
from paceline.costs.description_files import cluster_names, load_cluster

WRITTEN = """
hosts:
  - {hosts: 2, ranks: 4}
  - {hosts: 1, ranks: 2, slow: 2.0}
device: {flops: 1e12, memory_bandwidth: 100GB/s, memory: 16GB}
link: {bandwidth: 10Gbps, latency: 50us}
inside: {bandwidth: 100Gbps, latency: 1us}
card: 20Gbps
oversubscription: 2
slow: {1: 4.0}
delay: {0: "exp:mean=5ms"}
price_per_hour: 3.5
"""


def read(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return load_cluster(path)


def test_a_file_describes_hosts_of_different_speeds(tmp_path):
    found = read(tmp_path, WRITTEN)
    assert (found.hosts, found.workers, found.price_per_hour) == (3, 10, 3.5)
    cluster = pl.Simulated.of(found)
    assert cluster.hosts == (4, 4, 2)
    assert cluster.slow == {1: 4.0, 8: 2.0, 9: 2.0}
    assert (cluster.card, cluster.oversubscription) == ("20Gbps", 2.0)
    assert cluster.device.flops == 1e12
    assert cluster.device.memory_bytes == 16 * 10**9


def test_some_of_its_ranks_are_the_first_ones(tmp_path):
    found = read(tmp_path, WRITTEN)
    assert pl.Simulated.of(found, workers=9).hosts == (4, 4, 1)
    one = pl.Simulated.of(found, workers=3)
    assert (one.hosts, one.card, one.between) == (1, None, pl.Link("100Gbps", "1us"))
    with refused("workers", 11):
        pl.Simulated.of(found, workers=11)


@pytest.mark.parametrize("name", cluster_names())
def test_every_description_of_the_package_can_be_simulated_and_emulated(name):
    found = load_cluster(name)
    assert pl.Simulated.of(found).workers == found.workers
    assert pl.Local.of(found).link == found.link
    assert found.device.memory_bytes > 10**9


def test_the_package_has_laptops_pcs_gpu_hosts_and_cloud_instances():
    assert cluster_names() == ["cloud-25gbps", "dgx-a100", "four-pcs", "h100", "two-laptops"]


def test_the_number_of_hosts_can_be_changed():
    cluster = pl.Simulated.of(load_cluster("dgx-a100", hosts=64))
    assert (cluster.workers, cluster.hosts, cluster.device, cluster.card) == (
        512,
        64,
        pl.devices.A100,
        "1600Gbps",
    )
    with refused("hosts", 3):
        load_cluster("two-laptops", hosts=3)


def test_other_arguments_replace_those_of_the_description():
    found = load_cluster("four-pcs")
    cluster = pl.Simulated.of(found, compute=pl.times.Constant("1ms"), math="none", card=None)
    assert (cluster.device, cluster.card, cluster.math) == (None, None, "none")


LINK = "link: {bandwidth: 10Gbps, latency: 50us}\n"


@pytest.mark.parametrize(
    ("text", "argument", "value"),
    [
        ("links: 3", "a key of cluster", "links"),
        ("hosts: 2", "link", "nothing"),
        (LINK + "link: {bandwidth: 1Gbps}", "link", has("mine.yaml")),
        ("link: {bandwith: 10Gbps}", "a key of link", "bandwith"),
        ("link: {bandwidth: 10 apples}", "Link.bandwidth", "10 apples"),
        ("link: 10Gbps", "link", "10Gbps"),
        (LINK + "card: 10 apples\nhosts: 2", "card", "10 apples"),
        (LINK + "oversubscription: 0.5\nhosts: 2", "oversubscription", 0.5),
        (LINK + "oversubscription: two\nhosts: 2", "oversubscription", "two"),
        (LINK + "hosts: 0", "hosts", 0),
        (LINK + "hosts: [{ranks: 2}]\nranks_per_host: 3", "ranks_per_host", 3),
        (LINK + "hosts: [{rank: 2}]", "a key of a group of hosts", "rank"),
        (LINK + "device: B200", "device", "B200"),
        (LINK + "device: {flops: 1e12}", "device.memory_bandwidth", "nothing"),
        (LINK + "device: A100\ncompute: const:5ms", "compute", pl.times.Constant("5ms")),
        (LINK + "order: random\nhosts: 2", "order", "random"),
        (LINK + "slow: {7: 2.0}", "slow", 7),
        (LINK + "price_per_hour: -1", "price_per_hour", -1.0),
        ("- 1", "cluster", has("mine.yaml")),
        ("a: [", "cluster", has("mine.yaml")),
    ],
)
def test_a_bad_file_is_refused(tmp_path, text, argument, value):
    with refused(argument, value):
        read(tmp_path, text)


def test_an_unknown_name_and_a_missing_file_are_refused(tmp_path):
    with refused("cluster", "dgx-a1000"):
        load_cluster("dgx-a1000")
    with refused("cluster", has("none.yaml")):
        load_cluster(tmp_path / "none.yaml")


def test_a_description_can_be_made_in_python():
    made = ClusterDescription(name="mine", groups=(HostGroup(hosts=2, ranks=2),), link=pl.Link("1Gbps"))
    assert dataclasses.replace(made, order="cyclic").arguments()["order"] == "cyclic"
    with refused("hosts", []):
        dataclasses.replace(made, groups=())
