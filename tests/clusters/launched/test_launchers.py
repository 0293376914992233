"""Rank and peers are read from what torchrun, mpirun and srun write into the environment."""

from __future__ import annotations

import pytest
from refusals import has, refused

from paceline.clusters.launched.launchers import first_node, read_place

TORCHRUN = {
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "alpha",
    "MASTER_PORT": "41000",
}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}
SRUN = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_JOB_NODELIST": "node[03-06]", "SLURM_JOB_ID": "4002"}


def test_torchruns_words_are_understood():
    place = read_place(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert (place.launcher, place.rank, place.ranks) == ("torchrun", 2, 4)
    assert (place.address, place.port, place.store_is_there) == ("alpha", 41000, True)


def test_processes_of_one_host_need_no_address():
    place = read_place(MPIRUN)
    assert (place.launcher, place.rank, place.ranks) == ("mpirun", 1, 3)
    assert (place.address, place.store_is_there) == ("127.0.0.1", False)


def test_jobs_of_mpirun_on_one_host_meet_at_different_ports():
    ports = [read_place(MPIRUN | {"PMIX_NAMESPACE": str(640942081 + (i << 16))}).port for i in range(4)]
    assert len(set(ports)) == 4
    assert all(29500 <= port < 30500 for port in ports)
    assert read_place(MPIRUN | {"MASTER_PORT": "41000"}).port == 41000


def test_processes_of_several_hosts_must_know_where_to_meet():
    with refused("MASTER_ADDR", None, remedy=has("mpirun")):
        read_place(MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"})


def test_slurms_first_node_is_where_to_meet_and_its_job_sets_the_port():
    place = read_place(SRUN)
    assert (place.launcher, place.rank, place.ranks) == ("srun", 5, 8)
    assert (place.address, place.port) == ("node03", 29502)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a", "a"), ("a,b", "a"), ("a[1-4]", "a1"), ("a[07,09-11],b[1-2]", "a07"), ("gpu-x[012]", "gpu-x012")],
)
def test_the_first_of_slurms_list_of_nodes_is_found(nodes: str, first: str):
    assert first_node(nodes) == first


@pytest.mark.parametrize(
    ("word", "value"),
    [("RANK", "4"), ("RANK", "-1"), ("RANK", "x"), ("WORLD_SIZE", "0"), ("MASTER_PORT", "0")],
)
def test_words_that_make_no_sense_are_refused_by_name(word: str, value: str):
    with refused(word, value):
        read_place(TORCHRUN | {word: value})


def test_a_process_that_nobody_launched_is_told_what_was_looked_for():
    with refused(
        "the environment",
        remedy=has("torchrun", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"),
    ):
        read_place({})
