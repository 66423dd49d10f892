"""Thresholds of the account of a run: steps, clocks, gaps of devices, durations, queueing."""

from __future__ import annotations

from diag.policy import Topic, threshold


class Steps(Topic, name="steps"):
    """Which steps of a run count."""

    warm_up_steps = threshold(
        2,
        "steps",
        "chosen: lazy initialisation, the allocator, first connections and full loader queues: not "
        "representative of the run",
    )
    least_unprofiled_steps = threshold(5, "steps", "chosen", "fewer do not say how long a step is without the profiler")
    profiled_steps_ratio = threshold(
        1.1, "ratio", "chosen", "of a profiled step to one without the profiler: what it adds is said from there on"
    )
    least_common_steps_of_ranks = threshold(
        10, "steps", "chosen", "fewer steps that all ranks recorded are not enough to leave out those after a trace"
    )
    most_slow_steps_after_trace = threshold(
        8, "steps", "chosen", "at most these many steps are left out after a trace was written"
    )
    least_steps_outside_of_windows = threshold(
        3, "steps", "chosen", "steps outside of profiler windows: with fewer, those inside count, too"
    )
    stalled_share = threshold(0.02, "fraction", "chosen", "of the steps: as few that stall are incidents of their own")
    most_steps_of_traces = threshold(
        10_000,
        "steps",
        "chosen: a mark of a step takes 4 bytes of a packed trace, and its account 20 kB of memory. "
        "Traces hold a few dozen steps",
    )
    least_steps_of_each_trace = threshold(
        200, "steps", "chosen", "every trace may have so many, however many the others have"
    )


STEPS = Steps()


class StepDetection(Topic, name="step-detection"):
    """How steps are inferred in a trace without marks of steps."""

    least_iterations_of_a_range = threshold(
        3,
        "iterations",
        "chosen: two iterations can be equal by chance. Operators repeat within an iteration as well (the "
        "layers of a model), so more iterations are required for them",
    )
    least_iterations_of_an_operator = threshold(4, "iterations", "chosen: see least_iterations_of_a_range")
    covered_share = threshold(
        0.5,
        "fraction",
        "chosen: fraction of the time from the first to the last range of one name: with less, the ranges "
        "are parts of an iteration",
    )
    share_of_launches = threshold(
        0.8, "fraction", "chosen", "fraction of the launches between the first and the last iteration"
    )
    operators_share_of_device_time = threshold(
        0.5,
        "fraction",
        "chosen: fraction of the device's time: iterations by an operator hold more of it together, and "
        "none of them alone",
    )
    longest_to_shortest = threshold(
        3.0, "times", "chosen", "times as long as another: iterations differ in length, but not like the parts of one"
    )
    periods_alike_share = threshold(
        0.8, "fraction", "chosen", "fraction of the periods with as many operators as the median period"
    )


STEP_DETECTION = StepDetection()


class CriticalPath(Topic, name="critical-path"):
    """How the critical path and its blame are followed."""

    noise_of_waits_ns = threshold(
        50_000,
        "ns",
        "chosen: a shorter wait is noise of two clock readings and a thread's wake-up, not a reason to change ranks",
    )
    numbers_at_once = threshold(
        1 << 21, "numbers", "chosen: 16 MB an array. As many steps are compared together as fit"
    )
    pairs_at_once = threshold(1 << 22, "pairs", "chosen", "at a time: 32 MB an array")
    rows_at_once = threshold(
        1024, "rows", "chosen", "rows in one batch: each value is copied once for each window that holds it"
    )
    reference_steps = threshold(
        20, "steps", "chosen", "steps around a step that are its reference: clocks drift by microseconds in that time"
    )
    ranks_with_parts_shown = threshold(16, "ranks", "chosen", "ranks whose parts of each step are shown")
    values_at_once = threshold(1 << 21, "values", "chosen", "of all ranks in one batch of steps: 16 MB an array")
    steps_at_once = threshold(16, "steps", "chosen", "steps in one batch: 64 bytes of a rank and column")


CRITICAL_PATH = CriticalPath()


class Clocks(Topic, name="clocks"):
    """How clocks of ranks are tied to each other, and when two contradict each other."""

    blocked_ns = threshold(50_000, "ns", "chosen", "a shorter wait found everything done")
    most_sums_of_bounds = threshold(
        1 << 30, "sums", "chosen", "sums of two bounds, once every clock is tied to every other"
    )
    bounds_at_once = threshold(
        1 << 16,
        "bounds",
        "measured: of one clock, which stay in the processor's cache; with half or twice as many, 1,024 clocks take a "
        "fifth longer (November 2026)",
    )
    noise_of_bounds_ns = threshold(
        50_000, "ns", "chosen: a smaller contradiction between bounds is reading noise of two clocks, not a rate"
    )
    largest_rate = threshold(
        500e-6,
        "fraction",
        "chosen",
        "an undisciplined quartz is off by 20 to 100 parts per million; beyond this it is something else",
    )
    windows = threshold(64, "windows")
    least_windows_for_a_rate = threshold(3, "windows", "chosen", "with two, every line fits")
    rounds = threshold(2, "rounds", "chosen", "the bounds drift within a window, too; after one round they hardly do")
    contradiction_ns = threshold(
        20_000_000,
        "ns",
        "measured: ends of one collective on one host agree to half a millisecond, to six when cores are "
        "oversubscribed. Ranks of one host whose calls contradict their common clock by more than this "
        "are treated as on separate clocks",
    )
    least_common_ends = threshold(4, "collectives", "chosen", "collectives of two clocks")
    contradicted_ends_share = threshold(
        0.9, "fraction", "chosen", "fraction of the ends that are closer to their median than the uncertainty"
    )
    uncertainty_share = threshold(
        0.25, "fraction", "chosen", "fraction of the mean exposed communication of a step (docs/concepts/clocks.md)"
    )


CLOCKS = Clocks()


class DeviceClock(Topic, name="device-clock"):
    """How times on the device are inferred from waits of the host."""

    observed_waits_share = threshold(
        0.5,
        "fraction",
        "chosen: fractions of the calls of one group and operation. With fewer waits observed than the "
        "first, the device's time counts as unknown; the second is nearly all. A call without an observed "
        "wait can hold up the device for any time",
    )
    nearly_all_waits_share = threshold(0.9, "fraction", "chosen: see observed_waits_share")
    sampled_steps = threshold(200, "steps")
    sampled_ranks = threshold(16, "ranks")
    least_steps_outside_of_windows = threshold(
        10, "steps", "chosen", "steps outside of windows: fewer do not represent the run"
    )
    least_known_steps_share = threshold(
        0.5, "fraction", "chosen", "fraction of the recorded steps whose times on the device must be known"
    )
    resolution_ns = threshold(5_000, "ns", "chosen", "between two events with nothing between them")
    error_of_driver_samples = threshold(
        0.02, "fraction", "chosen", "fraction of the time: the error of the driver's samples"
    )


DEVICE_CLOCK = DeviceClock()


class CollectiveDurations(Topic, name="collective-durations"):
    """Stragglers found in durations of collectives alone."""

    parts_of_job = threshold(20, "parts", "chosen", "parts of the job: a straggler must be one in most of them")
    least_collectives_of_a_part = threshold(
        24,
        "collectives",
        "chosen",
        "collectives of a rank in each part: more than in most steps, and a rank is late once a step",
    )
    dumps = threshold(8, "dumps")
    spread_of_ends_ns = threshold(
        20_000,
        "ns",
        "measured: ranks of one collective end that far apart without anybody being late: 11 us on four MI300s",
    )
    stragglers_wait_share = threshold(
        0.25, "fraction", "chosen", "fraction of the wait of most ranks: a straggler waits no longer"
    )
    as_late_share = threshold(
        0.9,
        "fraction",
        "chosen",
        "as the latest of a part: ranks that were made late by one are as late in their other groups",
    )
    part_with_a_late_rank_share = threshold(
        0.5, "fraction", "chosen", "fraction of the mean cost: in parts with less, no rank was late"
    )


COLLECTIVE_DURATIONS = CollectiveDurations()


class DeviceIdle(Topic, name="device-idle"):
    """Why a device is idle: hand-over, loading of code, stalls of the host."""

    hand_over_ns = threshold(
        10_000,
        "ns",
        "chosen: the device needs a few microseconds from a launch, or from the end of the kernel before "
        '(HTA\'s "kernel wait")',
    )
    loading_launch_ns = threshold(
        1_000_000,
        "ns",
        "chosen: a launch takes 2 to 20 us. If the first launch of a kernel takes a millisecond while the "
        "device is idle, it loads the kernel's code (4.2 s in one call on a first convolution); a later "
        "launch of that length is a stalled host. A call of 10 ms that neither launches, copies nor waits "
        "creates a context or loads a library (cudaFree: 981 ms and 8.0 s; cudaStreamCreateWithFlags: 242 "
        "ms). A graph is one launch of up to thousands of kernels: 0.7 ms for 390 of them",
    )
    loading_graph_ns = threshold(100_000_000, "ns", "chosen: see loading_launch_ns")
    loading_call_ns = threshold(10_000_000, "ns", "chosen: see loading_launch_ns")
    most_loading_allocations = threshold(
        8, "allocations", "chosen", "long allocations: 2 to 6 in start-ups of cuDNN, cuBLAS and the caching allocator"
    )
    single_stall_ns = threshold(
        10_000_000,
        "ns",
        "chosen: in a window that nothing divides into steps: a single stall of this length and this "
        "fraction of the time in which nothing was launched is not typical of a step. It may be the first "
        "call of a library, and never come again",
    )
    single_stall_share = threshold(0.2, "fraction", "chosen: see single_stall_ns")
    named_stall_ns = threshold(
        1_000_000, "ns", "chosen", "a stall worth a name: a hundred times the gap that a late launch leaves"
    )
    most_stalls_of_a_step = threshold(4, "stalls", "chosen", "the longest stalls, of a step and of a trace")
    most_stalls_of_a_trace = threshold(32, "stalls", "chosen", "the longest stalls, of a step and of a trace")
    naming_event_share = threshold(
        0.5, "fraction", "chosen", "a stall gets the name of the innermost event that spans this fraction of it"
    )
    copy_of_data_ns = threshold(
        20_000, "ns", "chosen", "half a megabyte over PCIe; a loss or a norm takes two or three microseconds"
    )


DEVICE_IDLE = DeviceIdle()


class Scheduling(Topic, name="scheduling"):
    """When queueing for CPU cores delays a rank or its loader."""

    share_of_training_thread = threshold(
        0.25,
        "fraction",
        "measured: a thread shares the training's work if it runs for a quarter of the time that the "
        "training's own thread runs, and for more than share_of_all_time of all time. If a training "
        "mostly sleeps, a quarter is nothing, and the queueing of its monitor's or gloo's threads on a "
        "busy host would explain the sleep: they run for 0.1 to 0.7 % of the time",
    )
    least_share_of_all_time = threshold(0.02, "fraction", "chosen: see share_of_training_thread")
    more_than_other_ranks = threshold(2.5, "times", "chosen", "times as much as any other rank")
    phase_that_may_stop_share = threshold(
        0.05, "fraction", "chosen", "fraction of the step: a phase that is long enough to contain a stop"
    )
    paused_share = threshold(0.05, "fraction", "chosen", "fraction of the time: less is not a pause")
    computing_loader_share = threshold(
        0.5, "fraction", "chosen: of a loader's time: one that is ready to run for less of it sleeps or reads"
    )
    least_looks_at_queue = threshold(
        3, "steps", "chosen: steps with a look at the loader's queue, and the fraction of them that found it empty"
    )
    empty_queue_share = threshold(0.6, "fraction", "chosen: see least_looks_at_queue")
    queued_workers_share = threshold(0.3, "fraction", "chosen", "fraction of the data wait")


SCHEDULING = Scheduling()
