"""Thresholds of reading traces: limits, caches, and what a trace has."""

from __future__ import annotations

from diag.policy import Topic, threshold


class TraceLimits(Topic, name="trace-limits", fixed=True):
    """What a trace may hold, and what is refused."""

    most_names = threshold(
        250_000,
        "names",
        "chosen: a training's trace has thousands of names; a trace with stacks and modules has tens of thousands",
    )
    most_heads = threshold(
        250_000,
        "heads",
        "chosen: as most_names",
        "categories, names and threads that are known together; then all are forgotten",
    )
    most_name_chars = threshold(
        4096, "characters", "chosen", "kernels of templates of templates have names of a few thousand characters"
    )
    most_threads = threshold(1_000_000, "threads")
    most_processes = threshold(10_000, "processes")
    most_piece_bytes = threshold(
        64 << 20,
        "bytes",
        "chosen: an event, the header and the trailer are each smaller than this, or the file is none of ours",
    )
    most_comm_rules = threshold(50, "rules")
    most_comm_rule_chars = threshold(200, "characters", "chosen", "length of an expression")
    matched_name_chars = threshold(
        1000, "characters", "chosen", "first characters of a kernel's name, which are matched"
    )
    most_snapshot_bytes = threshold(512 << 20, "bytes")
    snapshot_over_dump = threshold(
        4,
        "times",
        "chosen: multiple of the limits of Flight Recorder dumps: 900,000 events with stacks of 60 shared "
        "frames. Read in 0.12 s a MB",
    )
    most_failed_bytes_chars = threshold(8, "characters")
    largest_block_bytes = threshold(
        1 << 40, "bytes", "chosen", "of one block or segment; sums over all of them fit into 64 bits"
    )
    latest_us = threshold(1 << 53, "us")
    most_snapshot_text_chars = threshold(200, "characters")
    most_frames_named = threshold(8, "frames", "chosen", "of a stack, outside of torch and the standard library")
    archive_free_bytes = threshold(
        8 << 30, "bytes", "chosen", "also in addition to the traces: a core file is mostly zeros"
    )
    most_archive_members = threshold(100_000, "files", "chosen", "four times the largest run that is known")
    most_member_header_bytes = threshold(
        1 << 16,
        "bytes",
        "chosen: of the extended headers of one member, with its long name and attributes, and of those "
        "of the whole archive",
    )
    most_archive_headers_bytes = threshold(256 << 20, "bytes", "chosen: see most_member_header_bytes")
    most_foreign_files_shown = threshold(6, "files")
    foreign_bytes_searched = threshold(1 << 18, "bytes")
    tool_head_bytes = threshold(16 << 10, "bytes", "chosen", "the schema at the beginning of an SQLite database")
    most_tool_files = threshold(2_000, "files", "chosen", "that are looked at")
    most_tool_files_named = threshold(3, "files")
    names_of_one_trace = threshold(
        10_000,
        "names",
        "chosen: a trace with more names than the first does not share the vocabulary; no trace does once "
        "it would exceed the second",
    )
    most_shared_names = threshold(200_000, "names", "chosen: see names_of_one_trace")


TRACE_LIMITS = TraceLimits()


class TraceReading(Topic, name="trace-reading", fixed=True):
    """How traces are read: pieces, processes, and the cache."""

    cache_gb = threshold(20.0, "GB")
    rows_of_part = threshold(500_000, "rows")
    cache_read_bytes = threshold(1 << 20, "bytes")
    rows_a_byte = threshold(
        8, "rows", "chosen: a row takes a bit or more, unless all values of all its columns are equal"
    )
    rows_of_equal_values = threshold(1_000_000, "rows", "chosen: see rows_a_byte")
    blocks_at_once = threshold(4096, "blocks", "chosen: as many as fit into a core's cache")
    elements_at_once = threshold(8192, "elements", "chosen: see blocks_at_once")
    slot_bits = threshold(16, "bits")
    examples = threshold(
        8, "events", "chosen", "events; a chunk has kernels, copies, their launches, and few other kinds"
    )
    example_bytes = threshold(
        1024,
        "bytes",
        "chosen: of an example, in bytes: the part that must contain the keys, the text between two "
        "numbers, and a number",
    )
    example_text_bytes = threshold(40, "bytes", "chosen: see example_bytes")
    example_number_bytes = threshold(24, "bytes", "chosen: see example_bytes")
    other_layout_share = threshold(
        0.2, "fraction", "chosen", "fraction of events with another layout, above which the general decoder is used"
    )
    chunk_bytes = threshold(8 << 20, "bytes")
    worth_cutting_bytes = threshold(
        2 << 20,
        "bytes",
        "chosen: a shorter rest at the end of a file stays in one piece: in so few events hardly a line "
        "occurs twice, and decoding them as JSON takes no longer",
    )
    beginning_bytes = threshold(1 << 12, "bytes")
    snapshot_head_bytes = threshold(256, "bytes")
    most_bytes_of_failures = threshold(
        64 << 20,
        "bytes",
        "chosen: 0.12 s a MB",
        "of snapshots that are read for a failed allocation: names tell of more",
    )
    snapshot_block_bytes = threshold(1 << 20, "bytes")
    cached_from_bytes = threshold(
        16 << 20, "bytes", "chosen: reading a smaller file again takes no longer than loading it from the cache"
    )
    cached_from_gzip_bytes = threshold(1 << 20, "bytes", "chosen: see cached_from_bytes")
    processes_from_bytes = threshold(
        400 << 20, "bytes", "chosen: a process needs a third of a second to start: it pays from about this much text"
    )
    gzip_ratio = threshold(15, "times", "chosen", "compression of a trace, for estimates")
    cluster_timeout_s = threshold(10, "s")
    bytes_a_process = threshold(600 << 20, "bytes", "chosen", "of memory, at least")
    block_bytes = threshold(1 << 20, "bytes")
    held_rows = threshold(
        300_000,
        "rows",
        "chosen: a category with no more rows is held in memory between uses: an analysis of one trace "
        "selects events some thirty times, and polars needs 2 to 8 ms each time to find them in a file. "
        "Mostly 30 MB together",
    )


TRACE_READING = TraceReading()


class TraceContents(Topic, name="trace-contents"):
    """What a trace tells: its devices, and events that may matter."""

    least_operators_share = threshold(
        0.01,
        "fraction",
        "chosen: a process with a smaller share of the operators did not run the model: a stray event, or damage",
    )
    launched_share = threshold(
        0.9,
        "fraction",
        "chosen: the process that owns a device must have launched this share of the device's launched "
        "work, and this share of it must begin after its launch. If ranks number their launches alike, "
        "some launches of another rank come after the work that they seem to launch",
    )
    causal_share = threshold(0.99, "fraction", "chosen: see launched_share")
    least_unknown_events_share = threshold(
        0.02,
        "fraction",
        "chosen: fraction of a trace's time above which events of unknown kind may be work that matters",
    )
    captured_launches_share = threshold(
        0.3,
        "fraction",
        "measured: launch calls without work on the device. In whole traces of CUDA and ROCm 0 to 26 % "
        "(driver calls within runtime calls have their own numbers), in captures of graphs 39 to 99 %",
    )
    lost_launches_share = threshold(0.9, "fraction", "measured: see captured_launches_share")
    many_launches = threshold(100, "launches")


TRACE_CONTENTS = TraceContents()
