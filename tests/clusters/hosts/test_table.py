"""The members of a run and their locations."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest
from refusals import raised

from paceline.clusters.hosts.table import Member, Table, check_versions, whereabouts
from paceline.errors import RunError
from paceline.links.tcp import PeerAddress

ADDRESS = PeerAddress("10.0.0.1", 4000, b"k" * 40)


def on(host: str) -> Member:
    return Member(address=ADDRESS, where=replace(whereabouts(), host=host, host_name=f"machine-{host}"))


def a_table(*hosts: str, encrypt: bool = True) -> Table:
    return Table(
        run_id=b"r" * 16, token=b"", encrypt=encrypt, hub=ADDRESS, members=[on(host) for host in hosts]
    )


def test_hosts_are_numbered_in_order_of_their_first_rank():
    assert a_table("b", "b", "a", "b", "c").hosts == (0, 0, 1, 0, 2)


def test_the_record_says_which_ranks_were_where_and_whether_others_could_read_them():
    facts = a_table("a", "a", "a", "b", "a", "b").facts()
    assert facts == {"hosts": "machine-a: 0-2, 4; machine-b: 3, 5", "link": "encrypted TCP"}
    assert a_table("a", encrypt=False).facts()["link"] == "TCP, not encrypted"


def test_a_member_travels_as_plain_values():
    member = on("a")
    assert Member.from_values(msgpack.unpackb(msgpack.packb(member.to_values()))) == member


def bound(host: str, *cores: int) -> Member:
    return Member(address=ADDRESS, where=replace(whereabouts(), host=host, cores=cores))


def threads(*members: Member, workers: int) -> list[int]:
    table = Table(run_id=b"r" * 16, token=b"", encrypt=False, hub=ADDRESS, members=members)
    return [table.threads_of(rank, workers) for rank in range(len(members))]


def test_workers_of_a_host_share_its_cores_and_a_server_takes_as_many():
    everybody = [bound("a", *range(98))] * 50
    assert threads(*everybody, workers=49) == [2] * 50
    assert threads(bound("a", 0, 1, 2), bound("b", 0, 1, 2, 3), bound("a", 0, 1, 2), workers=3) == [1, 4, 1]


def test_a_rank_that_its_launcher_has_bound_uses_all_cores_it_was_given():
    halves = [bound("a", *range(16)), bound("a", *range(16, 32))]
    assert threads(*halves, workers=2) == [16, 16]
    assert threads(*halves, *halves, workers=4) == [8, 8, 8, 8]


def test_there_is_a_thread_at_least():
    assert threads(*[bound("a", 0)] * 3, workers=3) == [1, 1, 1]


def test_everybody_is_let_in_by_name_the_hub_too():
    assert set(a_table("a", "b").certificates) == {"0", "1", "hub"}


@pytest.mark.parametrize("name", ["python", "torch", "paceline"])
def test_another_version_is_refused_with_rank_host_and_both_versions(name: str):
    here = whereabouts()
    there = replace(here, host_name="elsewhere", versions={**here.versions, name: "0.0.1"})
    with raised(RunError, "rank 1", "elsewhere", name, "0.0.1", here.versions[name]):
        check_versions([here, there], here.versions)
    check_versions([here, here], here.versions)
