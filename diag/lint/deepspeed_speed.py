"""Rules for what DeepSpeed overlaps, and in pieces of which size."""

from __future__ import annotations

from collections.abc import Iterator

from diag.words.formatting import size, spaced

from .deepspeed import DeepSpeed
from .model import Notice, Severity

_CONFIG = "deepspeed/runtime/zero/config.py"
_DEFAULT_BUCKET = 500_000_000
# 2 MB in 16 bits: pieces at which a collective's time is its latency, not its bytes.
_SMALL_BUCKET = 1_000_000
# A unit of 2 GB in 16 bits that is fetched at once, or parameters of 20 MB that every rank keeps whole.
_HUGE_PREFETCH, _HUGE_PERSISTENT = 1_000_000_000, 10_000_000


def overlap(seen: DeepSpeed) -> Iterator[Notice]:
    """Gradients that are reduced while nothing is computed."""
    said = seen.zero.flag("overlap_comm")
    if (seen.stage in (1, 2) and said is not True) or (seen.stage == 3 and said is False):
        off = "Off" if said is False else f"Off by default at stage {seen.stage} (it is on at stage 3 only)"
        yield seen.zero.say(
            "overlap_comm", Severity.WARNING, f"{off}: gradients are reduced while nothing is computed.",
            '"overlap_comm": true', f"{_CONFIG}: overlap_comm_valid",
        )  # fmt: skip


def bucket_memory(seen: DeepSpeed) -> Iterator[Notice]:
    """What overlapped buckets take of the GPU's memory."""
    if seen.stage not in (1, 2) or seen.zero.flag("overlap_comm") is not True:
        return
    numbers = [_bucket(seen, key) for key in ("reduce_bucket_size", "allgather_bucket_size")]
    if None in numbers:  # auto
        return
    count = sum(number for number in numbers if number is not None)
    if count < 2 * _DEFAULT_BUCKET:
        return
    yield seen.zero.say(
        "reduce_bucket_size", Severity.NOTE if count == 2 * _DEFAULT_BUCKET else Severity.WARNING,
        f"Overlapped, these two buckets take about {spaced(size(4.5 * 2 * count))} of each GPU: 4.5 times their "
        "elements, at 2 bytes.", '"reduce_bucket_size": 2e8, "allgather_bucket_size": 2e8',
        "Transformers documentation, DeepSpeed: overlap_comm uses 4.5x the bucket sizes",
    )  # fmt: skip


def _bucket(seen: DeepSpeed, key: str) -> float | None:
    return seen.zero.number(key) if key in seen.zero else float(_DEFAULT_BUCKET)


def small_buckets(seen: DeepSpeed) -> Iterator[Notice]:
    """Buckets at which every collective costs its latency."""
    if not seen.stage:
        return
    for key in ("reduce_bucket_size", "allgather_bucket_size"):
        number = seen.zero.number(key)
        if number is not None and number < _SMALL_BUCKET and not (seen.stage == 3 and key == "allgather_bucket_size"):
            yield seen.zero.say(
                key, Severity.WARNING,
                f"{seen.zero.shown(key)} elements a collective are less than 2 MB in 16 bits: many small collectives, "
                "each at the cost of its latency.", f'"{key}": 5e8', f"{_CONFIG}: default 5e8",
            )  # fmt: skip


def prefetch(seen: DeepSpeed) -> Iterator[Notice]:
    """Stage 3 that fetches nothing ahead, or too much."""
    if seen.stage != 3:
        return
    key = "stage3_prefetch_bucket_size"
    ahead, live = seen.zero.number(key), seen.zero.number("stage3_max_live_parameters")
    source = "deepspeed/runtime/zero/partitioned_param_coordinator.py"
    if ahead == 0:
        yield seen.zero.say(
            key, Severity.WARNING, "With 0 no parameter is gathered ahead: every all-gather is waited for.",
            f'"{key}": 5e7', source,
        )  # fmt: skip
    elif live is not None and live < (ahead if ahead is not None else 5e7):
        yield seen.zero.say(
            "stage3_max_live_parameters", Severity.WARNING,
            "Fewer parameters may be live than the prefetch bucket holds, so prefetching stops there and all-gathers "
            "are waited for.", '"stage3_max_live_parameters": 1e9', source,
        )  # fmt: skip
    elif ahead is not None and ahead > _HUGE_PREFETCH:
        yield seen.zero.say(
            key, Severity.WARNING,
            f"Up to {spaced(size(2 * ahead))} in 16 bits are gathered ahead, beside the parameters in use.",
            f'"{key}": 5e7', f"{_CONFIG}: default 5e7",
        )  # fmt: skip


def persistence(seen: DeepSpeed) -> Iterator[Notice]:
    """Thresholds at which stage 3 gathers every bias, or keeps large parameters whole."""
    key = "stage3_param_persistence_threshold"
    number = seen.zero.number(key)
    if seen.stage != 3 or number is None:
        return
    if number == 0:
        text = "With 0 every bias and norm is sharded and gathered by itself: many small all-gathers."
    elif number >= _HUGE_PERSISTENT:
        text = (
            f"Parameters of up to {seen.zero.shown(key)} elements stay whole on every rank, which stage 3 is to avoid."
        )
    else:
        return
    yield seen.zero.say(key, Severity.WARNING, text, f'"{key}": 1e5', f"{_CONFIG}: default 1e5")


def single_gpu(seen: DeepSpeed) -> Iterator[Notice]:
    """ZeRO with nobody to share with."""
    offloaded = seen.offload("offload_optimizer") or seen.offload("offload_param")
    if seen.stage and seen.devices.gpus == 1 and not offloaded:
        yield seen.zero.say(
            "stage", Severity.NOTE,
            f"On one GPU stage {seen.stage} shards nothing: every state is whole, and its hooks and buckets only cost.",
            '"stage": 0', "ZeRO (arXiv 1910.02054): states are divided by the ranks",
        )  # fmt: skip


RULES = (overlap, bucket_memory, small_buckets, prefetch, persistence, single_gpu)
