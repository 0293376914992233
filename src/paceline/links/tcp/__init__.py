"""Message passing between ranks that share no memory: one TCP connection for each pair of ranks.

identity    a key and a certificate for each process
handshake   both sides prove that they belong to the run, before any data
attempts    handshakes under way, which another thread can end
acceptor    a thread that accepts connections and authenticates them
streams     non-blocking bytes over a connection, plain or TLS
cuts        times in which messages are held back, to test a network that fails
way         tensors over one connection, in both directions
endpoint    the ways of one rank
"""

from paceline.links.tcp.address import PeerAddress
from paceline.links.tcp.endpoint import TcpEndpoint, TcpWays
from paceline.links.tcp.handshake import RUN_ID_BYTES

__all__ = ["RUN_ID_BYTES", "PeerAddress", "TcpEndpoint", "TcpWays"]
