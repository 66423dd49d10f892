"""Thresholds of predicted gains and of advice."""

from __future__ import annotations

from diag.policy import Topic, threshold


class Advice(Topic, name="advice"):
    """Which changes are advised."""

    most_changes_advised = threshold(3, "changes")
    least_gain_share = threshold(
        0.02, "fraction", "chosen: two equal runs differ by as much: a smaller gain is not worth trying"
    )
    nearly_equal_gain_share = threshold(
        0.05,
        "fraction",
        "chosen",
        "of the step: among settings of one knob that gain about the same, the most modest is advised",
    )
    free_memory_share = threshold(
        0.05,
        "fraction",
        "chosen: fraction of a device's capacity that stays free: the allocator rounds up and fragments",
    )
    samples_of_curve = threshold(48, "samples", "chosen", "of a curve, which bends only at its few points")
    units_gathered_at_once = threshold(
        3,
        "units",
        "chosen: units that are gathered at the same time: one in use, one gathered ahead, one being "
        "freed (docs/concepts/sharding.md)",
    )
    worth_acting_share = threshold(
        0.05, "fraction", "chosen", "of the step: what costs less is mentioned, not acted on (docs/concepts/verdict.md)"
    )
    deepest_prefetch = threshold(3, "units")
    most_loader_workers = threshold(32, "workers")


ADVICE = Advice()


class Replay(Topic, name="replay"):
    """How a run is replayed, and when its prediction is believed."""

    span_of_sizes = threshold(
        8,
        "times",
        "chosen",
        "the largest over the smallest size: from here on, a curve separates latency from bandwidth",
    )
    error_between_sizes = threshold(
        0.17,
        "fraction",
        "measured: errors at a held-out size, gloo on a noisy machine: the mean; and the worst, which is "
        "used for sizes far from all measured ones",
    )
    error_far_from_sizes = threshold(0.34, "fraction", "measured: see error_between_sizes")
    waiting_step_share = threshold(
        0.05, "fraction", "chosen", "of a step: from here on, the step counts as one that waited for data"
    )
    mostly_share = threshold(0.8, "fraction")
    ready_batch_ns = threshold(
        2_000_000,
        "ns",
        "measured: 1 to 2 ms on a busy host",
        "to take a batch that is ready from a loader's process",
    )
    error_of_batch_time = threshold(
        0.1, "fraction", "chosen", "by how much a batch may take longer or shorter than the average"
    )
    same_time_ns = threshold(
        50_000,
        "ns",
        "chosen",
        "the end of a kernel and the start of the one that waited for it, and a thread's wake-up",
    )
    queued_ns = threshold(20_000, "ns")
    most_replayed_steps = threshold(
        64,
        "steps",
        "measured: a straggler in 15 patterns over 1,000 steps: gains within 0.4 % of the step. 128 steps of 64 ranks "
        "take twice the time (November 2026)",
    )
    steps_of_stretch = threshold(
        8, "steps", "measured: consecutive, because ranks drift across the borders of steps (see most_replayed_steps)"
    )
    most_replayed_rank_steps = threshold(
        10_240,
        "rank-steps",
        "measured: steps times ranks that are replayed: ten steps of a thousand ranks predict a gain as well as forty",
    )
    least_ranks_in_lockstep = threshold(
        5,
        "ranks",
        "measured: with four, an operation of all ranks at once takes as long as one rank after the other",
    )
    unmatched_communication_share = threshold(
        0.05, "fraction", "chosen", "of the communication in calls of which no other rank's part is known"
    )
    replay_error = threshold(
        0.05, "fraction", "chosen", "of the unmodified replay: above it nothing is predicted (docs/concepts/replay.md)"
    )
    error_of_step = threshold(
        0.05,
        "fraction",
        "measured: how far measured gains lie beyond the interval of the costs, as fractions of the step "
        "and of the gain: with both, 35 of 36 real changes are inside; 17 without "
        "(tests/bench/PREDICTIONS.md)",
    )
    error_of_gain = threshold(0.1, "fraction", "measured: see error_of_step")
    small_collective_bytes = threshold(64, "bytes", "chosen", "bytes: norms, losses and flags, which are no gradients")
    slowdown_of_overlapped = threshold(
        0.34,
        "fraction",
        "measured: fraction of a gather's time by which the overlapped computation became longer, on a "
        "host whose ranks had a core each: gloo moves the bytes on the same cores. On an emulated wire "
        "that only sleeps it was 0",
    )


REPLAY = Replay()
