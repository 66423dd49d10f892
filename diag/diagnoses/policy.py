"""Thresholds of the findings and of the verdict."""

from __future__ import annotations

from diag.policy import Topic, threshold


class Findings(Topic, name="findings"):
    """Which costs are findings, and how severe they are."""

    mention_share = threshold(
        0.05,
        "fraction",
        "chosen: a tenth of the step is worth a warning, a fifth is critical; below a twentieth it is not mentioned",
    )
    warning_share = threshold(0.10, "fraction")
    critical_share = threshold(0.20, "fraction")
    confidence_of_phases_alone = threshold(
        0.6,
        "confidence",
        "chosen",
        "upper bound of a finding from durations of phases alone; that of the verdict is fitted",
    )
    least_charged_ns = threshold(50_000, "ns", "chosen", "a step: a table of ranks prints less as 0")
    waiting_rank_share = threshold(0.02, "fraction", "chosen", "of the step: a rank that waits for less does not wait")
    ranks_at_either_end = threshold(4, "ranks", "chosen", "ranks at either end")
    ranks_of_workload = threshold(4, "ranks")
    ranks_as_evidence = threshold(8, "ranks", "chosen", "ranks whose numbers are evidence")
    late_ranks_read = threshold(
        16, "ranks", "chosen", "late ranks of very many whose records are read, and as many others: a second of reading"
    )


FINDINGS = Findings()


class Costs(Topic, name="costs"):
    """How the step is divided into costs."""

    unexplained_wait_share = threshold(
        0.2, "fraction", "chosen", "of the waiting (0.8 are explained): above it, the cause is left open"
    )
    queueing_makes_unequal_share = threshold(
        0.1, "fraction", "chosen", "of the step: above it, queueing of all ranks also makes them unequal"
    )
    code_between_phases_share = threshold(
        0.3,
        "fraction",
        "chosen: of the step: as much code between the phases is a cost. Less is usual: gradient "
        "clipping, logging, zero_grad",
    )


COSTS = Costs()


class Straggler(Topic, name="straggler"):
    """When a rank counts as late by itself, and not by chance."""

    least_delay_share = threshold(
        0.05,
        "fraction",
        "chosen: as low as the cost "
        "that is mentioned at all: the cost decides whether a finding is a warning, but a rank that is "
        "always last is a culprit even where that costs 9 %",
    )
    affected_steps_share = threshold(0.60, "fraction", "chosen: late in three steps of five")
    affected_step_share = threshold(
        0.05, "fraction", "chosen", "a step counts as affected when the delay is a twentieth of it"
    )
    chance = threshold(0.05, "fraction")
    chance_if_steady = threshold(0.01, "fraction")
    least_steps_if_steady = threshold(3, "steps")
    least_steps_for_blocks = threshold(
        20, "steps", "chosen", "steps, for blocks of them and an interval (docs/concepts/verdict.md)"
    )
    most_ranks_named = threshold(4, "ranks")
    another_rank_by_chance = threshold(
        0.1,
        "fraction",
        "measured: upper bound: the fraction of affected steps in which another rank is, by chance, late "
        "by at least half as much as the one that always is. With planted stragglers among CPU ranks on "
        "two cores it was 5 in 164",
    )
    waiting_share = threshold(
        0.75,
        "fraction",
        "chosen: by time: three quarters of all the waiting was for these ranks. A rank that is stopped "
        "for long in every third step is seldom the last one, and yet the only one that matters",
    )
    half_of_waiting_share = threshold(
        0.5,
        "fraction",
        "chosen: of what late ranks cost. Below it, what these ranks cost beyond a typical rank is less than what all "
        "ranks cost by chance, which is then the cause",
    )
    blocks_for_all_signs = threshold(
        12, "blocks", "chosen", "blocks: up to this many, all combinations of signs are tried; beyond, random ones"
    )
    random_signs = threshold(4000, "draws")
    spread_of_kernel_ends_ns = threshold(
        20_000, "ns", "measured: kernels of four MI300s ended within 11 us of each other, of eight V100s within 62"
    )
    spread_of_kernel_ends_share = threshold(
        0.1, "fraction", "chosen", "of the shortest of them: a ring does not end everywhere at once"
    )
    nearly_all_waiting_share = threshold(0.9, "fraction", "chosen", "of the waiting for late ranks")
    shortest_kernels_share = threshold(
        0.5, "fraction", "chosen", "of the collectives in which the suspects had the shortest kernels"
    )
    explained_by_modules_share = threshold(
        0.5, "fraction", "chosen", "of the lateness; below that the modules are not where the time is lost"
    )
    most_modules_named = threshold(3, "modules")
    unequal_tokens = threshold(1.05, "times", "chosen", "most tokens over fewest, in a step where it counts")
    stalled_in_one_phase_share = threshold(0.8, "fraction", "chosen", "of the blocked time")
    stalled_in_few_steps_share = threshold(0.8, "fraction", "chosen", "of the blocked time")
    few_steps_share = threshold(0.3, "fraction", "chosen", "of the steps: as few are worth a word")
    least_steps_of_ranks_alone = threshold(3, "steps", "chosen", "steps that count")
    confidence_of_ranks_alone = threshold(
        0.85, "confidence", "chosen", "a compiled collective is seen in a profiler window only"
    )
    confidence_of_ranks_alone_with_trace = threshold(
        0.95, "confidence", "chosen", "a compiled collective is seen in a profiler window only"
    )
    confidence_of_durations = threshold(0.97, "confidence")
    confidence_of_mean_durations = threshold(0.6, "confidence")
    confidence_of_host_times = threshold(0.8, "confidence")
    confidence_of_parts = threshold(0.6, "confidence")
    lasting_straggler_share = threshold(
        0.7,
        "fraction",
        "chosen",
        "fraction of the cost of late ranks: below it, the latest rank is not always the same one",
    )


STRAGGLER = Straggler()


class Communication(Topic, name="communication"):
    """Causes of exposed communication."""

    hardly_overlapped_share = threshold(0.05, "fraction", "chosen", "fraction of the communication that is overlapped")
    latency_bound_share = threshold(
        0.5,
        "fraction",
        "chosen",
        "fraction of the transfer time that is latency: a collective of 0 bytes takes it as well",
    )
    many_collectives = threshold(64, "collectives", "chosen", "collectives a step")
    most_of_transfer_share = threshold(0.8, "fraction", "chosen", "fraction of the transfer time")
    half_share = threshold(0.5, "fraction")
    tail_over_queueing = threshold(
        4.0,
        "times",
        "chosen",
        "times a rank's wait for a core: a shorter tail under gloo is not evidence of a slow link",
    )
    steady_tail_over_queueing = threshold(
        0.35, "times", "chosen", "times the same wait, for a tail that nine steps in ten have"
    )
    bandwidth_from_bytes = threshold(
        1 << 16, "bytes", "chosen", "bytes: the time of smaller collectives is all latency, so they have no bandwidth"
    )
    tensors_from_bytes = threshold(
        1 << 10, "bytes", "chosen", "bytes: smaller collectives are a loss or a norm, not parameters or gradients"
    )
    queued_collective_ns = threshold(
        50_000, "ns", "chosen", "between the end of one collective and the start of the one that queued behind it"
    )
    low_bandwidth_share = threshold(
        0.5, "fraction", "chosen", "fraction of the group's best (the 95th percentile at sizes that saturate it)"
    )
    large_collective_bytes = threshold(
        1 << 20, "bytes", "chosen", "bytes: smaller collectives are dominated by latency and schedulers"
    )
    comparable_size_share = threshold(0.5, "fraction", "chosen", "of the group's largest size")
    confidence_of_missing_ranks = threshold(
        0.55, "confidence", "chosen", "upper bound of the confidence for ranks that were not recorded"
    )
    incomplete_groups_share = threshold(
        0.5,
        "fraction",
        "chosen",
        "of the exposed communication: below this, the completely recorded groups show the cause",
    )
    floors_shown = threshold(3, "floors")
    between_two_protocols = threshold(
        2.0, "times", "chosen", "times latency plus size over bandwidth: so slow a size may be between two protocols"
    )
    last_bucket_share = threshold(
        0.5,
        "fraction",
        "chosen",
        "fraction of the gradients in the last bucket; with four equal buckets it is a quarter",
    )
    bucket_worth_splitting_bytes = threshold(1 << 20, "bytes", "chosen", "bytes: DDP's own first bucket")
    last_zero_bucket_share = threshold(
        0.5,
        "fraction",
        "chosen",
        "of the gradients in the last bucket, which cannot be overlapped: from here on it is worth splitting",
    )
    hardly_overlapped_reductions_share = threshold(
        0.1, "fraction", "chosen", "of the reductions: DeepSpeed's overlap_comm is off"
    )
    reductions_of_micro_step_share = threshold(
        0.5,
        "fraction",
        "chosen",
        "of the last micro-batch's reductions: an earlier one with fewer reduces something else",
    )
    work_after_stall_share = threshold(
        0.2,
        "fraction",
        "chosen: torch/distributed/fsdp/_fully_shard: the compute stream waits while the most inputs of "
        "reductions allowed are alive",
        "of the stalled time: with less work after it (copies of gradients), the backward does not go on",
    )
    unseen_kernels_shown = threshold(3, "kernels")
    least_unseen_kernel_share = threshold(
        0.01, "fraction", "chosen", "of the device's time: kernels that take less are not listed"
    )
    kernel_name_chars = threshold(60, "characters")
    matched_steps_share = threshold(
        0.5,
        "fraction",
        "chosen",
        "of the counted steps need a matched collective, for the timelines to be the better account",
    )
    contradicting_account_share = threshold(
        0.5,
        "fraction",
        "chosen",
        "of what one account finds: if the other finds less than that, they contradict each other",
    )


COMMUNICATION = Communication()


class ExpertImbalance(Topic, name="expert-imbalance"):
    """When the load of experts explains late ranks."""

    unexplained_lateness_share = threshold(
        0.3, "fraction", "chosen", "of the lateness: a rank is slow itself if the load explains at most this fraction"
    )
    explained_by_load = threshold(
        0.7, "fraction", "chosen", "fraction explained by the load: from 0.7 on it is the reason, up to 0.35 not"
    )
    not_explained_by_load = threshold(
        0.35, "fraction", "chosen", "fraction explained by the load: from 0.7 on it is the reason, up to 0.35 not"
    )
    interval_beyond = threshold(0.5, "fraction", "chosen", "the whole 95 % interval must lie on one side of it")
    interval_half_width = threshold(
        0.3, "fraction", "chosen", "half-width of that interval: a wider one decides nothing"
    )
    lateness_after_dispatches_share = threshold(
        0.5, "fraction", "chosen", "of the lateness: if less of it comes after dispatches, it has another reason"
    )
    known_dispatches_share = threshold(
        0.8, "fraction", "chosen", "of the dispatches: for at least so many, the computation that follows is known"
    )
    slowdown_elsewhere_share = threshold(
        0.2, "fraction", "chosen", "of the slowdown after dispatches: a smaller slowdown elsewhere counts as none"
    )
    least_dispatches = threshold(4, "dispatches")
    always_most_loaded_share = threshold(
        0.9, "fraction", "chosen", "of the dispatches: a rank that receives most in so many always receives most"
    )
    group_lateness_share = threshold(
        0.25, "fraction", "chosen", "of the lateness in the worst group: ranks do not wait for a group with less"
    )
    others_load = threshold(1.02, "times", "chosen", "times the mean: the others receive as much")
    confidence_without_time_per_token = threshold(
        0.7, "confidence", "chosen", "upper bound of the confidence where the time per token was not measured"
    )


EXPERT_IMBALANCE = ExpertImbalance()


class DataLoading(Topic, name="data-loading"):
    """When the loader or the copy of its batches bounds the step."""

    quiet_median_share = threshold(
        0.02,
        "fraction",
        "chosen: median wait as a fraction of the step; below it, a few steps hold nearly all of the "
        "wait, which the mean hides",
    )
    full_wait_share = threshold(0.8, "fraction", "chosen", "of the time that was waited for data")
    one_kind_of_copy_share = threshold(
        0.75, "fraction", "chosen", "of the exposed copies: those of one direction, or of one kind of memory"
    )


DATA_LOADING = DataLoading()


class HostTime(Topic, name="host-time"):
    """When code on the host, evaluations or graph breaks bound the step."""

    confidence_of_code_between_phases = threshold(
        0.7, "confidence", "chosen", "at most: operators that run there, such as gradient clipping, may be needed"
    )
    most_stalls_named = threshold(3, "stalls")
    unusual_step = threshold(
        3.0,
        "times",
        "chosen: an evaluation that was not recognized makes its step longer than others in forward or "
        "between the phases: this many times as long as the median step there. In at most this part of "
        "the steps, else it is what a usual step does",
    )
    unusual_steps_share = threshold(0.3, "fraction", "chosen: see unusual_step")


HOST_TIME = HostTime()


class Compute(Topic, name="compute"):
    """When the computation itself is slow."""

    reference_mfu = threshold(
        0.35,
        "fraction",
        "source: MFU of dense BF16: torchtitan's Llama-8B reaches 33 to 39 % on H100 with FSDP, MegaScale 55 %",
    )
    low_mfu = threshold(0.30, "fraction")
    confidence_of_low_mfu = threshold(
        0.6, "confidence", "chosen", "the reference is that of large language models, and the gain an upper bound"
    )


COMPUTE = Compute()


class MemoryUse(Topic, name="memory-use"):
    """When a device's memory is short, or left unused."""

    near_full_share = threshold(0.90, "fraction")
    recomputation_share = threshold(0.15, "fraction", "chosen", "of the computation")
    roomy_share = threshold(
        0.70, "fraction", "chosen", "of the capacity: at most this much is reserved on the fullest rank"
    )


MEMORY_USE = MemoryUse()


class DeviceHealth(Topic, name="device-health"):
    """Signs of throttled, damaged or badly connected devices."""

    readings = threshold(3, "readings")
    largest_counter = threshold(1 << 48, "count", "chosen", "a counter above it was misread")
    loaded_percent = threshold(50, "percent", "chosen", "per cent utilisation")
    lower_generation_share = threshold(
        0.75, "fraction", "chosen", "fraction of the readings under load that show the lower generation"
    )
    largest_lanes = threshold(32, "lanes")
    largest_generation = threshold(15, "generation")
    largest_links = threshold(64, "links")
    rises = threshold(2, "readings")
    replays_a_second = threshold(
        8 / 60,
        "per second",
        "source: DCGM's limits (dcgm_gpu_hardware_limits.h): 8 PCIe replays a minute, and 100 CRC errors "
        "a second on NVLinks. One replay or recovery of an NVLink is a failure there; here the counter "
        "must also rise between several readings",
    )
    other_ranks_with_links = threshold(
        3, "ranks", "chosen", "other ranks with links: with two pairs of GPUs, one pair may have no bridge"
    )
    throttled_samples_share = threshold(0.3, "fraction", "chosen", "of a rank's samples")
    slower_clock = threshold(0.9, "fraction", "chosen", "of the other ranks' median: a clock, or a power limit")
    more_power = threshold(1.05, "times", "chosen", "times theirs")
    least_throttled_samples = threshold(2, "samples")
    corrected_errors = threshold(
        10,
        "errors",
        "chosen: corrected errors in one run that are worth a look: at least so many, in several "
        "readings, and one an hour. Any memory has a few",
    )
    corrected_errors_an_hour = threshold(1.0, "per hour", "chosen: see corrected_errors")
    rises_of_corrected_errors = threshold(2, "readings", "chosen: see corrected_errors")
    most_retired_pages = threshold(60, "pages", "chosen", "pages: an NVIDIA GPU can retire 64")


DEVICE_HEALTH = DeviceHealth()


class SharedGpus(Topic, name="shared-gpus"):
    """How sure it is that processes use a GPU together."""

    confidence_by_id = threshold(0.99, "confidence", "chosen", "the ranks reported one GPU")
    confidence_by_count = threshold(0.9, "confidence", "chosen", "the driver counts no more GPUs and processes")
    confidence_of_others = threshold(
        0.8, "confidence", "chosen", "loaders and servers of the job may have contexts, too"
    )
    confidence_of_contexts = threshold(
        0.5, "confidence", "chosen", "mostly contexts that other ranks opened by mistake"
    )


SHARED_GPU = SharedGpus()


class Machines(Topic, name="machines"):
    """What the machines' counters say about a finding."""

    least_seconds = threshold(1.0, "s", "chosen", "between the first and the last reading")
    faster_than_others = threshold(2.0, "times", "chosen", "the rate of the same counter on any other host")
    least_time_share = threshold(
        0.01, "fraction", "chosen", "of the time: less pressure, steal or throttling explains nothing"
    )
    activity_unlike_others = threshold(
        1.25, "times", "chosen", "more or less than the median of the host's other GPUs: work, power and traffic differ"
    )
    most_counters_cited = threshold(3, "counters", "chosen", "of each host")
    most_hosts_cited = threshold(3, "hosts", "chosen", "by a finding that names no rank")


MACHINES = Machines()


class VerdictThresholds(Topic, name="verdict"):
    """Which class the verdict has, and when it is left open."""

    tie_share = threshold(
        0.05, "fraction", 'chosen: two causes whose shares differ by less than this make the answer "mixed"'
    )
    percentile_of_order = threshold(
        2.5,
        "percent",
        "chosen",
        "per cent on either side: two causes whose order changes within it are of equal weight, too",
    )
    idle_share = threshold(
        0.3, "fraction", "chosen", "idle time of a device, whatever its cause: more is not compute-bound"
    )
    idle_share_on_cpu = threshold(
        0.5, "fraction", "chosen", "without an accelerator, Python between the operators is work as well"
    )
    startup_share = threshold(0.8, "fraction", "chosen", "of a window: the rest is not typical of a step")
    least_work_ns = threshold(20_000, "ns", "chosen", "a handful of kernels, or of operators")
    least_work_on_cpu_ns = threshold(500_000, "ns", "chosen", "a handful of kernels, or of operators")
    few_pieces = threshold(3, "pieces", "chosen", "pieces of device work")
    least_delayed_rank_share = threshold(
        0.5, "fraction", "chosen", "of the largest cost: the headline does not add a delayed rank that costs less"
    )


VERDICT = VerdictThresholds()


class Confidence(Topic, name="confidence"):
    """Bounds of the confidence where the evidence is not in the records, and how its features are scaled. The rest is
    fitted: diag/diagnoses/confidence.json."""

    at_most = threshold(0.99, "confidence", "chosen: no answer is certain")
    least_told = threshold(
        0.01, "confidence", "chosen", "a reason for doubt that lowers the confidence by less is not listed"
    )
    startup_share = threshold(
        0.5, "fraction", "chosen", "of the steps: an answer is as sure as the rest of them is long"
    )
    pieces_for_half = threshold(4, "pieces", "chosen", "of device work: with so many, the confidence is at most half")
    unless_sure = threshold(
        0.89, "confidence", "chosen", "where what was recorded may be unlike the rest, or the next bound is missed"
    )
    sure_from = threshold(
        0.98,
        "probability",
        "measured: the lowest, in steps of 0.01, with a margin of 0.01, from which no answer was wrong in a "
        "cross-validation of 1,583 cases (196 answers)",
        "of the fitted model: below it, an answer is not told at 0.9 or more",
    )
    share_error = threshold(
        0.01,
        "fraction",
        "measured: 0.005 to 0.015 are equally likely, and none is less likely",
        "of the step: a share is no more exact than this, however many steps agree",
    )
    noise_of_one_step = threshold(
        0.05, "fraction", "chosen", "of the step: half-width of the interval of a share of which one step is known"
    )
    least_steps = threshold(
        8,
        "steps",
        "chosen: by the rule of succession, after n steps that agree, the next one does with probability "
        "(n + 1) / (n + 2), which is 0.9 from 8 on",
        "with fewer, unless_sure bounds the confidence: what happens in some steps may be in none of them, or in all",
    )
    without_communication = threshold(0.6, "confidence", "chosen", "where communication was not recorded")
    without_idle = threshold(
        0.6, "confidence", "chosen", "where a device may have been idle for some of what counts as compute"
    )
    of_first_batch = threshold(
        0.5, "confidence", "chosen", "where the loader's workers were starting, and no later batch was recorded"
    )
    of_coarse_phases = threshold(0.5, "confidence", "chosen", "where collectives may hide idle time of the devices")
    without_some_waits = threshold(
        0.75, "confidence", "chosen", "where some waits for collectives were not recorded: there may be more waiting"
    )
    uncounted_copies_share = threshold(
        0.1,
        "fraction",
        "chosen",
        "of the time: copies may take so much, and the driver's utilization counts kernels alone",
    )
    if_idle_may_be_copies = threshold(0.3, "confidence", "chosen", "where all of the idle time may be copies")
    if_accounts_differ = threshold(0.6, "confidence", "chosen", "where two accounts of the run contradict each other")
    of_late_rank = threshold(
        0.5, "confidence", "chosen", "lower bound where a rank is late: it is known, whatever the reason"
    )
    explained_wait_share = threshold(
        0.8,
        "fraction",
        "chosen",
        "of the waiting for late ranks; below it, the confidence is at most the explained part",
    )


CONFIDENCE = Confidence()


class Comparison(Topic, name="comparison"):
    """When two runs differ."""

    least_part_share = threshold(0.01, "fraction", "chosen", "fraction of the path")
    one_rank_share = threshold(
        0.6, "fraction", "chosen", "fraction of a kind's time that is on one rank, where there are several"
    )
    resamples = threshold(2000, "draws")
    interval_confidence = threshold(0.95, "confidence")
    least_steps = threshold(5, "steps", "chosen", "with fewer, the spread of the steps is not meaningful")


COMPARISON = Comparison()


class OddNumbers(Topic, name="odd-numbers", fixed=True):
    """Losses and gradient norms that are not finite, or jump."""

    not_finite = threshold(0.99, "confidence", "chosen", "that there is one; it was read")
    jump = threshold(0.6, "confidence", "chosen", "that it is no noise")


ODD_NUMBERS = OddNumbers()
