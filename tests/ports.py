"""How the processes of a test find each other on this machine."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_FIRST = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def rendezvous(folder: Path | str) -> str:
    """The address of a process group that is made once, in a file beside this folder: no port to be taken by others."""
    return f"file://{folder}.rendezvous"


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nobody listens on now. The system gives it to no connection and to no server that
    asks for any port, before it is bound."""
    above = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 0
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", random.randrange(_FIRST, above) if above > _FIRST else 0))
            except OSError:
                continue
            port: int = probe.getsockname()[1]
            return port
