"""Thresholds of the questions about collectives, and how sure an answer is that nothing else supports."""

from __future__ import annotations

from diag.policy import Topic, threshold


class Collectives(Topic, name="collectives"):
    """Who differs from the other members of a group, and who is behind them."""

    differs_from_most = threshold(0.9, "confidence")
    differs_from_itself = threshold(0.85, "confidence", "chosen", "it calls what it did not call one step before")
    differs_openly = threshold(0.6, "confidence", "chosen", "two ranks: one is wrong, and nothing shows which")
    most_shift = threshold(8, "calls", "chosen", "calls that a rank may have left out or made in addition")
    calls_after_shift = threshold(
        3, "calls", "chosen", "calls that must agree again after the shift, for it to count as one"
    )
    calls_compared_after = threshold(4_096, "calls", "chosen", "calls after the first that differs")
    pending_followed = threshold(
        64, "collectives", "chosen", "pending collectives of one group that are followed: the oldest ones"
    )


COLLECTIVES = Collectives()
