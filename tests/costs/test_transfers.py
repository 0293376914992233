"""The link model: when messages start, and when they are delivered, if they share resources."""

import numpy as np
import pytest

from paceline.costs.transfers import Resource, ResourceArray, SharedLinks, arrival_order, sort_arrivals


def test_a_message_waits_until_its_port_is_free():
    port = Resource()
    assert [port.occupy(ready_s, 2.0) for ready_s in (1.0, 1.0, 9.0)] == [1.0, 3.0, 9.0]
    assert port.free_s == 11.0


def test_the_end_of_a_message_is_known_before_it_occupies_the_port():
    port = Resource(4.0)
    assert port.end_s(1.0, 2.0) == 6.0
    assert port.free_s == 4.0


def test_messages_of_one_instant_enter_by_start_and_then_by_rank():
    messages = [(5.0, 3.0, 1), (5.0, 2.0, 7), (5.0, 2.0, 4), (4.0, 3.5, 9)]
    ordered = sorted(messages, key=lambda each: arrival_order(*each))
    assert ordered == [messages[3], messages[2], messages[1], messages[0]]
    arrives_s, start_s, sources = (np.array(column) for column in zip(*messages, strict=True))
    assert sort_arrivals(np.zeros(4, np.int64), arrives_s, start_s, sources).tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize("shift", [1, 2])
def test_arrays_of_ports_give_what_single_ports_give(shift):
    rng = np.random.default_rng(0)
    size = 5
    free_s, ready_s, carry_s = rng.exponential(1.0, (3, size))
    singly = [Resource(each) for each in free_s]
    starts = [port.occupy(*each) for port, *each in zip(singly, ready_s, carry_s, strict=True)]
    at_once, by_rank, shifted = (ResourceArray(free_s) for _ in range(3))
    start_s = np.empty(size)
    at_once.occupy(ready_s, carry_s, start_s)
    assert start_s.tolist() == starts
    assert by_rank.occupy_some(np.arange(size), ready_s, carry_s).tolist() == starts
    shifted.occupy_shifted(ready_s, np.roll(carry_s, -shift), shift)
    for ports in (at_once, by_rank, shifted):
        assert ports.free_s.tolist() == [port.free_s for port in singly]


HOSTS = (0, 0, 0, 0, 1, 1, 1, 1)


def test_messages_through_one_card_take_turns_in_each_direction():
    shared = SharedLinks(HOSTS, card_s_per_byte=1.0, switch_s_per_byte=0.0)
    assert [shared.leave(rank, 0.0, 2) for rank in range(4)] == [2.0, 4.0, 6.0, 8.0]
    assert [shared.enter(rank, 0.0, 2) for rank in range(4)] == [2.0, 4.0, 6.0, 8.0]
    assert shared.leave(4, 0.0, 2) == 2.0  # another card


def test_a_switch_is_shared_by_all_hosts():
    shared = SharedLinks(HOSTS, card_s_per_byte=0.0, switch_s_per_byte=1.0)
    assert [shared.leave(rank, 0.0, 2) for rank in (0, 4)] == [2.0, 4.0]
    assert shared.enter(0, 1.0, 2) == 3.0  # bytes cannot arrive faster than the switch passes them


def test_a_message_flows_as_fast_as_its_slowest_resource():
    shared = SharedLinks(HOSTS, card_s_per_byte=0.5, switch_s_per_byte=0.25)
    assert (shared.flow_s(4, 1.0), shared.flow_s(4, 3.0)) == (2.0, 3.0)
    assert shared.crosses(3, 4)
    assert not shared.crosses(0, 3)
