"""What each strategy can be told with ``--set KEY=VALUE``, beside the options that all share. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .keys import CHOICE, INTEGER, NUMBER, TEXT, Key, values_of

DDP = "ddp"
FSDP1 = "fsdp1"
FSDP2 = "fsdp2"
ZERO1 = "zero1"
DEEPSPEED = "deepspeed"

ABOUT: Mapping[str, str] = {
    DDP: "DistributedDataParallel: every rank holds the whole model",
    FSDP1: "FullyShardedDataParallel, the deprecated first FSDP",
    FSDP2: "fully_shard: parameters, gradients and optimizer states are sharded",
    ZERO1: "DDP with ZeroRedundancyOptimizer: optimizer states are sharded",
    DEEPSPEED: "DeepSpeed's ZeRO 1 to 3 (pip install 'diag[deepspeed]')",
}
STRATEGIES = tuple(ABOUT)

_YES_NO = ("no", "yes")


def _switch(name: str, default: str, what: str) -> Key:
    return Key(name, CHOICE, default, what, _YES_NO)


_OF_DDP = (
    Key("bucket_mb", NUMBER, "25", "gradients reduced together, in MiB", least=0.001),
    _switch("static_graph", "no", "the same parameters take part in every step: says so to DDP"),
    _switch("gradient_as_bucket_view", "yes", "gradients live in the buckets, which saves a copy of them"),
    _switch("find_unused_parameters", "no", "look in every forward for parameters that take no part"),
)

KNOBS: Mapping[str, tuple[Key, ...]] = {
    DDP: (
        *_OF_DDP,
        Key("comm_hook", CHOICE, "none", "compress gradients on their way", ("none", "fp16", "bf16", "powersgd")),
        Key("powersgd_rank", INTEGER, "2", "rank of PowerSGD's approximation", least=1),
    ),
    ZERO1: (*_OF_DDP, _switch("parameters_as_bucket_view", "no", "parameters live in buckets: one broadcast for many")),
    FSDP1: (
        Key(
            "sharding", CHOICE, "full_shard", "ShardingStrategy",
            ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard"),
        ),
        Key("replicas", INTEGER, "1", "copies of the sharded model, for hybrid_shard", least=1),
        Key("backward_prefetch", CHOICE, "pre", "gather the next unit before or after this one's gradients",
            ("pre", "post", "none")),
        _switch("forward_prefetch", "no", "gather the next unit before this one computes"),
        _switch("limit_all_gathers", "yes", "hold the CPU back while two all-gathers are in flight: saves memory"),
        _switch("use_orig_params", "yes", "keep the original parameters beside the flat ones"),
    ),
    FSDP2: (
        Key("replicas", INTEGER, "1", "copies of the sharded model: hybrid sharding (HSDP)", least=1),
        _switch("offload", "no", "parameters, gradients and optimizer states in the host's memory"),
        Key("reduce_scatter_buffers", INTEGER, "1", "reduce-scatters in flight before computation waits", least=1),
        _switch("separate_reduce_scatter_group", "no", "a communicator of their own for reduce-scatters"),
    ),
    DEEPSPEED: (
        Key("stage", INTEGER, "2", "ZeRO stage: 1, 2 or 3", least=1),
        Key("offload_optimizer", CHOICE, "none", "where optimizer states live", ("none", "cpu", "nvme")),
        Key("offload_param", CHOICE, "none", "where parameters live; stage 3", ("none", "cpu", "nvme")),
        Key("nvme_path", TEXT, "none", "a folder on the NVMe disk, for what is offloaded there"),
        Key("overlap_comm", CHOICE, "default", "reduce gradients while backward computes; by default in stage 3",
            ("default", *_YES_NO)),
        Key("reduce_bucket_size", INTEGER, "500000000", "gradients reduced together, in elements", least=1),
        Key("allgather_bucket_size", INTEGER, "500000000", "parameters gathered together, in elements", least=1),
        Key("prefetch_bucket_size", INTEGER, "50000000", "stage 3: elements gathered ahead of their use"),
        Key("persistence_threshold", INTEGER, "100000", "stage 3: smaller parameters stay gathered, in elements"),
        _switch("contiguous_gradients", "yes", "copy gradients into one buffer as they come"),
        _switch("zero_init", "no", "stage 3: parameters are sharded while the model is built"),
    ),
}  # fmt: skip


class KnobError(ValueError):
    """A setting that the strategy does not have, or a value it does not take."""


@dataclass(frozen=True)
class Knobs:
    """The settings of one strategy, each with its value."""

    values: tuple[tuple[str, str], ...]

    def text(self, name: str) -> str:
        return dict(self.values)[name]

    def number(self, name: str) -> float:
        return float(self.text(name))

    def integer(self, name: str) -> int:
        return int(self.text(name))

    def on(self, name: str) -> bool:
        return self.text(name) == "yes"

    def get(self, name: str, otherwise: str) -> str:
        """The value, or ``otherwise`` of a strategy that has no such setting."""
        return dict(self.values).get(name, otherwise)


def usage(strategy: str) -> str:
    return ", ".join(map(str, KNOBS[strategy]))


def knobs_of(strategy: str, given: tuple[str, ...]) -> Knobs:
    """The settings of a strategy from ``KEY=VALUE`` texts. KnobError says what is wrong, and whose a strange key is."""
    for part in given:
        name = part.partition("=")[0].strip()
        owners = [other for other, keys in KNOBS.items() if name in {key.name for key in keys}]
        if owners and strategy not in owners:
            raise KnobError(
                f"--set {part} is a setting of --strategy {' and '.join(owners)}, not of {strategy}, which takes: "
                f"{usage(strategy)}"
            )
    return Knobs(values_of(f"--strategy {strategy}", KNOBS[strategy], given, f"--set {usage(strategy)}", KnobError))
