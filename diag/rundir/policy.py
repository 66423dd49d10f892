"""Thresholds of the run directory: jobs, silence of ranks, and how much is read."""

from __future__ import annotations

from diag.policy import Topic, threshold


class Jobs(Topic, name="jobs"):
    """Which traces belong to one job."""

    started_apart_ns = threshold(
        600 * 10**9,
        "ns",
        "chosen: a process without a step was started at about the same time as the others of its host",
    )
    traces_apart_ns = threshold(
        24 * 3600 * 10**9,
        "ns",
        "chosen: traces further apart are more likely of another process with the same id, or of ranks of another job",
    )
    clock_skew_ns = threshold(
        5 * 10**9,
        "ns",
        "chosen: clocks of hosts, and windows of ranks, differ by up to this much in one job. Starting "
        "another job takes longer",
    )
    one_world_ns = threshold(600 * 10**9, "ns", "chosen: limit for ranks in different folders that name the same world")
    time_of_day_from_ns = threshold(
        10**18,
        "ns",
        "chosen: September 2001. An earlier time is no time of day: it counts since boot, or the clock was never set",
    )
    common_names_share = threshold(
        0.3,
        "fraction",
        "measured: names that two traces have in common, as a fraction of all their names. Ranks of one "
        "job: 0.9 and more. Different programs: mostly 0.25 and less (public traces of five repositories, "
        "November 2026)",
    )
    copied_starts_share = threshold(
        0.5, "fraction", "chosen", "fraction of start times: a copy shares more; two processes share a few by chance"
    )
    most_compared_traces = threshold(
        64,
        "traces",
        "chosen: a process records one trace at a time, so few others can be its earlier windows, its copies or the "
        "most similar job; of more, only the nearest in time are compared. A folder may hold thousands of them",
    )
    most_starts_compared = threshold(8_000_000, "starts", "chosen", "64 MB")
    clock_set_by_ns = threshold(
        60 * 10**9, "ns", "chosen: the profiler follows the wall clock, which may be set while a training runs"
    )
    restart_ns = threshold(10**9, "ns", "chosen", "a process takes longer from its start to its first step")
    least_common_steps = threshold(3, "steps")
    common_calls_share = threshold(
        0.5,
        "fraction",
        "chosen",
        "fraction of calls with the same operation and size; ranks of one job have nearly all",
    )
    most_jobs_named = threshold(8, "jobs", "chosen", "jobs, in a message")
    most_pieces_named = threshold(3, "run directories", "chosen", "in the name of a job of several, one a node")
    backward_calls_of_training = threshold(3, "calls", "chosen", "calls of backward")


JOBS = Jobs()


class Silence(Topic, name="silence"):
    """When a process or a training counts as silent."""

    silent_s = threshold(
        30.0, "s", "chosen: a collector writes a heartbeat every second, independently of the training"
    )
    first_silent_s = threshold(
        120.0,
        "s",
        "measured: while it imported its libraries, a rank sent no heartbeat for 37 s, on a host with ten times more "
        "busy threads than cores",
    )
    least_still_s = threshold(
        10.0, "s", "chosen", "without a step; a heartbeat that is as old shows that its process is silent as well"
    )
    ending_s = threshold(60.0, "s", "chosen", "that processes take to end after the training of all of them has raised")
    still_steps = threshold(20, "times", "chosen", "times the usual step")
    own_times = threshold(
        1.5,
        "times",
        "chosen: the longest step, evaluation or checkpoint of this training so far, by so much: the next one is about "
        "as long",
    )
    first_busy_s = threshold(
        600.0, "s", "chosen", "for an evaluation, a checkpoint or a compilation if no earlier one shows its length"
    )
    first_pause_s = threshold(
        120.0, "s", "chosen", "without a step while no rank waits in a collective: all may evaluate or save"
    )
    idle_still_s = threshold(
        5.0, "s", "chosen", "without running, after which the call that a thread is blocked in is said"
    )
    unbegun_s = threshold(86_400.0, "s", "chosen", "that a run may wait for its first rank, in a queue of jobs")
    first_step_s = threshold(
        300.0,
        "s",
        "chosen",
        "before the first step, in which all ranks wait in collectives, or for something outside of the job",
    )
    first_work_s = threshold(
        1800.0,
        "s",
        "chosen: the same, while one of them does not: it may prepare the data for all. As long as PyTorch's default "
        "timeout of a collective",
    )
    slow_s = threshold(5.0, "s", "chosen", "a step that takes longer may be slow")
    slow_steps = threshold(5, "times", "chosen", "times the usual step: the step under way is slow")
    slower = threshold(2.0, "times", "chosen", "times the steps before them: the newest steps are slow")
    newest_steps = threshold(5, "steps", "chosen", "newest steps that are compared with those before")
    unclear_s = threshold(
        600.0, "s", "chosen", "of silence: a run on hosts that cannot be seen has ended, or its storage stalls"
    )
    ranks_looked_at = threshold(
        16, "ranks", "chosen", "ranks whose heartbeats and steps are read in every look: ranks advance together"
    )
    most_heartbeats_read = threshold(
        4_096, "ranks", "chosen", "of a run without progress: a file on shared storage takes a millisecond"
    )
    pauses_head_bytes = threshold(1 << 20, "bytes", "chosen", "of a rank's steps: the first ones compile")
    pauses_tail_bytes = threshold(
        16 << 20, "bytes", "chosen", "of a rank's steps, about 20,000 of them, whose longest pauses count; in 0.1 s"
    )
    most_pauses_kept = threshold(512, "ranks", "chosen", "whose longest pauses are kept while their files stay")
    most_ranks_named = threshold(4, "ranks")
    orders_compared = threshold(
        64, "ranks", "chosen", "of those that wait for each other, whose calls of the last steps are read"
    )
    orders_tail_bytes = threshold(1 << 18, "bytes", "chosen", "of these calls: some steps of 32 layers with FSDP2")
    least_orders = threshold(3, "steps", "chosen", "that show in which order a rank makes its calls")

    def stall_ns(self, usual_ns: float) -> float:
        """From which length on a step stalls, in ns. ``usual_ns``: of the usual step."""
        return max(self.slow_s * 1e9, self.slow_steps * usual_ns)


SILENCE = Silence()


class Blocks(Topic, name="blocks", fixed=True):
    """Runs that are read and accounted for a few steps at a time."""

    most_bytes_at_once = threshold(
        32 << 20,
        "bytes",
        "measured: the collectives of all ranks in a run that is read at once; its account takes about 8 times as much "
        "memory (64 ranks, November 2026)",
    )
    most_bytes_of_few_steps = threshold(
        128 << 20, "bytes", "chosen", "the same for a run of few steps and many ranks, which has hardly any blocks"
    )
    many_steps = threshold(200, "steps", "chosen", "a run of fewer steps is read at once, up to this size")
    block_bytes = threshold(
        12 << 20,
        "bytes",
        "measured: of the collectives of all ranks, in the steps of a block. With half of it, the account of 64 ranks "
        "takes a sixth more time; with twice as much, 100 new steps take half as long again (November 2026)",
    )
    least_block_steps = threshold(32, "steps", "chosen", "of a block")
    steps_at_once = threshold(
        4096, "steps", "chosen: of all ranks, which are made into columns together when a run is read at once"
    )
    steps_before = threshold(
        2, "steps", "chosen", "read before a block: calls reach into it, and its waits begin there"
    )
    steps_after = threshold(1, "steps", "chosen", "read after a block: ranks that are ahead are in it")
    detailed_bytes = threshold(
        16 << 20,
        "bytes",
        "measured: of the collectives in the steps that are kept with every piece and call. With twice as much, 16 "
        "ranks of 3,200 steps take 240 instead of 182 MB, and a gain differs by a ten thousandth (November 2026)",
    )
    stretches = threshold(16, "stretches", "chosen", "about so many of these steps, each at the end of a block")
    least_stretch_steps = threshold(8, "steps", "chosen", "of a stretch")
    head_steps = threshold(8, "steps", "chosen", "read first: they show which process wrote the files")
    samples_around_ns = threshold(
        10 * 10**9, "ns", "chosen", "the host's samples from so long before a block's first step to after its last one"
    )
    compared_lines = threshold(
        16,
        "lines",
        "chosen: of a file, which show whether it is in the order of the steps; where lines are read, each is compared",
    )
    kept_together = threshold(
        16,
        "blocks",
        "chosen: what was accounted of them is also kept as one. A run that has grown costs time by what it loads",
    )
    new_together = threshold(4, "blocks", "chosen", "that are new, from which on what is kept as one is written anew")
    new_share_of_steps = threshold(
        0.125, "fraction", "chosen", "of a rank's recorded steps, from which on what was read of them is kept anew"
    )


BLOCKS = Blocks()


class Answers(Topic, name="answers", fixed=True):
    """Answers that are kept until what they are about changes."""

    least_bytes = threshold(
        8 << 20, "bytes", "chosen", "of the files: the analysis of smaller ones takes a second, and leaves nothing"
    )
    most_bytes = threshold(4 << 30, "bytes", "measured: a second of CPU for their check sums (November 2026)")
    most_files = threshold(
        10_000, "files", "measured: 0.9 s of CPU for their check sums, 2.1 s for 24,576 (November 2026)"
    )
    most_answer_bytes = threshold(64 << 20, "bytes", "chosen", "of an answer")
    most_answers = threshold(16, "answers", "chosen", "on one path, to questions that differ in options or width")


ANSWERS = Answers()


class RunReading(Topic, name="run-reading", fixed=True):
    """How much of a run directory is read."""

    most_curve_bytes = threshold(
        64 << 20, "bytes", "chosen", "of a rank's steps on the first read: about 100,000 steps, in half a second"
    )
    most_curve_readers = threshold(32, "readers", "chosen", "readers that are kept")
    steps_for_remaining_time = threshold(100, "steps", "chosen", "steps, for the remaining time")
    starting_steps = threshold(5, "steps", "chosen", "first steps, which take longer than the others")
    most_duration_records = threshold(1_500_000, "records", "chosen", "800 MB while they are analysed")
    longest_duration_ns = threshold(10**15, "ns", "chosen", "11 days: sums of thousands fit 64 bits")
    inspector_head_bytes = threshold(1 << 14, "bytes")
    inspector_line_bytes = threshold(1 << 20, "bytes", "chosen", "a verbose record with 64 channels takes 20 kB")
    inspector_buffer_bytes = threshold(1 << 18, "bytes")
    inspector_inflation = threshold(100, "times", "chosen", "records deflate to a tenth or a thirtieth")
    useless_lines = threshold(100_000, "lines", "chosen", "lines that are no records, beyond ten for each that is one")
    most_identities_read = threshold(
        4_096,
        "ranks",
        "chosen: of more ranks, what is read every few seconds takes the name of a folder as it is: "
        "reading rank.json of ten thousands takes minutes on shared storage",
    )
    most_copy_state_bytes = threshold(256 << 20, "bytes", "chosen", "of the list of files of a local copy")
    intervals_late = threshold(
        2.5,
        "times",
        "chosen",
        "times a packer's interval: what is written after a segment comes with the next",
    )
    longest_interval_s = threshold(3600.0, "s", "chosen", "of a packer, for how late its records may be")
    most_pieces = threshold(4_096, "pieces", "chosen", "run directories in a folder that may be pieces of one job")
    most_piece_bytes = threshold(
        16 << 20, "bytes", "chosen", "of a file next to the ranks that is merged where pieces of a run are joined"
    )
    most_runs_kept = threshold(32, "runs", "chosen", "that are kept")
    pause_over_reading = threshold(
        20, "times", "chosen", "times what it took, before the ranks' last signs are read again"
    )
    tail_bytes = threshold(1 << 16, "bytes")
    most_printed_bytes = threshold(
        1 << 20, "bytes", "chosen", "at the end of a rank's output, in which it may say that its loss is not finite"
    )
    piece_bytes = threshold(1 << 20, "bytes", "chosen", "of a file, whose records are in memory together")
    last_steps = threshold(20, "steps")
    most_document_bytes = threshold(100_000, "bytes")
    most_summary_cells = threshold(
        2_500_000,
        "cells",
        "chosen: steps times ranks: 100 steps of 24,576 ranks, whose table takes 250 MB. The newest steps are read",
    )
    least_summary_steps = threshold(20, "steps", "chosen", "at least so many steps of each rank")
    most_summary_steps = threshold(1000, "steps", "chosen", "at most so many steps of each rank")
    straggling_ranks_share = threshold(
        0.05, "fraction", "chosen", "fraction of ranks that may be behind: all others have reached the newest step"
    )
    summary_tail_bytes = threshold(
        1 << 15, "bytes", "chosen", "four lines of 50 steps on a device; more is read if these are not enough"
    )
    files_at_once = threshold(32, "files", "chosen", "that a thread reads before the next one")
    batches_that_wait = threshold(
        4, "batches", "chosen", "of these files, each of which was waited for, before several threads read"
    )
    least_wait_s = threshold(
        1e-4,
        "s",
        "measured: for a file on shared storage. On a local one, a file is read in 0.05 ms, and 8 threads take a tenth "
        "more CPU time for 24,576 files than one (November 2026)",
    )
    probe_bytes = threshold(
        1 << 13, "bytes", "chosen: a line of 50 steps on a device", "of a stream, to look for a step"
    )
    summary_lines_at_once = threshold(256, "lines", "chosen", "whose numbers are copied together: some 2 MB")
    most_block_sums = threshold(
        400_000,
        "sums",
        "chosen: sums of durations that are compared: 16 blocks of 24,576 ranks, which takes 0.5 s",
    )
    readers = threshold(
        8,
        "threads",
        "chosen",
        "threads: opening a file on shared storage takes a millisecond, nearly all of it waiting",
    )
    many_ranks = threshold(
        512,
        "ranks",
        "chosen",
        "accounting for 64 ranks of 40 steps takes 4 s, and the time grows with the collectives of all ranks",
    )
    ranks_checked_for_traces = threshold(
        64, "ranks", "chosen", "ranks that are checked for traces: a folder on shared storage takes a millisecond"
    )
    ranks_checked_for_waits = threshold(
        64, "ranks", "chosen: all ranks run the same code", "whose newest summaries say how waits were observed"
    )
    machine_tail_bytes = threshold(
        1 << 19, "bytes", "chosen", "of machine.jsonl: thirty lines, of which one has all values of a host with 8 GPUs"
    )
    beside_tail_bytes = threshold(
        1 << 20, "bytes", "chosen", "of a rank's samples, of very many ranks: those of about an hour"
    )
    machine_tail_bytes_at_first = threshold(
        1 << 16, "bytes", "chosen", "of a host, of very many: mostly enough for the lines around the newest steps"
    )
    hosts_compared = threshold(
        256, "hosts", "chosen", "of very many, whose counters are compared with those of the hosts of late ranks"
    )
    machine_before_ns = threshold(
        60 * 10**9,
        "ns",
        "chosen",
        "of a host's lines, before the steps: a reading a minute, so that short spans have two",
    )
    all_ranks_checked = threshold(
        4_096, "ranks", "chosen", "of more ranks only the shown ones are checked: 24,576 folders take seconds"
    )


RUN_READING = RunReading()
