"""Thresholds of watching a training: hangs, traces that are asked for, and logs."""

from __future__ import annotations

from diag.policy import Topic, threshold


class Watching(Topic, name="watching", fixed=True):
    """When a training that runs counts as hung, and when its ranks are asked for traces."""

    answer_s = threshold(
        10.0,
        "s",
        "chosen",
        "a second until the collectors look, and up to six for the first dump of a process on a busy host",
    )
    tool_s = threshold(
        10.0,
        "s",
        "measured: nvidia-smi took 1 to 3 s on hosts with 8 GPUs; with a GPU that fell off the bus it never ends",
    )
    ras_s = threshold(12.0, "s", "chosen", "a report: RAS waits 5 s, and at most 10 s, for ranks that do not answer")
    poll_hang_s = threshold(0.1, "s")
    busy_limit = threshold(3, "times", "chosen", "factor of the limit for busy ranks over the limit of a hang")
    least_setup_s = threshold(120.0, "s")
    doubt_share = threshold(
        0.8, "fraction", "chosen", "fraction of the limit at which evidence is gathered, while all processes still live"
    )
    heard_share = threshold(
        0.5,
        "fraction",
        "chosen: fraction of a standstill for which heartbeats must have come. A rank's answer can delay "
        "them for seconds",
    )
    ahead_of_timeout_s = threshold(
        10.0,
        "s",
        "chosen: the process group ends the job itself at its timeout, and leaves less evidence: the "
        "limit is this much earlier",
    )
    ahead_of_timeout_share = threshold(0.2, "fraction")
    interval_s = threshold(1.0, "s")
    grace_s = threshold(5.0, "s", "chosen", "between SIGTERM and SIGKILL")
    other_nodes_share = threshold(
        0.5,
        "fraction",
        "chosen: ranks of other nodes are read when those of this node have made no progress for this "
        "fraction of the limit: with 64 nodes on shared storage, 64 launchers would otherwise read 512 "
        "files a second each",
    )
    most_bytes_of_verdict = threshold(
        256 << 20,
        "bytes",
        "chosen",
        "of the records: diag run ends with the verdict of a run that takes seconds to analyse",
    )
    look_s = threshold(2.0, "s", "chosen", "between two looks at the state of a run")
    whole_look_s = threshold(
        10.0, "s", "chosen", "between two looks at all ranks of a run whose first rank goes on; 10 ms or more each"
    )
    most_look_load = threshold(
        0.004,
        "fraction",
        "chosen",
        "of a core, for looks at all ranks of a run that is stuck, which read each heartbeat",
    )
    niceness = threshold(10, "niceness", "chosen", "of the watcher of an attached training, which shares its cores")
    afterwards_s = threshold(60.0, "s", "chosen", "that a watcher stays after the process that has started it")
    verdict_every_s = threshold(
        30.0, "s", "chosen", "between two verdicts on the newest steps, each of which takes 0.1 s"
    )
    most_load = threshold(0.002, "fraction", "chosen", "of a core: the next verdict is later if one takes longer")
    kept_before_verdict = threshold(
        100,
        "steps",
        "chosen: twice those that are analysed",
        "before the step at which the verdict changed, of which the detail is kept",
    )
    kept_requests = threshold(15, "requests", "chosen", "to keep steps, that stay next to a new one")
    quiet_s = threshold(60.0, "s", "chosen", "between two messages, at least")
    notify_s = threshold(30.0, "s", "chosen", "for a delivery, which then is ended")
    notify_file_bytes = threshold(64 << 10, "bytes")
    log_chunk_bytes = threshold(1 << 16, "bytes")
    linger_s = threshold(1.0, "s", "chosen", "time to wait for output of a process that outlives its rank")
    margin_s = threshold(
        1.0,
        "s",
        "chosen",
        "beyond two intervals of the ranks' threads: one until they look, one for the age of a heartbeat",
    )
    ranks_looked_at = threshold(
        64, "ranks", "chosen", "ranks whose heartbeats give the job's step: ranks advance together"
    )
    fast_steps_quantile = threshold(
        0.25,
        "fraction",
        "chosen",
        "quantile of the step durations that is used, as the next steps may be faster than the last ones",
    )
    patience_s = threshold(120.0, "s", "chosen", "time without a step of any rank after which the wait ends")
    trace_interval_s = threshold(2.0, "s")
    steps_of_window = threshold(3, "steps", "chosen", "in a window")
    steps_analysed = threshold(50, "steps", "chosen", "newest steps that are analysed")
    sure = threshold(
        0.5,
        "confidence",
        "chosen",
        "least confidence of the verdict; the most that phases alone give, where collectives are not known",
    )
    many_ranks = threshold(512, "ranks", "chosen", "number of ranks from which on a look takes seconds")
    interval_of_many_s = threshold(60.0, "s")
    culprits_recorded = threshold(4, "ranks", "chosen", "recorded ranks of a large job")
    others_recorded = threshold(4, "ranks", "chosen", "needed for comparison")
    all_ranks_recorded = threshold(16, "ranks", "chosen", "up to this number of ranks all are recorded")
    poll_workers_s = threshold(0.05, "s")
    least_look_s = threshold(0.25, "s", "chosen", "between two looks for ranks; grows when no further ranks appear")
    longest_look_s = threshold(16.0, "s", "chosen", "between two looks for ranks; grows when no further ranks appear")
    settle_s = threshold(
        10.0,
        "s",
        "chosen",
        "the other ranks appear within this time, seconds later on a busy host, and may exit at once",
    )
    most_identities_read = threshold(
        4_096, "ranks", "chosen", "the launcher of every node reads the identities of all ranks"
    )
    check_s = threshold(
        120.0, "s", "chosen", "`diag attach --check` waits so long for its command, which imports torch in a container"
    )
    doctor_bytes = threshold(8 << 20, "bytes", "chosen", "what `diag doctor` writes to measure a folder")
    doctor_replaces = threshold(50, "files", "chosen", "how often it replaces a file there")
    doctor_room_bytes = threshold(1 << 30, "bytes", "chosen: the byte budget of one rank")
    doctor_slow_replace_s = threshold(0.02, "s", "chosen", "a file system that takes longer is slow for many ranks")
    doctor_shm_bytes = threshold(256 << 20, "bytes", "chosen", "containers often have 64 MB")


WATCHING = Watching()
