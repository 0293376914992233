"""A process that holds two hub's sockets, one encrypted and one not, and tells how much memory it takes.

Words come by its input, one a line: `reset` and `peak`. A line of JSON answers each, after both sockets have looked at
their connections. A letter that arrives is answered by one of the same word.
"""

from __future__ import annotations

import json
import select
import sys
import time
from pathlib import Path

from paceline.clusters.hosts.hub_socket import HubSocket

TOKEN = b"t" * 16


def main(public_key: str) -> None:
    made = [
        HubSocket(bind="127.0.0.1", encrypt=encrypt, token=TOKEN, ports=None) for encrypt in (True, False)
    ]
    for socket in made:
        socket.admit({"0": public_key.encode()})
    answer([(socket.seat.address, socket.seat.public_key.decode()) for socket in made])
    while True:
        listen(made)
        if select.select([sys.stdin], [], [], 0)[0]:
            word = sys.stdin.readline().strip()
            if not word:
                return
            time.sleep(0.11)  # as long as a socket may wait before it looks again
            listen(made)
            if word == "reset":
                Path("/proc/self/clear_refs").write_text("5")  # the peak is now what it takes at present
            answer(peak_bytes())


def listen(made: list[HubSocket]) -> None:
    for socket in made:
        for arrival in socket.receive(0.01):
            if arrival.letter is not None:
                socket.send(arrival.sender, arrival.letter.word)


def peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("VmHWM:")]
    return 1024 * int(line.split()[1])


def answer(value: object) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
