"""Thresholds of how a run ended: how sure its records are, and how much of them is read."""

from __future__ import annotations

from diag.policy import Topic, threshold


class Ended(Topic, name="ended"):
    """How sure the records of a run directory are about a hang or a death."""

    rank_behind = threshold(0.9, "confidence")
    rank_silent = threshold(
        0.7,
        "confidence",
        "chosen",
        "a process that does not answer: stopped, swapping, or the interpreter's lock is held",
    )
    by_message = threshold(0.85, "confidence")
    ended_by_signal = threshold(0.9, "confidence")
    raised = threshold(0.87, "confidence", "chosen", "an exception of its own, not about other ranks")
    ended_by_code = threshold(0.85, "confidence")
    raised_by_several = threshold(0.75, "confidence")
    gone = threshold(
        0.75, "confidence", "chosen", "without an exit code: a signal that the process cannot see, or os._exit in C++"
    )
    aborted = threshold(
        0.6, "confidence", "chosen", "C++ calls abort() after any error, also after one that a peer caused"
    )
    lost_connection = threshold(
        0.6, "confidence", "chosen", "it lost a connection, while all the others were still running"
    )
    after_its_end = threshold(0.6, "confidence", "chosen", "the training had ended: what follows may matter to nobody")
    all_gone = threshold(0.5, "confidence")
    left_early = threshold(0.75, "confidence")
    clocks_apart_s = threshold(2, "s", "chosen", "clocks of two hosts differ, and error files have whole seconds")
    still_s = threshold(10.0, "s", "chosen", "without progress for longer, a run that is then ended may have hung")
    fresh_heartbeat_s = threshold(10.0, "s", "chosen", "a heartbeat is written every second, later on a busy host")
    last_log_lines = threshold(15, "lines")
    most_ends_shown = threshold(4, "rows")
    signal_to_one = threshold(0.9, "confidence")
    all_asked_to_end = threshold(0.85, "confidence")
    one_interrupted = threshold(0.85, "confidence")
    one_asked_to_end = threshold(0.7, "confidence", "chosen", "its own launcher may have sent it")
    ended_well = threshold(
        0.95,
        "confidence",
        "chosen: the launcher saw every process end with 0, and every rank recorded that its training reached its end",
    )
    ended_well_without_launcher = threshold(0.85, "confidence")
    most_ranks_named = threshold(4, "ranks")
    most_names = threshold(8, "names")
    sure_enough = threshold(0.35, "confidence", "chosen: an answer that is less sure than this names no cause")
    sure_enough_of_a_good_end = threshold(
        0.6, "confidence", "chosen", "for a failure of a run whose records say that it ended well"
    )
    no_culprit_factor = threshold(
        0.85, "fraction", "chosen", "a factor of the confidence where the evidence leads to no rank and no host"
    )
    out_of_memory_tail_bytes = threshold(64 << 10, "bytes")
    weak = threshold(0.5, "confidence", "chosen", "below it a clue gives way to stronger ones of the next priority")
    kept_triage_bytes = threshold(16 << 20, "bytes")
    exception_chars = threshold(200, "characters")
    collectives_tail_bytes = threshold(
        2 << 20, "bytes", "chosen", "of collectives.jsonl: the last steps; a step of 4,096 calls takes 400 kB"
    )
    collectives_tail_lines = threshold(
        64, "lines", "chosen", "of collectives.jsonl: a line is a step, and ranks that meet are within a few steps"
    )
    log_bytes = threshold(256 << 10, "bytes")
    traceback_chars = threshold(64 << 10, "characters", "chosen", "at the end of the log, searched line by line")


ENDED = Ended()
