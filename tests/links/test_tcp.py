import os
import threading

import pytest
import torch
from links.ends import EncryptedEnds, TcpEnds
from processes import PATIENCE_S, has_signs, wait_until

from paceline.errors import ConfigurationError
from paceline.links.tcp import TcpEndpoint

RUN, TOKEN = bytes(16), bytes(range(16))


@pytest.fixture(params=[TcpEnds, EncryptedEnds], ids=["plain", "encrypted"])
def ends(request):
    ends = request.param(3)
    yield ends
    ends.close()


def endpoint(**changes):
    return TcpEndpoint(0, **{"run_id": RUN, "encrypt": False, "token": TOKEN} | changes)


def test_an_endpoint_is_on_the_loopback_interface_unless_told_otherwise(ends):
    addresses = [endpoint.seat.address for endpoint in ends.endpoints]
    assert len(set(addresses)) == 3
    assert all(address.startswith("tcp://127.0.0.1:") for address in addresses)


def test_each_endpoint_has_a_key_of_its_own_where_there_is_encryption(ends):
    keys = {endpoint.seat.public_key for endpoint in ends.endpoints}
    assert len(keys) == (3 if ends.encrypt else 1)
    assert all(len(key) == (40 if ends.encrypt else 0) for key in keys)


def test_an_address_that_cannot_be_had_leaves_nothing_behind():
    before = threading.active_count()
    with pytest.raises(ConfigurationError, match="bind must be an address of this host"):
        endpoint(bind="192.0.2.1")
    wait_until(lambda: threading.active_count() == before, "the endpoint's thread has ended")


def test_without_encryption_there_must_be_a_token():
    with pytest.raises(ConfigurationError, match="token must not be empty"):
        endpoint(token=b"")


def test_a_socket_is_opened_when_there_is_something_to_send(ends):
    assert [len(endpoint._sockets) for endpoint in ends.endpoints] == [1, 1, 1]
    ends.send(0, 1, torch.ones(3))
    ends.recv(1, 0)
    assert [len(endpoint._sockets) for endpoint in ends.endpoints] == [2, 1, 1]


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
    ends.send(0, 1, torch.ones(3))
    assert woken.wait(PATIENCE_S)
    assert endpoint.heard_s > 0
    assert not endpoint.has_news(), "it has been told"
    assert torch.equal(ends.recv(1, 0).tensor, torch.ones(3))


def test_news_that_somebody_else_has_taken_meanwhile_are_told_too(ends):
    """Or who waits for them would go to sleep."""
    endpoint = ends.endpoints[1]
    endpoint.has_news()
    ends.send(0, 1, torch.ones(3))
    ends.poll_until(endpoint.drain, "the chunk comes")
    assert not endpoint.drain()
    assert endpoint.has_news()
    assert not endpoint.has_news()


def test_another_run_with_the_same_token_is_refused(ends):
    if ends.encrypt:
        pytest.skip("has keys of its own")
    token = ends.endpoints[0].gate._token
    other = TcpEndpoint(1, run_id=os.urandom(16), encrypt=False, token=token)
    other.meet([endpoint.seat for endpoint in ends.endpoints])
    way = other.way(0)
    way._send(1, torch.ones(3).data_ptr(), 12)
    ends.poll_until(ends.endpoints[0].drain, "the chunk comes")
    assert ends.endpoints[0].refused == {("rank 1", "a chunk of another run"): 1}
    other.close()


def test_one_of_the_run_that_is_no_rank_is_refused(ends):
    """The driver may be let in; it has no messages to send."""
    endpoint = ends.endpoints[0]
    driver = TcpEndpoint(7, run_id=endpoint.run_id, encrypt=ends.encrypt, token=endpoint.gate._token)
    endpoint.gate.admit({"driver": driver.gate.keys.public})
    socket = driver.context.socket(8)  # PUSH
    socket.linger = 0
    driver.gate.introduce(socket, "driver", endpoint.seat.public_key)
    socket.connect(endpoint.seat.address)
    socket.send(b"hello")
    ends.poll_until(endpoint.drain, "the chunk comes")
    assert endpoint.refused == {("the driver", "a chunk of one who is no other rank"): 1}
    socket.close()
    driver.close()


def test_closing_lets_what_was_sent_leave_if_it_is_given_time(ends):
    ends.send(0, 1, torch.ones(60_000))
    ends.endpoints[0].close(linger_s=PATIENCE_S)
    ends.endpoints[0] = ends.endpoints[2]  # not to be closed twice
    assert torch.equal(ends.recv(1, 0).tensor, torch.ones(60_000))
    ends.endpoints.pop(0)
