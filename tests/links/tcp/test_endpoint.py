"""One rank's connections: when they are made, by which rank, and which rank is woken."""

import logging
import os
import threading

import pytest
import torch
from links.ends import EncryptedEnds, TcpEnds
from links.tcp.parties import connect
from processes import PATIENCE_S, has_signs, wait_until
from refusals import refused

from paceline.context import ANY
from paceline.links.tcp import TcpEndpoint
from paceline.links.tcp.handshake import Authenticator, Channel

RUN, TOKEN = bytes(16), bytes(range(16))


@pytest.fixture(params=[TcpEnds, EncryptedEnds], ids=["plain", "encrypted"])
def ends(request):
    ends = request.param(3)
    yield ends
    ends.close()


def endpoint(**changes):
    return TcpEndpoint(0, **{"run_id": RUN, "encrypt": False, "token": TOKEN} | changes)


def connections(ends):
    return [len(endpoint._streams) for endpoint in ends.endpoints]


def test_an_endpoint_is_on_the_loopback_interface_unless_told_otherwise(ends):
    addresses = {(endpoint.address.host, endpoint.address.port) for endpoint in ends.endpoints}
    assert len(addresses) == 3
    assert {host for host, _ in addresses} == {"127.0.0.1"}


def test_each_endpoint_has_a_certificate_of_its_own_where_there_is_encryption(ends):
    certificates = {endpoint.address.certificate for endpoint in ends.endpoints}
    assert len(certificates) == (3 if ends.encrypt else 1)


def test_an_address_that_cannot_be_had_leaves_nothing_behind():
    before = threading.active_count()
    with refused("bind", "192.0.2.1"):
        endpoint(bind="192.0.2.1")
    assert threading.active_count() == before


def test_two_ranks_share_one_connection_made_when_there_is_something_to_send(ends):
    assert connections(ends) == [0, 0, 0]
    for source, to in ((0, 1), (1, 0), (0, 1)):
        ends.send(source, to, torch.ones(3))
        ends.recv(to, source)
    assert connections(ends) == [1, 1, 0]


@pytest.mark.parametrize("attempt", range(10))
def test_ranks_that_connect_to_each_other_at_the_same_time_agree_on_one_connection(ends, attempt):
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    for source, to in pairs:
        ends.send(source, to, torch.full((3,), float(10 * source + to)))
    for source, to in pairs:
        assert ends.recv(to, source).tensor.tolist() == [10 * source + to] * 3
    assert connections(ends) == [2, 2, 2]


def test_who_sleeps_at_its_file_is_woken_by_a_message(ends):
    endpoint = ends.endpoints[1]
    while endpoint.drain():
        pass
    woken = threading.Event()

    def sleep():
        while not endpoint.has_news():
            assert has_signs(endpoint, PATIENCE_S)
        woken.set()

    threading.Thread(target=sleep, daemon=True).start()
    sending = ends.send(0, 1, torch.ones(3))
    ends.poll_until(lambda: sending.done, "it is sent")
    assert woken.wait(PATIENCE_S)
    assert torch.equal(ends.recv(1, 0).tensor, torch.ones(3))
    assert endpoint.heard_s > 0


def test_what_another_program_of_the_rank_has_received_counts_as_news(ends):
    """Otherwise a program that waits for it would sleep."""
    endpoint = ends.endpoints[1]
    ends.send(0, 1, torch.ones(3))
    ends.recv(1, 0)
    assert endpoint.has_news()
    ends.poll_until(lambda: not endpoint.has_news(), "there is nothing more")


def test_who_cannot_send_sleeps_and_is_woken_when_there_is_room(ends):
    endpoint, large = ends.endpoints[0], torch.ones(2**23)
    sending = ends.send(0, 1, large)
    ends.poll_until(lambda: sending.sent > 0 and not endpoint.has_news(), "the buffers are full")
    assert not has_signs(endpoint, 0)
    receiving = ends.post(1, 0)
    receiving.poll()
    wait_until(lambda: receiving.poll() or has_signs(endpoint, 0), "the sender is woken")
    assert torch.equal(ends.finish(receiving).tensor, large)


def regroup(ends, members, generation=1):
    """Begin a generation of members, as its ranks do."""
    addresses = [each.address if rank in members else None for rank, each in enumerate(ends.endpoints)]
    for rank in members:
        ends.endpoints[rank].meet(addresses, generation=generation)
        ends.reopen(rank)


def test_a_message_of_an_earlier_generation_is_not_received_even_if_half_of_it_has_arrived(ends):
    large = torch.ones(2**23)
    sending, receiving = ends.send(0, 1, large), ends.post(1, 0)
    ends.poll_until(lambda: sending.sent > 0 and (receiving.poll() or receiving.received > 0), "it arrives")
    assert not receiving.done
    regroup(ends, [0, 1])
    ends.send(0, 1, torch.full((3,), 2.0))
    assert ends.recv(1, 0).tensor.tolist() == [2, 2, 2]
    assert connections(ends)[:2] == [1, 1]


def test_a_rank_that_stayed_in_an_earlier_generation_reaches_no_member(ends):
    ends.send(2, 0, torch.ones(3))
    ends.recv(0, 2)
    regroup(ends, [0, 1])
    for member in (0, 1):  # over its old connection, and over a new one
        ends.send(2, member, torch.ones(3))
    wait_until(lambda: ends.endpoints[1].acceptor.refused, "its new connection is refused")
    ends.send(1, 0, torch.full((3,), 2.0))
    assert ends.recv(0, ANY).tensor.tolist() == [2, 2, 2]
    assert connections(ends)[:2] == [1, 1]


def test_a_member_that_is_ahead_connects_when_the_other_has_begun_the_generation(ends):
    addresses = [each.address for each in ends.endpoints]
    ends.endpoints[0].meet(addresses, generation=1)
    ends.reopen(0)
    answers, answer = [], Authenticator.answer
    ends.endpoints[1].authenticator.answer = lambda socket, is_open: (
        answers.append(is_open),
        answer(socket, is_open=is_open),
    )
    sending = ends.send(0, 1, torch.ones(3))
    wait_until(lambda: answers, "it has tried to connect")
    assert not answers[0]
    ends.endpoints[1].meet(addresses, generation=1)
    ends.reopen(1)
    assert ends.recv(1, 0).tensor.tolist() == [1, 1, 1]
    assert sending.done


def test_a_process_with_another_run_or_token_is_refused(caplog):
    ends = TcpEnds(2)
    with caplog.at_level(logging.WARNING, "paceline"):
        other = TcpEndpoint(1, run_id=bytes(16), encrypt=False, token=b"another")
        other.meet([endpoint.address for endpoint in ends.endpoints])
        other.request(0)
        wait_until(lambda: caplog.records, "it is refused")
        other.close()
    assert caplog.messages == ["refused a connection from 127.0.0.1, which belongs to another run"]
    ends.close()


def test_a_process_that_is_no_rank_cannot_send_tensors(ends):
    """The hub may be admitted: it has no tensors to send."""
    own = ends.endpoints[0]
    hub = TcpEndpoint(7, run_id=own.authenticator._run_id, encrypt=ends.encrypt, token=b"x")
    hub.authenticator.name, hub.authenticator._token = "hub", own.authenticator._token
    own.authenticator.admit({"hub": hub.address.certificate})
    hub.authenticator.admit({"0": own.address.certificate})
    assert connect(hub.authenticator, own.address, "0", Channel.DATA) is None
    hub.close()


def test_what_was_sent_arrives_after_its_sender_has_closed(ends):
    sending = ends.send(0, 1, torch.ones(10_000))
    ends.poll_until(lambda: sending.done, "it is sent")
    ends.endpoints.pop(0).close()
    assert torch.equal(ends.recv(1, 0).tensor, torch.ones(10_000))


def test_closing_ends_handshakes_of_both_sides_and_leaves_no_socket(ends):
    files = len(os.listdir("/proc/self/fd"))
    for source, to in ((0, 1), (1, 0), (2, 0), (0, 2)):
        ends.send(source, to, torch.ones(3))
    for endpoint in ends.endpoints:
        endpoint.close()
    assert len(os.listdir("/proc/self/fd")) <= files
    ends.endpoints.clear()


def test_closing_ends_an_attempt_that_waits_for_an_answer():
    """The other rank has not received the members of the run yet, and does not accept."""
    own, silent = (TcpEndpoint(r, run_id=RUN, encrypt=False, token=TOKEN) for r in range(2))
    own.meet([own.address, silent.address])
    own.request(1)
    wait_until(lambda: len(own._attempts), "it has connected")
    own.close()
    assert not any(thread.name == "tcp-connect-1" for thread in threading.enumerate())
    silent.close()


def test_closing_ends_attempts_to_connect():
    ends = TcpEnds(2)
    ends.endpoints[1].close()
    ends.send(0, 1, torch.ones(3))
    ends.endpoints[0].close()
    wait_until(
        lambda: not any(thread.name.startswith("tcp-connect") for thread in threading.enumerate()),
        "the thread that connects has ended",
    )
