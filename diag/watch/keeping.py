"""What the watcher of a job asks its ranks to keep: the full detail of the steps around an incident."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict

from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.packing import Packing
from diag.collectors.policy import RECORDING
from diag.collectors.reading import object_of, read_object
from diag.collectors.records import STUCK, VERDICT, KeepAsked
from diag.errors import DiagError
from diag.store.requests import ask_nodes, asked_now
from diag.store.stores import Store

from .events import Event
from .policy import WATCHING


def keep_around(event: Event, newest: RunLayout, packing: Packing | None) -> None:
    """Asks the ranks to keep the steps around what the event says, if it is an incident. A request that cannot be made
    is none: the training and its watcher go on."""
    if event.over or event.step is None or event.kind not in (STUCK, VERDICT):
        return
    # A verdict is on the newest steps, and told when it holds in two looks.
    before = WATCHING.kept_before_verdict if event.kind == VERDICT else RECORDING.kept_around
    with suppress(DiagError, OSError):
        ask_to_keep(newest, max(0, event.step - before), event.step + RECORDING.kept_around, event.kind, packing)


def ask_to_keep(layout: RunLayout, first: int, last: int, why: str, packing: Packing | None = None) -> None:
    """Writes a request for every rank of the job, next to the last ones. DiagError or OSError where it cannot be
    written."""
    name = layout.keep_asked.name
    store = Store(packing.to) if packing is not None else None
    if store is None:
        content = read_object(layout.keep_asked, layout.root)
    else:
        content = object_of(asked_now(store).files.get(name, ""))
    spans = content.get("spans")
    before = [entry for entry in spans if isinstance(entry, dict)] if isinstance(spans, list) else []
    numbers = [number for entry in before if isinstance(number := entry.get("number"), int)]
    asked = KeepAsked(max(numbers, default=0) + 1, first, last, why, time.time_ns())
    data = encode({"spans": [*before[-WATCHING.kept_requests :], asdict(asked)]})
    if store is None:
        replace_file(layout.keep_asked, data)
    else:
        ask_nodes(store, name, data)
