"""Why a run that has just ended hung or crashed: the triage of its directory, kept there and printed."""

from __future__ import annotations

from contextlib import suppress

from diag.collectors.files import replace_file
from diag.collectors.layout import RunLayout
from diag.errors import DiagError
from diag.words.terminal import console, say


def say_why(layout: RunLayout) -> None:
    """Writes hang.json and prints the verdict on standard error. What the triage cannot read changes no exit code."""
    from diag.hang.api import triage
    from diag.show.triage import print_triage, to_json

    try:
        found = triage([str(layout.root)])
    except DiagError as error:
        say(f"diag: no triage: {error.message}", err=True)
        return
    with suppress(OSError):
        replace_file(layout.hang, to_json(found).encode() + b"\n", private=True)
    say(err=True)
    print_triage(found, console(err=True))
    say(err=True)
