"""Thresholds of the recorder, which a training's own process imports: standard library only."""

from __future__ import annotations

from .thresholds import Topic, threshold


class Keeping(Topic, name="keeping", fixed=True):
    """Processes of ours next to a training: a packer a node, a watcher a job. See ``keeping``."""

    look_s = threshold(5.0, "s", "chosen", "between two looks of a rank whether the process runs")
    longest_pause_s = threshold(600.0, "s", "chosen", "between two starts of one that ends each time")


KEEPING = Keeping()


class Recording(Topic, name="recording", fixed=True):
    """What the recorder measures, how often, and what it may cost."""

    most_utilization_samples = threshold(300, "samples", "chosen", "five minutes of them, until a summary takes them")
    most_waiting_events = threshold(1024, "events")
    queue_looked_at_from_ns = threshold(
        200_000_000, "ns", "chosen", "of shorter steps, only some read the loader's queue, which changes slowly"
    )
    cpu_times_from_ns = threshold(
        100_000_000,
        "ns",
        "chosen: of shorter steps, only some read the CPU times at each phase, which is a third of the "
        "cost of recording a phase",
    )
    still_ns = threshold(500_000_000, "ns", "chosen", "after this time without an event the training makes no progress")
    entries_read_after_ns = threshold(
        3_000_000_000, "ns", "chosen", "without progress, before the Flight Recorder's entries are read: a megabyte"
    )
    entries_read_every_ns = threshold(5_000_000_000, "ns", "chosen", "at most, while calls are under way")
    numbers_kept = threshold(64, "numbers", "chosen", "losses, or gradient norms, that the next one is compared with")
    least_numbers = threshold(20, "numbers", "chosen", "before a jump is looked for")
    numbers_between_limits = threshold(8, "numbers", "chosen", "between two looks at what is usual")
    jump_of_loss = threshold(
        3.0, "times", "chosen", "the median: the loss jumps; a gradient scaler doubles it at times"
    )
    jump_of_norm = threshold(10.0, "times", "chosen", "the median: the gradient's norm jumps")
    jump_over_all = threshold(1.5, "times", "chosen", "the largest of those before")
    most_odd_numbers = threshold(10, "numbers", "chosen", "of each kind that are recorded")
    idle_share = threshold(
        0.01, "fraction", "chosen: of a second. A thread that runs less is blocked, or polls now and then for a lock"
    )
    longest_leaving_s = threshold(
        2.0,
        "s",
        "chosen",
        "os._exit waits no longer for the records to be closed: programs call it to leave a deadlock",
    )
    steps_of_a_training = threshold(
        3,
        "steps",
        "chosen: optimizer steps after which an unrecorded process is known to train: a single one may "
        "come from loading its state",
    )
    longest_iteration = threshold(
        64,
        "steps",
        "chosen: the most steps of the base between two steps of a waited-for optimizer; also the most "
        "optimizers in an iteration",
    )
    repeats = threshold(2, "intervals", "chosen", "how often an interval is seen before it counts as regular")
    most_repeats_after_faults = threshold(
        16, "intervals", "chosen", "the same, for an optimizer that was wrongly taken for regular"
    )
    faults = threshold(
        3,
        "intervals",
        "chosen",
        "unexpected intervals, minus expected ones, after which an optimizer is no longer waited for",
    )
    unhooked_batches = threshold(
        3,
        "batches",
        "chosen: steps of an optimizer without a backward, after which the training is assumed to compute "
        "its gradients in another way: torch.autograd.grad, torch.func, compiled steps. Loading an "
        "optimizer's state makes up to three",
        "each after another batch",
    )
    unhooked_steps = threshold(10, "steps", "chosen: see unhooked_batches")
    most_open_collectives = threshold(
        4096,
        "collectives",
        "chosen",
        "results that are not waited for yet; bounds the memory of a training that never waits",
    )
    blocked_ns = threshold(
        50_000,
        "ns",
        "chosen: a wait that returns sooner did not block: this is the cost of the call itself and a thread switch",
    )
    cpu_share = threshold(0.002, "fraction", "chosen", "fraction of one core")
    longest_still_s = threshold(
        0.5, "s", "chosen", "longest time that Python may be blocked; the time for 30,000 entries"
    )
    reserve = threshold(1.1, "times", "chosen", "factor by which the next reading may take longer than the last one")
    rows_of_line = threshold(2_000, "rows", "chosen", "in a line")
    most_blocks = threshold(
        32,
        "blocks",
        "chosen: of durations in a line of the summary: with their names 460 bytes",
        "of 32 collectives each",
    )
    inspector_bytes = threshold(1 << 20, "bytes", "chosen", "of NCCL Inspector's file that one look reads")
    inspector_backlog_bytes = threshold(16 << 20, "bytes", "chosen", "not read yet; of more, only the newest are")
    inspector_strange_lines = threshold(20, "lines", "chosen", "if no more are understood, its format is unknown")
    inspector_dump_us = threshold(100_000, "us", "chosen", "within which Inspector writes the lines of one dump")
    inspector_levels = threshold(5, "halvings", "measured: parsing 1 line in 32 is cheaper than finding it", "at most")
    readings_in_vain = threshold(
        10, "readings", "chosen", "readings with ended collectives, none of which has a duration"
    )
    most_threads = threshold(
        16, "threads", "chosen", "each costs a system call per sample; those that ran most are sampled"
    )
    most_threads_listed = threshold(256, "threads")
    most_workers = threshold(32, "workers")
    least_pause_ns = threshold(30_000_000, "ns")
    most_pauses = threshold(64, "pauses", "chosen", "between two samples")
    least_gc_pause_ns = threshold(
        200_000, "ns", "chosen", "the youngest generation is collected in microseconds, many times a step"
    )
    near_full_share = threshold(
        0.9, "fraction", "chosen", "of the device's memory allocated in a step: one snapshot of the first such step"
    )
    longest_snapshot_wait_s = threshold(
        10.0, "s", "chosen", "a failed allocation waits for a snapshot under way, whose own history says less"
    )
    between_writes_ns = threshold(2_000_000_000, "ns")
    steps_written_at_once = threshold(20, "steps", "chosen", "steps at the begin")
    latest_calls = threshold(
        2, "steps", "chosen", "a collective that is under way when its step ends is reported up to so many steps later"
    )
    steps_of_sums = threshold(50, "steps")
    starting_steps = threshold(5, "steps", "chosen", "of a process, which take longer: none of them is its longest")
    patience_s = threshold(5.0, "s")
    again_s = threshold(30.0, "s", "chosen", "until a file that could not be written is tried again")
    kept_around = threshold(20, "steps", "chosen", "before and after an incident, of which the full detail is kept")
    kept_apart = threshold(
        1_000, "steps", "chosen: in each of them, one incident of a kind", "repeated ones do not displace the others"
    )
    kept_share = threshold(0.25, "fraction", "chosen", "of the bytes for kept steps that one incident takes")
    kept_looks_s = threshold(10.0, "s", "chosen", "between two looks whether the detail of steps is to be kept")
    slow_s = threshold(5.0, "s", "chosen: as silence.slow_s", "a step that takes longer may be an incident")
    slow_steps = threshold(5, "times", "chosen: as silence.slow_steps", "times the usual step: it is one")
    usual_steps = threshold(64, "steps", "chosen", "whose median is the usual step")
    least_usual_steps = threshold(20, "steps", "chosen", "before a step is compared with the usual one")
    machine_lines_to_a_whole = threshold(
        30, "lines", "chosen: every thirtieth line of machine.jsonl has all values, the others what changed"
    )
    most_machine_devices = threshold(
        256, "devices", "chosen: ports, interfaces and PCI devices of a node that are read, each"
    )
    exporter_patience_s = threshold(2.0, "s", "chosen", "for the answer of dcgm-exporter, which is on the same node")
    exporter_bytes = threshold(4 << 20, "bytes", "chosen", "of its answer; 8 GPUs with 40 fields each take 100 kB")
    exporter_longest_pause = threshold(
        63, "readings", "chosen", "about an hour, between two questions without an answer"
    )
    device_drift = threshold(50e-6, "fraction", "chosen", "by which a device's clock may differ from its host's")
    device_steps_behind = threshold(
        66,
        "steps",
        "chosen: after so many later steps, a step has no record of its device (see DeviceClock.MAX_PENDING)",
    )
    gone_s = threshold(
        20.0,
        "s",
        "chosen: a process of another host whose heartbeat is older has ended, for who waits for its end or wants its "
        "place in an attempt",
    )
    beats_again_s = threshold(
        3.0, "s", "chosen: three heartbeats", "after which a process of another host with an old one has sent a new one"
    )
    start_tolerance_s = threshold(
        2.0, "s", "chosen", "by which the wall clock may have been set since a record without the time since boot"
    )
    dead_disk_s = threshold(
        30.0,
        "s",
        "chosen: after twice this time, as the process may have been stopped meanwhile, a thread of the recorder that "
        "writes is taken for stuck",
    )


RECORDING = Recording()


class RecordedFiles(Topic, name="recorded-files", fixed=True):
    """How large files may be that a training's process, or an analysis of it, reads."""

    most_pickle_bytes = threshold(128 << 20, "bytes", "chosen", "2,000 entries of a recorder take 0.3 to 1 MB")
    most_pickle_memory_bytes = threshold(
        384 << 20, "bytes", "chosen", "of the values; 50 MB of a recorder's frames, none shared, take 230 MB"
    )
    most_pickle_containers = threshold(1_000_000, "containers")
    most_pickle_items = threshold(1_000_000, "items", "chosen", "of one container")
    most_pickle_expanded = threshold(
        100_000_000, "items", "chosen", "20,000 stacks of 100 shared frames are 14 million"
    )
    most_pickle_text_bytes = threshold(1 << 20, "bytes")
    most_pickle_depth = threshold(64, "levels", "chosen", "a recorder's is 6")
    most_pickle_int_bytes = threshold(16, "bytes")
    most_pickle_memo = threshold(2_000_000, "entries")
    pickle_memo_gap = threshold(1024, "entries", "chosen", "picklers number memo entries from 0")
    pickle_instructions_between_looks = threshold(
        1 << 16, "instructions", "chosen", "instructions between two comparisons of the sums with the limits"
    )
    pickle_look_ahead_bytes = threshold(1 << 16, "bytes")
    document_bytes = threshold(
        16 << 20,
        "bytes",
        "chosen: caps by kind of file. The files of a rank together stay below ``CollectorSettings.byte_budget``",
        "one JSON document: rank.json of 24,576 ranks with all their groups takes 1 MB",
    )
    answer_bytes = threshold(512 << 20, "bytes", "chosen", "the result of an analysis: a row for each step and rank")
    lines_bytes = threshold(4 << 30, "bytes", "chosen", "a.jsonl file, which is read line by line")
    head_bytes = threshold(64, "bytes", "chosen", "of a line, in which its step stands first")
    searched_bytes = threshold(1 << 16, "bytes", "chosen", "of a file, in which a step is searched line by line")
    line_bytes = threshold(64 << 20, "bytes", "chosen", "a step of 4,096 collectives takes 400 kB")
    log_tail_bytes = threshold(1 << 20, "bytes", "chosen", "the end of a log of which a few lines are shown")
    most_entries = threshold(1_000_000, "files", "chosen", "files and folders that a walk looks at")
    most_value_chars = threshold(4096, "characters")
    most_redacted_depth = threshold(
        64, "levels", "chosen: as most_pickle_depth", "of values in each other that are searched for secrets and names"
    )


RECORDED_FILES = RecordedFiles()
