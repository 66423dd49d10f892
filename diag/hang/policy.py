"""Thresholds of hang triage: how sure each kind of evidence is, and how much is read and shown."""

from __future__ import annotations

from diag.policy import Topic, threshold


class HangEvidence(Topic, name="hang-evidence"):
    """How sure one line gives its class, and how clues raise or lower that (diag.hang.order)."""

    names_the_cause = threshold(0.9, "confidence", "chosen", "the program that failed says what failed")
    names_an_effect = threshold(0.7, "confidence", "chosen", "it reports an effect that has one usual cause")
    read_by_words = threshold(
        0.6,
        "confidence",
        "chosen: of the public logs, read by these words alone, 90 in 100 have the class right; their authors' words "
        "are known by now",
        "no pattern knows the line, but words that programs share say what failed",
    )
    was_asked = threshold(0.3, "confidence", "chosen", "the launcher was asked to stop: by whom is unknown")
    suggests = threshold(0.5, "confidence", "chosen", "it has several possible causes")
    confidence_at_most = threshold(0.95, "confidence")
    unless_the_cause_is_named = threshold(
        0.89,
        "confidence",
        "chosen",
        "at most, where no line names the cause, or not one rank: the fit has too few such",
    )
    when_it_suggests = threshold(
        0.83,
        "confidence",
        "measured: of 16 such answers at first runs 14 were right, and by the rule of succession the next one is with "
        "probability 15/18",
        "at most, where the line has several possible causes",
    )
    with_a_rival = threshold(0.75, "confidence", "chosen", "at most, where another cause or other ranks are as likely")
    rival_factor = threshold(0.8, "fraction")
    contradicted_factor = threshold(0.85, "fraction")
    supported_doubt = threshold(0.6, "fraction", "chosen", "of the doubt is left")
    knows_little = threshold(0.3, "confidence", "chosen", "at most: the last lines say more than such an answer")
    ended_well = threshold(0.85, "confidence")
    steps_go_on = threshold(0.7, "confidence")
    steps_that_go_on = threshold(3, "steps", "chosen", "as many as a reader keeps of a file: fewer show no progress")
    fresh_steps = threshold(2, "steps", "chosen", "at most that long ago, the last line is of a job that works")
    written_late_ns = threshold(
        5_000_000_000, "ns", "chosen", "from a line's time stamp until it is in its file: output is buffered"
    )
    sure_enough_of_dumps = threshold(
        0.5,
        "confidence",
        "chosen",
        "clues for ranks without a dump are below: their dumps may only not have been collected",
    )
    too_short_timeout_ms = threshold(5_000, "ms", "chosen", "a first collective also builds the communicator")
    clocks_of_hosts_ns = threshold(
        2_000_000_000,
        "ns",
        "chosen: clocks of two hosts: NTP usually keeps them within milliseconds, without a guarantee, "
        "and log lines are written late",
    )
    timeout_of_watchdog_ms = threshold(10_000, "ms", "chosen", "a watchdog looks far more often")
    equal_by_chance = threshold(1000, "numbers", "chosen", "numbers up to here can be equal in two groups")


HANG_EVIDENCE = HangEvidence()


class HangRules(Topic, name="hang-rules"):
    """How sure each rule over the lines of several ranks is."""

    absent_logs_read = threshold(
        0.85, "confidence", "chosen", "the logs of the absent ranks were read, and they report no time-out"
    )
    absent_logs_missing = threshold(0.6, "confidence", "chosen", "perhaps only their logs are missing")
    absent_in_report = threshold(0.85, "confidence")
    lags_by_counters = threshold(0.8, "confidence", "chosen", "the group's own counters show it")
    few_absent_ranks = threshold(3, "ranks")
    lines_after_work = threshold(2, "lines", "chosen", "work that ends no further from the end of a file goes on")
    most_gpus_of_a_host = threshold(
        8, "GPUs", "chosen", "a job of no more ranks, of which one host is seen, is taken to be on it"
    )
    settings_differ = threshold(
        0.6, "confidence", "chosen", "settings differ and the job stalls: nothing relates the two"
    )
    ranks_for_a_vote = threshold(3, "ranks", "chosen", "ranks: enough for a vote")
    group_unnamed = threshold(0.65, "confidence", "chosen", "the version of torch names no group")
    most_tensors_of_one_model = threshold(10_000_000, "tensors", "chosen", "tensors of one model")
    vote_of_watchdogs = threshold(0.8, "confidence", "chosen", "at most: each reports the call that its rank is in")
    same_address_twice = threshold(0.9, "confidence")
    one_connection_clear = threshold(0.85, "confidence")
    out_of_memory_and_exit = threshold(0.95, "confidence")
    perhaps_another_job = threshold(0.4, "confidence", "chosen", "perhaps a process of another job")
    actor_reach = threshold(9, "lines", "chosen", "lines of Ray's description of an actor before how its process ended")
    exit_code_reach = threshold(3, "lines", "chosen", 'lines from "Process name:" to "Exit code:"')
    rpc_message_reach = threshold(3, "lines", "chosen", "lines of one error of gRPC: what, of which task, from where")
    letters_that_tell = threshold(
        5, "letters", "chosen", "ALLREDUCE, ALLGATHER and REDUCE_SCATTER, cut before these, may be each other"
    )
    stack_reach = threshold(60, "lines", "chosen", 'lines after "Caught signal" that are its stack')
    raised = threshold(0.85, "confidence", "chosen", "the program says what failed")
    raised_without_frames = threshold(0.7, "confidence")
    raised_and_cut = threshold(0.45, "confidence", "chosen", "what it raised is cut off: it may be about another rank")
    raised_by_several = threshold(0.6, "confidence", "chosen", "and it is unknown which was first")
    ended_itself = threshold(0.7, "confidence")
    perhaps_a_victim = threshold(0.45, "confidence")
    first_of_many = threshold(0.3, "confidence")
    traceback_reach = threshold(200, "lines")
    what_reach = threshold(2, "lines", "chosen", 'from "terminate called" to "what():"')
    what_reach_of_speaker = threshold(
        64, "lines", "chosen", "the same where lines of other processes may come in between"
    )
    frame_reach = threshold(
        4, "lines", "chosen", "lines from a frame to its exception (source, carets), or to the words of a chain"
    )
    rank_beside_reach = threshold(2, "lines", "chosen", "lines from an exception of torch_npu to the rank below it")
    tiny_collective = threshold(8, "elements", "chosen", "elements: a barrier, a flag, a length")
    early_collectives = threshold(
        5, "collectives", "chosen", "the first collectives: the barrier behind which one rank prepares"
    )
    busy_rank_named = threshold(0.88, "confidence", "chosen", "beyond the absent rank that it explains")
    busy_rank_unnamed = threshold(0.75, "confidence", "chosen", "the busy line does not name its rank")
    usual_timeout_s = threshold(600, "s", "chosen", "NCCL's in torch; gloo's is 1,800")
    few_waits = threshold(8, "waits", "chosen", "waits of which each is compared with each line that shows work")
    most_looks_at_lines = threshold(
        2_000_000, "comparisons", "chosen", "waits of which each is compared with each line that shows work"
    )
    never_finished_up_to = threshold(3, "collectives", "chosen", "up to this sequence number nothing was ever finished")
    no_first_collective = threshold(0.6, "confidence")
    guess_with_timeouts = threshold(0.4, "confidence", "chosen", "a guess")
    frames_above_cut = threshold(
        12, "lines", "chosen", "the innermost frames of a traceback that is cut off below them"
    )
    hosts_told = threshold(3, "hosts", "chosen", "so many are not told to end at once by accident")
    letters_of_error = threshold(
        3, "letters", "chosen", "at least, after the first word of an error's text that the end of a paste cuts off"
    )
    failure_reach = threshold(12, "lines", "chosen", "lines of one failure, without its traceback")


HANG_RULES = HangRules()


class HangDumps(Topic, name="hang-dumps"):
    """What Flight Recorder dumps are compared by, and how much of them is read."""

    most_numbers_compared = threshold(200_000, "calls", "chosen", "numbers of a group that are compared, the last ones")
    calls_shown = threshold(12, "rows")
    culprits_named = threshold(8, "ranks")
    rank_behind = threshold(0.9, "confidence")
    recent_collectives = threshold(
        8,
        "collectives",
        "chosen",
        "last collectives of each group that are kept even if finished: gloo marks failed ones as finished",
    )
    most_numbers_of_group = threshold(
        200_000, "calls", "chosen", "from the first to the last of one group: a ring holds far fewer"
    )
    most_frames = threshold(64, "frames")
    most_fixed_bytes = threshold(24 << 20, "bytes", "chosen", "such instructions take up to 13 times as much memory")
    most_texts = threshold(500_000, "texts")
    depth = threshold(6, "levels")
    head_bytes = threshold(1 << 16, "bytes")
    chunk_bytes = threshold(1 << 20, "bytes")
    snapshot_key_bytes = threshold(128, "bytes", "chosen", 'bytes: "segments" is the first key of a memory snapshot')
    most_json_items = threshold(4_000_000, "items", "chosen", "50 MB of a recorder's frames have 2 million")


HANG_DUMPS = HangDumps()


class NcclRas(Topic, name="nccl-ras"):
    """How NCCL RAS is asked, and how sure its reports are."""

    wait_for_ranks_s = threshold(
        5, "s", "source: NCCL's own default", "how long the server waits for ranks that do not answer; it may double it"
    )
    answer_s = threshold(15.0, "s")
    connect_s = threshold(3.0, "s")
    reports_apart_s = threshold(5.0, "s", "chosen", "between two reports")
    most_report_bytes = threshold(
        64 << 20, "bytes", "chosen", "of a report: a communicator of 1,024 ranks takes 0.8 MB in JSON"
    )
    most_answer_line_bytes = threshold(4096, "bytes")
    piece_bytes = threshold(64 << 10, "bytes")
    interval_unknown = threshold(0.6, "confidence")
    one_report = threshold(
        0.3, "confidence", "chosen", "too low for the triage to answer with: reported as a suspicion"
    )
    straggler = threshold(
        0.55, "confidence", "chosen", "at most, where its counts do not change and those of the others do"
    )
    others_move_factor = threshold(0.75, "fraction", "chosen", "times")
    crossed_counts = threshold(0.45, "confidence", "chosen", "no order of the same calls has such counts")
    few_ahead_factor = threshold(
        0.7,
        "fraction",
        "chosen",
        "times: a few ranks are ahead of all others, by a call of their own or because the others are late",
    )
    no_majority_factor = threshold(0.8, "fraction", "chosen", "times")
    explained_factor = threshold(0.6, "fraction", "chosen", "times: a process is gone, for which everybody waits")
    process_dead = threshold(0.8, "confidence")
    process_dead_at_the_end = threshold(0.5, "confidence", "chosen", "no communicator is left: the job may have ended")
    unresponsive = threshold(0.5, "confidence")
    unresponsive_twice = threshold(0.7, "confidence")
    initialising_factor = threshold(0.9, "fraction", "chosen", "times the confidence from the time without a change")
    left = threshold(0.8, "confidence")
    progress = threshold(0.7, "confidence")
    knows_nothing = threshold(0.2, "confidence", "chosen", "as diag.hang.reason has it where no line means anything")
    knows_little = threshold(0.4, "confidence", "chosen", "no known log pattern, or time-outs without a cause")
    sure = threshold(0.8, "confidence")
    most_culprits = threshold(64, "ranks")
    most_named_behind = threshold(1_024, "ranks", "chosen", "behind a few that are ahead")
    most_evidence_rows = threshold(6, "rows")
    every_s = threshold(5.0, "s", "chosen", "between two reports")
    again_s = threshold(15.0, "s", "chosen", "after an attempt that brought no report")
    live_answer_s = threshold(
        12.0, "s", "chosen", "for one report: RAS itself waits 5 s, and at most 10 s, for ranks that do not answer"
    )
    most_live_rows = threshold(64, "rows")
    most_live_lines = threshold(40, "lines")
    most_hosts_asked = threshold(3, "hosts", "chosen", "asked in one attempt: any one process answers for its job")
    most_identities_read = threshold(4096, "ranks", "chosen", "whose identity is read")
    most_live_reports = threshold(
        5, "reports", "chosen", "kept of a running job, with the oldest one since which some counts have not changed"
    )
    most_live_files = threshold(16, "files")
    most_levels = threshold(6, "levels", "chosen", "of one collective")
    live_sure = threshold(0.75, "confidence", "chosen", "of a clue: counts that differ and have not changed for 10 s")
    log_bytes = threshold(256 << 10, "bytes")
    most_report_lines = threshold(200_000, "lines", "chosen", "of reports in one file")
    look_back_lines = threshold(
        64, "lines", "chosen", 'lines before "Communicators... (": versions and the job summary'
    )
    silence_lines = threshold(
        2000, "lines", "chosen", "lines of other programs after which a report is taken to have ended"
    )
    most_line_bytes = threshold(8 << 10, "bytes")
    most_speakers = threshold(256, "speakers")
    most_members = threshold(500_000, "ranks", "chosen", "ranks in all communicators of all reports")
    most_reports = threshold(1000, "reports", "chosen", "one a second for a quarter of an hour")


NCCL_RAS = NcclRas()


class HangAnswer(Topic, name="hang-answer"):
    """How much of a triage is shown."""

    most_outcome_evidence = threshold(2, "rows")
    text_chars = threshold(160, "characters", "chosen", "characters of a text from a log in a sentence")
    most_next_steps = threshold(6, "lines")
    next_steps_shown = threshold(3, "lines", "chosen", "more of them are not followed")
    last_lines_quoted = threshold(3, "lines", "chosen", "the last of them in the headline, all as evidence")
    most_ranks_named = threshold(1_024, "ranks")
    quoted_chars = threshold(160, "characters")
    most_evidence = threshold(10, "rows")
    lines_of_advice = threshold(8, "lines", "chosen", "of a file that holds nothing but a warning about speed")
    lines_before_advice = threshold(1, "lines", "chosen", "before that warning: the file that it comes from")
    most_lines_of_rule = threshold(6, "lines")
    most_frames = threshold(12, "frames")
    most_commands = threshold(4, "commands")
    calls_of_member = threshold(
        4, "calls", "chosen", "of each process and communicator; its Member has all that were kept"
    )
    most_calls_shown = threshold(20_000, "calls")
    kinds_shown = threshold(6, "kinds")
    few_absent = threshold(1_024, "ranks")
    absent_for_each = threshold(16, "ranks")


HANG_ANSWER = HangAnswer()


class HangReading(Topic, name="hang-reading", fixed=True):
    """How much of logs and of a run directory triage reads and keeps."""

    long_line_bytes = threshold(8 << 10, "bytes", "chosen", "of a longer line, the text around the anchor is kept")
    progress_reach_bytes = threshold(
        256 << 10, "bytes", "chosen", "at a block's end: searching all of it would take longer than everything else"
    )
    head_bytes = threshold(64 << 10, "bytes")
    narrowest_terminal = threshold(60, "columns", "chosen", "columns of a terminal")
    most_calls = threshold(64_000, "lines", "chosen", "COLL lines kept in all")
    calls_of_each = threshold(32, "lines")
    most_continued_lines = threshold(16, "lines")
    first_share = threshold(32, "parts")
    most_lines = threshold(120_000, "lines")
    most_bytes = threshold(40 << 20, "bytes")
    block_share = threshold(
        4, "parts", "chosen: blocks (tracebacks, stacks) count by their lines, so fewer of them are kept to begin with"
    )
    halvings = threshold(6, "halvings")
    line_overhead_bytes = threshold(150, "bytes", "chosen", "of a kept line: a tuple and a bytes object")
    most_own_lines = threshold(1000, "lines")
    most_foreign_lines = threshold(500, "lines")
    telling_reach_lines = threshold(
        64, "lines", "chosen", "at the end of a file, searched for words of failures and waits"
    )
    work_lines = threshold(3, "lines", "chosen", "the last of a file that show a step or an answered request")
    telling_lines = threshold(3, "lines", "chosen", "of those, kept beside the last line")
    longest_prefix_chars = threshold(120, "characters", "chosen", "of a prefix in front of a traceback")
    message_tail_lines = threshold(
        4, "lines", "chosen", 'lines of a message after the exception\'s first: "ncclInternalError:..", "Last error:",'
    )
    most_communicators = threshold(200_000, "communicators")
    most_variables = threshold(200, "variables")
    lines_of_a_name = threshold(4, "lines", "chosen", "a name in front of fewer lines may be a message's first word")
    share_with_a_name = threshold(0.95, "fraction", "chosen", "of a file's lines, at least, that a launcher names")
    most_prefixes = threshold(12, "prefixes")
    lines_of_a_shape = threshold(32, "lines", "chosen", "the first of a file, of which a shared prefix is looked for")
    copied_line_bytes = threshold(400, "bytes", "chosen", "of each of them")
    piece_bytes = threshold(4 << 20, "bytes")
    copied_bytes = threshold(256 << 10, "bytes")
    narrowest_line = threshold(60, "columns")
    widest_line = threshold(400, "columns")
    head_chars = threshold(6, "characters")
    packed_piece_bytes = threshold(256 << 10, "bytes")
    gzip_piece_bytes = threshold(
        8 << 10, "bytes", "chosen", "what follows a member is copied, and there may be a member every 20 bytes"
    )
    zstd_piece_bytes = threshold(
        1 << 10,
        "bytes",
        "chosen: one zstd block of 4 bytes can unpack to 128 KiB: this much input gives at most 32 MiB at a time",
    )
    zstd_window_bytes = threshold(128 << 20, "bytes", "chosen", "zstd's own limit without --long")
    bomb_bytes = threshold(256 << 20, "bytes")
    bomb_ratio = threshold(250, "times")
    block_bytes = threshold(8 << 20, "bytes")


HANG_READING = HangReading()
