"""A server that speaks NCCL RAS's client protocol as src/ras/client_support.cc has it, and ones that do not."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Answers = Callable[[int, bool], str]  # (the number of the request, JSON wanted): the report


def speaks(answers: Answers, has_json: bool = True) -> Callable[[socket.socket], None]:
    """One connection after the other. Lines end with a newline, perhaps behind a carriage return; case is ignored."""
    requests = 0

    def serve(client: socket.socket) -> None:
        nonlocal requests
        in_json, received = False, b""
        while piece := client.recv(1024):
            received += piece
            while b"\n" in received:
                line, _, received = received.partition(b"\n")
                command = line.decode().rstrip("\r").lower()
                if command.startswith("client protocol "):
                    client.sendall(b"SERVER PROTOCOL 2\n")
                elif command.startswith("timeout "):
                    client.sendall(b"OK\n")
                elif command.startswith("set format ") and has_json:
                    in_json = command.endswith("json")
                    client.sendall(b"OK\n")
                elif command in ("status", "verbose status"):
                    requests += 1
                    report = answers(requests, in_json).encode()
                    for start in range(0, len(report), 1000):  # it comes in pieces
                        client.sendall(report[start : start + 1000])
                    return
                else:
                    client.sendall(f"ERROR: Unknown command {line.decode()}\n".encode())

    return serve


def says(content: bytes) -> Callable[[socket.socket], None]:
    def serve(client: socket.socket) -> None:
        client.recv(1024)
        client.sendall(content)

    return serve


def silent(client: socket.socket) -> None:
    time.sleep(5)


def endless(client: socket.socket) -> None:
    client.recv(1024)
    client.sendall(b"SERVER PROTOCOL 2\nOK\nOK\n")
    while True:
        client.sendall(b"x" * (1 << 20))


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a server that answers until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = threading.Event()

        def run() -> None:
            while not ended.is_set():
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    try:
                        serve(client)
                    except OSError:
                        continue

        threading.Thread(target=run, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        ended.set()
