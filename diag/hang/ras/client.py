"""Asks the RAS thread of a running NCCL job for a report, as ``ncclras`` does.

The protocol is lines of text (NCCL's src/ras/client.cc, the same from 2.24 to 2.30): ``CLIENT PROTOCOL 2`` is answered
by ``SERVER PROTOCOL 2``; ``TIMEOUT <seconds>`` and ``SET FORMAT json`` by ``OK`` or ``ERROR: ...`` (JSON since 2.28.7);
after ``VERBOSE STATUS`` comes the report, and the server closes the connection. Any one process answers for its job.
"""

from __future__ import annotations

import os
import re
import socket
import time
from dataclasses import dataclass

from diag.errors import DiagError
from diag.hang.policy import NCCL_RAS
from diag.words.formatting import visible

VARIABLE = "NCCL_RAS_ADDR"
ADDRESS = "localhost:28028"

_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\s:\[\]]*))(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True)
class Asked:
    """A report that was just fetched, and from where."""

    name: str
    data: bytes


def is_address(text: str) -> bool:
    """Whether a text is HOST:PORT, with both."""
    match = _ADDRESS.fullmatch(text)
    return match is not None and bool(match["port"]) and bool(match["six"] or match["host"])


def address_of(address: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``, ``HOST``, ``:PORT`` or ``[::1]:PORT``; missing parts come from NCCL_RAS_ADDR,
    else from NCCL's default. Raises DiagError."""
    host, port = "localhost", 28028
    for text in (ADDRESS, os.environ.get(VARIABLE, ""), address):
        match = _ADDRESS.fullmatch(text.strip())
        if match is None or int(match["port"] or 1) not in range(1, 65536):
            where = "" if text == address else f" ({VARIABLE})"
            raise DiagError(
                f"{visible(text)!r}{where} is not an address", hint="Give HOST:PORT, for example localhost:28028."
            )
        host = match["six"] or match["host"] or host
        port = int(match["port"] or port)
    return host, port


def ask(address: str = "", answer_s: float | None = None) -> Asked:
    """One report, in JSON where the job's NCCL supports it. Raises DiagError where nothing or something else answers,
    or not within ``answer_s`` seconds."""
    answer_s = NCCL_RAS.answer_s if answer_s is None else answer_s
    host, port = address_of(address)
    name = f"{host}:{port}" if ":" not in host else f"[{host}]:{port}"
    try:
        with _Connection(host, port, time.monotonic() + answer_s) as connection:
            hello = connection.asked("CLIENT PROTOCOL 2")
            if not hello.upper().startswith("SERVER PROTOCOL "):
                raise DiagError(
                    f"{name} answers, but is not NCCL RAS: {visible(hello[:80])!r}",
                    hint=f"Give the address of the job's RAS socket; {VARIABLE} of the job sets it.",
                )
            connection.asked(f"TIMEOUT {NCCL_RAS.wait_for_ranks_s}")
            connection.asked("SET FORMAT json")  # a server that does not know it sends text
            connection.send("VERBOSE STATUS")
            report = connection.rest()
    except TimeoutError:
        raise DiagError(
            f"NCCL RAS at {name} did not answer within {answer_s:.0f} s",
            hint="The process that holds the socket may be stopped: ask on another node of the job.",
        ) from None
    except UnicodeError:  # from the resolver: no valid host name
        raise DiagError(
            f"{visible(name)!r} is not an address", hint="Give HOST:PORT, for example localhost:28028."
        ) from None
    except OSError as error:
        raise DiagError(
            f"no NCCL RAS answers at {name}: {error.strerror or error}",
            hint="Ask on a node where the job runs. It needs NCCL 2.24 or newer, communicators that exist, and no "
            f"NCCL_RAS_ENABLE=0; {VARIABLE} sets another address.",
        ) from None
    if not report.strip():
        raise DiagError(f"NCCL RAS at {name} closed the connection without a report", hint="Ask again.")
    asked = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    head = b"" if report.lstrip().startswith(b"{") else f"{asked} NCCL RAS report of {name}\n".encode()
    return Asked(f"NCCL RAS {name} {asked[11:]}", head + report)


def ask_twice(address: str = "", apart_s: float | None = None) -> list[Asked]:
    """Two reports, some seconds apart: a single one cannot distinguish a hang from a running job. Only the first where
    the job does not answer again."""
    reports = [ask(address)]
    time.sleep(NCCL_RAS.reports_apart_s if apart_s is None else apart_s)
    try:
        return [*reports, ask(address)]
    except DiagError:
        return reports


class _Connection:
    """Every wait ends at the deadline; every answer is bounded."""

    def __init__(self, host: str, port: int, deadline: float) -> None:
        self._deadline = deadline
        self._socket = socket.create_connection((host, port), timeout=min(NCCL_RAS.connect_s, self._left()))
        self._read = b""

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def send(self, command: str) -> None:
        self._socket.settimeout(self._left())
        self._socket.sendall(f"{command}\n".encode())

    def asked(self, command: str) -> str:
        """The line that answers a command."""
        self.send(command)
        while b"\n" not in self._read and len(self._read) < NCCL_RAS.most_answer_line_bytes:
            piece = self._piece()
            if not piece:
                break
            self._read += piece
        line, _, self._read = self._read.partition(b"\n")
        return line[: NCCL_RAS.most_answer_line_bytes].decode(errors="replace").strip()

    def rest(self) -> bytes:
        """All bytes until the server closes the connection."""
        data = bytearray(self._read)
        while piece := self._piece():
            data += piece
            if len(data) > NCCL_RAS.most_report_bytes:
                raise DiagError(
                    f"the report is larger than {NCCL_RAS.most_report_bytes >> 20} MiB", hint="Is this NCCL RAS?"
                )
        return bytes(data)

    def _piece(self) -> bytes:
        self._socket.settimeout(self._left())
        return self._socket.recv(NCCL_RAS.piece_bytes)
