"""Cards and switch of an emulated cluster: processes that map the same memory take turns."""

import pytest
import torch

import paceline as pl
from paceline.costs.fabric import Fabric
from paceline.links.memory.shared import SharedMemory
from paceline.links.shared_links import nbytes_of, shared_links

HOSTS = (0, 0, 1, 1)


def fabric(**words):
    return Fabric(**{"hosts": 2, "link": pl.Link("8Mbps"), "inside": pl.Link("8Gbps")} | words)


def two_views(**words):
    """The objects of two processes over the same memory."""
    made = fabric(**words)
    memory = SharedMemory.create("test", 128 + nbytes_of(made))
    return [shared_links(made, HOSTS, each) for each in (memory, SharedMemory.attach(memory.fd))]


def test_messages_of_two_processes_take_turns_at_a_card():
    one, other = two_views(card="8Mbps")
    assert one.leave(0, 0.0, 1000) == pytest.approx(0.001)
    assert other.leave(1, 0.0, 1000) == pytest.approx(0.002)
    assert one.leave(2, 0.0, 1000) == pytest.approx(0.001)  # the card of another host
    assert [each.enter(0, 0.0, 1000) for each in (one, other)] == pytest.approx([0.001, 0.002])


def test_messages_of_all_processes_share_the_switch():
    one, other = two_views(card="8Mbps", oversubscription=4.0)
    assert [one.leave(0, 0.0, 1000), other.leave(2, 0.0, 1000)] == pytest.approx([0.002, 0.004])


def test_a_fabric_without_bottlenecks_needs_no_memory():
    assert nbytes_of(None) == nbytes_of(fabric()) == 0
    assert shared_links(fabric(), HOSTS, SharedMemory.create("test", 8)) is None


async def crosses(ctx):
    start_s = ctx.now()
    for _ in range(2):
        if ctx.rank < 2:
            await ctx.net.send(ctx.rank + 2, torch.zeros(2500))
        else:
            await ctx.net.recv(ctx.rank - 2)
    return list(ctx.net.hosts), start_s, ctx.now(), ctx.net.shares_memory


def test_local_workers_emulate_hosts_and_are_never_faster_than_their_cards():
    words = {"workers": 4, "hosts": 2, "link": pl.Link("8Mbps", "0s"), "inside": pl.Link("8Gbps", "0s")}
    results = pl.run_program(crosses, pl.Local(**words, card="8Mbps")).results
    assert results[0][0] == [0, 0, 1, 1]
    _, starts_s, ends_s, _ = zip(*results, strict=True)
    assert max(ends_s) - min(starts_s) >= 4 * 0.01  # a card carries one message at a time
    assert not any(shares for *_, shares in results)


def test_simulation_and_emulation_send_the_same_and_compute_the_same_weights(tmp_path):
    from tasks import a_task

    described = pl.load_cluster("four-pcs", hosts=2)
    changes = {
        "workers": 5,
        "compute": pl.times.Constant("2ms"),
        "link": pl.Link("10Gbps", "50us"),
        "card": "20Gbps",
    }
    ours, simulated = (
        pl.train(a_task(), "all-reduce:algorithm=ring", kind.of(described, **changes, threads=1), steps=3)
        for kind in (pl.Local, pl.Simulated)
    )
    assert torch.equal(ours.parameters, simulated.parameters)
    assert ours.bytes_sent == simulated.bytes_sent
