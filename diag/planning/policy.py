"""Thresholds of plans: memory, step times and which strategy is advised."""

from __future__ import annotations

from diag.policy import Topic, threshold


class Planning(Topic, name="planning", fixed=True):
    """What a plan assumes, and which strategy it advises."""

    across_gb_s = threshold(40.0, "GB/s", "chosen", "about the bandwidth of a 400 Gbit/s adapter per GPU")
    per_host = threshold(8, "GPUs", "chosen", "that fast links connect: those of a host of most kinds")
    most_stages = threshold(1 << 14, "stages", "chosen", "a hundred times the blocks of the deepest models")
    warm_up_steps = threshold(
        2, "steps", "chosen", "first steps, in which optimizer states, buckets and the allocator's blocks are created"
    )
    units_of_a_number = threshold(50, "units", "chosen", "units of a model if only its number of parameters is known")
    units_gathered_at_once = threshold(3, "units")
    usable_memory_share = threshold(
        0.9,
        "fraction",
        "chosen: fraction of a GPU's memory; the rest is for fragmentation, NCCL's buffers and the CUDA context",
    )
    peak_error_share = threshold(
        0.05,
        "fraction",
        "measured: tests/bench/PLAN_MEMORY.md, the largest error of 53 trainings is 4.74 %",
        "of the measured peak: a simulation that differs by more says nothing about changes",
    )
    most_of_a_bound = threshold(
        0.5, "fraction", "chosen", "of the peak: that a change frees at most more than this is no information"
    )
    longer_step_share = threshold(
        0.1, "fraction", "chosen: a simpler strategy is chosen if its step is longer by no more than this fraction"
    )
    least_speedup = threshold(1.5, "times", "chosen", "least speedup over one GPU for which several are advised")
    most_gpus = threshold(1 << 16, "GPUs")
    most_config_bytes = threshold(1 << 20, "bytes", "chosen", "of a config.json")
    mfu = threshold(
        0.4,
        "fraction",
        "chosen: torchtitan's published runs of Llama 3.1 8B on H100s, which overlap nearly all "
        "communication, reach 33 % (eager) and 39 % (compiled); Llama 3 405B 38 to 43 % (2407.21783)",
        "of a rank's computation alone, if nothing better is known",
    )
    base_latency_us = threshold(
        8.4,
        "us",
        "source: NCCL's base latency of a ring in the Simple protocol",
        "NCCL's base latency of a ring in the Simple protocol",
    )
    latency_within_us = threshold(
        3.4, "us", "source: NCCL, src/graph/tuning.cc, ring and Simple protocol", "a hop over NVLink"
    )
    latency_across_us = threshold(
        14.0, "us", "source: NCCL, src/graph/tuning.cc, ring and Simple protocol", "a hop over the network"
    )
    micro_batches_simulated = threshold(
        3,
        "micro-batches",
        "chosen",
        "simulated micro-batches without pipeline stages: each further one takes as long as the third",
    )


PLANNING = Planning()
