"""A worker behind a line of its own: pulls parameters, takes its time, pushes a gradient.

    python -m evenstep.reproduce.linked_worker NUM_BYTES

It runs in a network namespace. It says `ready`, is told an address on its standard input, connects
there, and goes on until the other side hangs up.
"""

from __future__ import annotations

import socket
import struct
import sys
import time

HEADER = struct.Struct("!d")
"""How many seconds the worker takes, before the parameters."""


def main() -> None:
    num_bytes = int(sys.argv[1])
    print("ready", flush=True)
    host, port = sys.stdin.readline().split()
    with socket.create_connection((host, int(port)), timeout=60) as line:
        while header := receive(line, HEADER.size):
            receive(line, num_bytes)
            time.sleep(HEADER.unpack(header)[0])
            line.sendall(bytes(num_bytes))


def receive(line: socket.socket, num_bytes: int) -> bytes:
    """Return so many bytes, or none where the other side has hung up."""
    content = bytearray()
    while len(content) < num_bytes:
        piece = line.recv(num_bytes - len(content))
        if not piece:
            return b""
        content += piece
    return bytes(content)


if __name__ == "__main__":
    main()
