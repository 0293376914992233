"""Cards that the ranks of a host share, and a switch that all hosts share."""

import dataclasses

import pytest
import torch
from refusals import refused
from tasks import a_task, simulated

import paceline as pl
from paceline import collectives
from paceline.clusters.simulated import whole_collective

LINK = pl.Link("8Mbps", "0s")
NEAR = pl.Link("8Gbps", "0s")
N = 4000  # bytes
PORT_S = N * 1e-6
TENSOR = torch.zeros(N // 4)


def seconds(program, workers, **changes):
    return pl.run_program(program, simulated(workers, **({"link": LINK, "inside": NEAR} | changes))).seconds


def sends_across(flows, hosts=2):
    """Ranks 0 … flows - 1 of each host but the last send to the same rank of the next host."""

    async def program(ctx):
        per_host = ctx.net.size // hosts
        host, place = divmod(ctx.rank, per_host)
        if place < flows and host + 1 < hosts:
            await ctx.net.send(ctx.rank + per_host, TENSOR)
        if place < flows and host > 0:
            await ctx.net.recv(ctx.rank - per_host)

    return program


@pytest.mark.parametrize("flows", [1, 2, 4])
def test_flows_through_one_card_take_that_many_times_as_long(flows):
    assert seconds(sends_across(flows), 8, hosts=2, card="8Mbps") == pytest.approx(flows * PORT_S)
    assert seconds(sends_across(flows), 8, hosts=2) == pytest.approx(PORT_S)


def test_a_card_as_fast_as_all_ports_of_its_host_is_not_noticed():
    assert seconds(sends_across(4), 8, hosts=2, card="32Mbps") == pytest.approx(PORT_S)


def test_a_card_slower_than_a_port_carries_a_message_once_at_its_own_speed():
    assert seconds(sends_across(1), 2, hosts=2, card="4Mbps") == pytest.approx(2 * PORT_S)


def test_ranks_of_one_host_do_not_use_its_card():
    async def program(ctx):
        if ctx.rank == 0:
            await ctx.net.send(1, TENSOR)
        elif ctx.rank == 1:
            await ctx.net.recv(0)

    assert seconds(program, 4, hosts=2, card="1kbps") == pytest.approx(PORT_S / 1000)


def test_a_card_sends_and_receives_at_the_same_time():
    async def program(ctx):
        other = 1 - ctx.rank
        sending = ctx.start(ctx.net.send(other, TENSOR))
        await ctx.net.recv(other)
        await sending

    assert seconds(program, 2, hosts=2, card="8Mbps") == pytest.approx(PORT_S)


def ring(ctx):
    return collectives.all_reduce(ctx, torch.zeros(8 * N), "ring")


def test_an_oversubscribed_switch_is_the_bottleneck_if_all_hosts_send():
    """A ring over 8 hosts sends on all of them in every round, so half of the bandwidth takes twice as long."""

    async def program(ctx):
        await ring(ctx)

    full, half, quarter = (seconds(program, 8, hosts=8, oversubscription=each) for each in (1.0, 2.0, 4.0))
    assert half / full == pytest.approx(2, rel=0.15)
    assert quarter / full == pytest.approx(4, rel=0.15)


def test_an_oversubscribed_switch_is_not_noticed_if_few_hosts_send():
    one = sends_across(1)
    assert seconds(one, 4, hosts=2, oversubscription=2.0) == pytest.approx(PORT_S)


@pytest.mark.parametrize("words", [{}, {"oversubscription": 2.0}, {"card": "8Mbps", "oversubscription": 3.0}])
def test_a_hierarchical_sum_suffers_less_than_one_ring_over_all_ranks(words):
    """The textbook's reason for it: it sends each byte once between hosts."""

    def with_algorithm(name):
        async def program(ctx):
            await collectives.all_reduce(ctx, torch.zeros(8 * N), name)

        return seconds(program, 16, hosts=4, **{"card": "8Mbps"} | words, order="cyclic")

    assert with_algorithm("hierarchical") < with_algorithm("ring") / 2


@pytest.mark.parametrize("across", [False, True])
def test_groups_that_share_no_card_are_timed_as_a_whole_with_the_same_result(monkeypatch, across):
    made = pl.models.GPT(2, 64, 8, 32, 64, 16, dtype=torch.bfloat16)
    cluster = pl.Simulated(
        workers=8,
        hosts=4 if across else 2,
        math="none",
        device="A100",
        link=pl.Link("200Gbps", "5us"),
        inside=pl.Link("2400Gbps", "2us"),
        card="100Gbps",
        oversubscription=1.5,
    )

    def run():
        return pl.train(made, "hybrid:pipeline=2,tensor=4,microbatches=4", cluster, steps=2)

    monkeypatch.setattr(whole_collective, "MANY", 4)
    whole = run()
    monkeypatch.setattr(whole_collective, "MANY", 10**9)
    singly = run()
    assert [each.seconds for each in whole.history] == [each.seconds for each in singly.history]


def test_weights_do_not_depend_on_cards(monkeypatch):
    plain = simulated(4, hosts=2)
    runs = [
        pl.train(a_task(), "all-reduce", each, steps=3)
        for each in (plain, dataclasses.replace(plain, card="1Mbps", oversubscription=2.0))
    ]
    assert torch.equal(runs[0].parameters, runs[1].parameters)
    assert runs[0].seconds < runs[1].seconds


def test_one_host_uses_the_link_inside():
    async def program(ctx):
        await ring(ctx)

    assert seconds(program, 4) == pytest.approx(seconds(program, 4, link=NEAR, inside=None))


def test_ranks_are_placed_in_blocks_in_turn_or_as_given():
    async def program(ctx):
        return list(ctx.net.hosts)

    def hosts(**words):
        return pl.run_program(program, simulated(4, **words)).results[0]

    assert hosts(hosts=2) == [0, 0, 1, 1]
    assert hosts(hosts=2, order="cyclic") == [0, 1, 0, 1]
    assert hosts(hosts=[3, 1]) == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("card", {"card": "10Gbps"}),
        ("card", {"card": "10 parsecs", "hosts": 2}),
        ("oversubscription", {"oversubscription": 2.0}),
        ("oversubscription", {"oversubscription": 0.5, "hosts": 2}),
        ("oversubscription", {"oversubscription": 2.0, "hosts": 2, "link": pl.Link.ideal()}),
        ("hosts", {"hosts": [3, 2]}),
        ("hosts", {"hosts": [4, 0]}),
        ("hosts", {"hosts": 5}),
        ("order", {"hosts": [3, 1], "order": "cyclic"}),
        ("inside", {"inside": "10Gbps"}),
    ],
)
def test_what_contradicts_itself_is_refused(argument, words):
    with refused(argument, words[argument]):
        simulated(4, **words)
