"""Thresholds of the tables: bandwidths, loading, memory, and what the timeline shows."""

from __future__ import annotations

from diag.policy import Topic, threshold


class Bandwidth(Topic, name="bandwidth"):
    """When bandwidths and loads are known, and how much of collectives is listed."""

    uneven_share = threshold(
        0.02,
        "fraction",
        "chosen",
        "the most that a rank receives, beyond the mean: below it all ranks count as receiving the same",
    )
    saturating_bytes = threshold(
        32 << 20,
        "bytes",
        "chosen: used without enough sizes to see where bandwidth saturates: NVLink's latency times "
        "bandwidth is about 2 MB, InfiniBand's about 20, and torch.distributed's own estimate for it "
        "never goes below 100 MB",
    )
    saturated_share = threshold(0.8, "fraction", "chosen", "fraction of the asymptotic bandwidth")
    least_sizes_for_a_line = threshold(
        3, "sizes", "chosen", "below these a line through the sizes is not meaningful (docs/concepts/replay.md)"
    )
    least_span_of_sizes = threshold(
        8,
        "times",
        "chosen",
        "the largest over the smallest size: below it a line through the sizes is not meaningful "
        "(docs/concepts/replay.md)",
    )
    most_calls_listed = threshold(10, "calls", "chosen", "listed individually")
    most_sizes_listed = threshold(
        8, "sizes", "chosen", "sizes of one group, operation and type; more are put into classes of powers of two"
    )


BANDWIDTH = Bandwidth()


class Efficiency(Topic, name="efficiency"):
    """What the efficiency of kernels is measured against."""

    least_different_shapes = threshold(2, "shapes")
    least_covered_time_share = threshold(
        0.8, "fraction", "chosen", "fraction of the time in matrix products, convolutions and attention, for HFU"
    )
    bf16_over_fp32 = threshold(
        16,
        "times",
        "chosen: a four-byte product may run on tensor cores (TF32) or not. The limit is not below a "
        "sixteenth of the BF16 peak: FP32 over BF16 is 1/8 on V100 and MI300X, 1/15 on H100, 1/16 on A100",
    )
    drift_of_trace_clock = threshold(
        1e-3,
        "fraction",
        "chosen: a trace's clock and the common one may tick differently, but real ones differ by less "
        "than this. A larger difference is a window that was shortened at its begin, because the device "
        "was still at a step of the previous trace. For a smaller one, the edges of modules are off by "
        "less than a thousandth of the step; no sum depends on it",
    )
    most_late_ranks_read = threshold(
        2,
        "ranks",
        "chosen: traces are read again for this, so of many ranks only these many are read: a median of "
        "four is steady enough",
    )
    most_other_ranks_read = threshold(4, "ranks", "chosen: a median of four is steady enough")


EFFICIENCY = Efficiency()


class LoaderReserve(Topic, name="loader-reserve"):
    """When a loader is faster than necessary."""

    least_steps = threshold(3, "steps")
    idle_workers_share = threshold(
        0.2,
        "fraction",
        "measured: a loader is faster than necessary if a fifth of its workers are idle, and at least "
        "half a worker: the median of workers that finish together may lie between two numbers. Measured "
        "with loaders that sleep, with 1 to 4 workers: none is idle with a head start alone, one or more "
        "if the loader is 1.3 times as fast as the training takes batches",
    )
    idle_workers = threshold(0.5, "workers", "measured: see idle_workers_share")
    waited_share = threshold(
        0.02, "fraction", "chosen", "fraction of a step from which on it counts as one that waited for data"
    )


LOADER_RESERVE = LoaderReserve()


class MemoryGrowth(Topic, name="memory-growth"):
    """When memory grows over the steps, and how much of it is shown."""

    least_steps = threshold(8, "steps", "chosen", "for a slope: with fewer, one large batch makes one")
    parts = threshold(5, "parts", "chosen", "parts of the run, most of which grow by a part of the slope")
    growing_parts_share = threshold(0.75, "fraction", "chosen", "of the parts of the run")
    growth_of_a_part = threshold(0.25, "fraction", "chosen", "of the slope: a part that grows by less does not grow")
    jump_share = threshold(
        0.5,
        "fraction",
        "chosen: as the run does without its largest rise",
        "of the run's growth: a larger rise in one step is a jump",
    )
    least_jump_bytes = threshold(1_000_000, "bytes", "chosen", "a larger rise in one step is a jump")
    most_points_of_curve = threshold(2_000, "points", "chosen", "points of a curve: more than the pixels of a page")
    most_bands_of_curve = threshold(400, "bands", "chosen", "phases of a curve that are kept, the longest ones")
    most_live_allocations_listed = threshold(10, "rows", "chosen", "rows of a table of live allocations")
    most_failures_kept = threshold(20, "failures")
    most_moments = threshold(240, "moments", "chosen", "of a history by category: each is at the peak of its bin")
    most_origins = threshold(
        48, "stacks", "chosen", "of a history, the largest ones; the others are summed by category"
    )
    most_segments_drawn = threshold(40, "segments", "chosen", "of the map of blocks, the largest ones")
    most_blocks_drawn = threshold(4_000, "blocks", "chosen", "of the map of blocks")
    most_allocations_compared = threshold(5, "allocations")


MEMORY_GROWTH = MemoryGrowth()


class Timeline(Topic, name="timeline", fixed=True):
    """How much of the timeline is drawn at once."""

    most_events_of_row = threshold(256, "events", "chosen", "of a row in a tile; a row with more is returned as cells")
    most_rows_of_lane = threshold(
        10, "rows", "chosen", "rows of a lane; the last row holds the number of deeper events"
    )
    most_rows_of_python_lane = threshold(
        48, "rows", "chosen", "rows of a lane; the last row holds the number of deeper events"
    )
    least_share_of_host = threshold(
        0.2, "fraction", "chosen", "of a gap: a call of the host that covers less is not named as what it did"
    )
    lead_ns = threshold(
        1_000_000_000,
        "ns",
        "chosen",
        "before a step on the clock of a trace that is made from records: Perfetto drops what comes before zero",
    )
    clock_margin_ns = threshold(
        1_000_000, "ns", "chosen", "error of the conversion back to the trace's clock if clocks drift"
    )


TIMELINE = Timeline()
