"""Thresholds of the checks of configurations."""

from __future__ import annotations

from diag.policy import Topic, threshold


class Linting(Topic, name="linting", fixed=True):
    """Which values of a configuration are worth a word."""

    misspelled_ratio = threshold(
        0.88,
        "fraction",
        "chosen: scripts parse fields of their own from the same file, so only what is nearly one of "
        "these is a mistake",
    )
    small_bucket = threshold(
        1_000_000, "elements", "chosen: 2 MB in 16 bits: below it a collective's time is bound by latency, not by bytes"
    )
    huge_prefetch = threshold(
        1_000_000_000,
        "elements",
        "chosen: a unit of 2 GB in 16 bits that is fetched at once, or parameters of 20 MB that every rank keeps whole",
    )
    huge_persistent = threshold(10_000_000, "elements", "chosen: see huge_prefetch")
    most_document_bytes = threshold(1 << 20, "bytes")
    most_expanded = threshold(1 << 16, "characters", "chosen", "of a script's line, with its variables filled in")
    deepest_level = threshold(50, "levels")
    most_digits = threshold(400, "digits")
    near_ratio = threshold(0.75, "fraction", "chosen", "of difflib's ratio")
    bubble_share = threshold(0.1, "fraction")


LINTING = Linting()
