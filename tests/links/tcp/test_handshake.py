"""Admitted processes and their names."""

import socket
import threading

import pytest
from links.tcp.parties import RUN, House, connect
from processes import PATIENCE_S, wait_until
from refusals import raised, refused

from paceline.errors import FrameError
from paceline.links.tcp.address import PeerAddress
from paceline.links.tcp.handshake import _HELLO, Authenticator, Channel


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def house(request):
    house = House(request.param)
    yield house
    house.close()


def outcome(house):
    wait_until(lambda: house.found, "the house has decided")
    return house.found[-1][0]


def test_a_process_of_the_run_is_let_in_under_its_name(house):
    with house.call(house.caller("7"), channel=Channel.HEAR):
        peer = outcome(house)
        assert (peer.name, peer.channel, peer.is_newcomer) == ("7", Channel.HEAR, False)


def test_bytes_pass_in_both_directions_after_the_handshake(house):
    with house.call(house.caller()) as connected:
        wait_until(lambda: house.found, "the house has let it in")
        other = house.found[0][1]
        connected.sendall(b"there")
        other.sendall(b"and back")
        assert other.recv(100) == b"there"
        assert connected.recv(100) == b"and back"


def test_more_processes_can_be_admitted_later(house):
    house.call(house.caller("1")).close()
    late = house.caller("2", is_admitted=False)
    with pytest.raises((OSError, FrameError)):
        house.call(late)
    house.admit(late)
    house.call(late).close()


@pytest.mark.parametrize(
    "changes",
    [
        {"is_admitted": False},
        {"run_id": bytes(16)},
    ],
    ids=["unknown", "another run"],
)
def test_a_process_that_does_not_belong_to_the_run_is_refused(house, changes):
    with pytest.raises((OSError, FrameError)):
        house.call(house.caller(**changes))
    assert isinstance(outcome(house), OSError | FrameError)


def test_a_wrong_token_is_refused_before_the_caller_has_proved_anything():
    house = House(encrypt=False)
    with raised(FrameError, "token"):
        house.call(house.caller(token=b"guessed"))
    assert isinstance(outcome(house), OSError), "the caller has left"
    house.close()


def test_a_certificate_serves_for_its_own_name_alone():
    house = House(encrypt=True)
    liar = house.caller("1")
    house.caller("2")
    liar.name = "2"
    with pytest.raises((OSError, FrameError)):
        house.call(liar)
    assert str(outcome(house)) == "is not a process of this run"
    house.close()


def test_a_server_with_another_certificate_is_not_talked_to():
    house, other = House(encrypt=True), House(encrypt=True)
    caller = house.caller()
    caller.admit({"other": other.own.certificate})
    impostor = PeerAddress(other.address.host, other.address.port, house.own.certificate)
    with raised(FrameError, "certificate"):
        connect(caller, impostor, "0")
    for each in (house, other):
        each.close()


def test_a_server_of_another_name_is_not_talked_to(house):
    with raised(FrameError, 5):
        house.call(house.caller(), name="5")


def test_a_side_that_does_not_want_the_connection_says_so(house):
    caller = house.caller()
    house.own.answer = lambda connected, is_open: Authenticator.answer(connected, is_open=False)
    assert house.call(caller) is None


def test_what_was_said_in_an_earlier_handshake_does_not_open_another():
    house = House(encrypt=False)
    recorder = socket.create_server(("127.0.0.1", 0))
    caller, said = house.caller(), []

    def relay():
        near, _ = recorder.accept()
        with near, socket.create_connection((house.address.host, house.address.port)) as far:
            for size, back in ((_HELLO.size, 84), (34, 1)):
                said.append(near.recv(size, socket.MSG_WAITALL))
                far.sendall(said[-1])
                near.sendall(far.recv(back, socket.MSG_WAITALL))

    thread = threading.Thread(target=relay, daemon=True)
    thread.start()
    address = PeerAddress(*recorder.getsockname())
    connect(caller, address, "0").close()
    thread.join(PATIENCE_S)
    assert not isinstance(outcome(house), Exception), "the recorded handshake was good"
    with socket.create_connection((house.address.host, house.address.port)) as replayed:
        replayed.sendall(b"".join(said))
        wait_until(lambda: len(house.found) == 2, "the house has decided")
    assert str(outcome(house)) == "does not have this run's token"
    recorder.close()
    house.close()


def test_a_challenge_sent_back_is_no_proof():
    house = House(encrypt=False)
    house.caller("0")
    with socket.create_connection((house.address.host, house.address.port)) as mirror:
        mirror.sendall(b"PLH2" + RUN + bytes(4) + b"\0" + b"0".ljust(16, b"\0") + bytes(32))
        challenge = mirror.recv(84, socket.MSG_WAITALL)
        mirror.sendall(challenge[-32:] + bytes(2))
        assert str(outcome(house)) == "does not have this run's token"
    house.close()


# Newcomers


@pytest.fixture
def open_house():
    house = House(encrypt=True, token=b"secret")
    house.own.accepts_newcomers = True
    yield house
    house.close()


def test_a_newcomer_with_the_token_is_let_in_and_its_certificate_can_be_admitted(open_house):
    newcomer = open_house.caller("9", is_admitted=False, token=b"secret")
    with open_house.call(newcomer, is_newcomer=True):
        peer = outcome(open_house)
    assert (peer.name, peer.is_newcomer, peer.certificate) == ("9", True, newcomer.certificate)
    open_house.admit(newcomer)
    with open_house.call(newcomer):
        wait_until(lambda: len(open_house.found) == 2, "it is let in again")
    assert not outcome(open_house).is_newcomer


def test_a_newcomer_without_the_token_is_refused(open_house):
    with raised(FrameError, "token"):
        open_house.call(open_house.caller("9", is_admitted=False, token=b"guessed"), is_newcomer=True)


def test_newcomers_are_refused_where_none_are_expected(open_house):
    open_house.own.accepts_newcomers = False
    with pytest.raises((OSError, FrameError)):
        open_house.call(open_house.caller("9", is_admitted=False, token=b"secret"), is_newcomer=True)
    assert isinstance(outcome(open_house), OSError | FrameError)


def test_a_newcomer_is_marked_as_one_whatever_name_it_gives(open_house):
    newcomer = open_house.caller("0", is_admitted=False, token=b"secret")
    with open_house.call(newcomer, is_newcomer=True):
        assert outcome(open_house).is_newcomer


def test_without_encryption_there_must_be_a_token():
    with refused("token"):
        Authenticator("0", run_id=RUN, token=b"", encrypt=False)
