"""What is asked of the ranks of a packed run: one document in its store, which the packers of all nodes read.

    <run>/requests.json    by the name of a file in the run directory, its content

A packer writes these files into its node's folder, where the ranks look for them, and removes those that are no longer
asked.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from diag.collectors.layout import RunLayout
from diag.decoding import json_decoder
from diag.errors import DiagError
from diag.store.policy import SEGMENTS
from diag.store.stores import Store

NAME = "requests.json"
_RUN = RunLayout(Path())
# Whoever can write to the store asks nothing else.
ASKABLE = frozenset({_RUN.asked.name, _RUN.trace_asked.name, _RUN.keep_asked.name})


class Requests(Struct):
    files: dict[str, str] = {}


def requests_in(content: bytes | None) -> Requests | None:
    """What a document asks; nothing where there is none. None where we did not write it, or it is not whole: a server
    gives half of it while it is being written."""
    if content is None:
        return Requests()
    try:
        asked = json_decoder(Requests).decode(content) if len(content) <= SEGMENTS.most_request_bytes else None
    except msgspec.MsgspecError:
        return None
    if asked is None:
        return None
    return Requests({name: text for name, text in asked.files.items() if name in ASKABLE})


def asked_now(store: Store) -> Requests:
    """What is asked of the nodes. DiagError where the store does not answer."""
    return requests_in(store.read_if_there(NAME)) or Requests()


def ask_nodes(store: Store, name: str, content: bytes | None) -> None:
    """Asks this of all nodes, in addition to what is asked under other names; None takes it back. DiagError where the
    store does not answer."""
    if name not in ASKABLE:
        raise DiagError(f"{name} is no request")
    files = asked_now(store).files
    if content is None:
        files.pop(name, None)
    else:
        files[name] = content.decode()
    store.write(NAME, msgspec.json.encode(Requests(files)))
