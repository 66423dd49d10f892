"""What the bundled trainer can be asked to do, and the shapes of its models. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from .keys import Knobs, OptionError
from .strategies import knobs_of
from .strategies.base import Axes

OPTIONS_ENV = "DIAG_TRAINER_OPTIONS"

# 256 bytes and the document separator, rounded up to a multiple of 8 so that the tables split evenly over the ranks.
BYTE_VOCAB = 264


@dataclass(frozen=True)
class ModelShape:
    """The shape of a decoder. ``seq_len`` is in tokens, ``batch_size`` in sequences of one rank and micro-batch.

    ``deferred``: too large to be built whole on every rank, so its parameters are first created where they end up.
    """

    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn_dim: int
    vocab: int
    seq_len: int
    batch_size: int
    tied: bool = False
    rope_theta: float = 10_000.0
    deferred: bool = False


# 1b and 8b are the published shapes of Llama-3.2-1B and Llama-3-8B; 124m is GPT-2's size in this architecture.
PRESETS: Mapping[str, ModelShape] = {
    "tiny": ModelShape(
        dim=64, layers=2, heads=4, kv_heads=2, ffn_dim=192, vocab=BYTE_VOCAB, seq_len=64, batch_size=4
    ),
    "small": ModelShape(
        dim=320, layers=8, heads=5, kv_heads=5, ffn_dim=896, vocab=BYTE_VOCAB, seq_len=256, batch_size=4
    ),
    "124m": ModelShape(
        dim=768, layers=12, heads=12, kv_heads=12, ffn_dim=2048, vocab=50_304, seq_len=1024, batch_size=8, tied=True
    ),
    "1b": ModelShape(
        dim=2048, layers=16, heads=32, kv_heads=8, ffn_dim=8192, vocab=128_256, seq_len=2048, batch_size=4,
        tied=True, rope_theta=500_000.0, deferred=True,
    ),
    "8b": ModelShape(
        dim=4096, layers=32, heads=32, kv_heads=8, ffn_dim=14_336, vocab=128_256, seq_len=4096, batch_size=1,
        rope_theta=500_000.0, deferred=True,
    ),
}  # fmt: skip


def matmul_parameter_count(shape: ModelShape) -> int:
    """The weights that a token is multiplied with: all linear layers and the output projection, no table, no norm."""
    kv_dim = shape.dim // shape.heads * shape.kv_heads
    attention = 2 * shape.dim * shape.dim + 2 * shape.dim * kv_dim
    return shape.layers * (attention + 3 * shape.dim * shape.ffn_dim) + shape.vocab * shape.dim


def parameter_count(shape: ModelShape) -> int:
    """Every parameter of the model; a tied table counts once."""
    norms = (2 * shape.layers + 1) * shape.dim
    table = 0 if shape.tied else shape.vocab * shape.dim
    return matmul_parameter_count(shape) + table + norms


def flops_per_token(shape: ModelShape, seq_len: int) -> int:
    """Floating-point operations of forward and backward for one token.

    6 per matmul weight and 12 x layers x dim x seq for attention; causality is not discounted and recomputation is
    not counted, the convention of MFU in torchtitan and in the PaLM paper.
    """
    return 6 * matmul_parameter_count(shape) + 12 * shape.layers * shape.dim * seq_len


@dataclass(frozen=True)
class TrainerOptions:
    """Every knob of the trainer. ``batch_size`` and ``seq_len`` of None mean the preset's."""

    preset: str = "tiny"
    strategy: str = "fsdp2"
    settings: tuple[str, ...] = ()  # of the strategy's own, KEY=VALUE; see its class
    tensor_parallel: int = 1  # ranks that share each matrix
    pipeline_parallel: int = 1  # ranks that the layers are dealt to
    pipeline_schedule: str = "1f1b"  # "gpipe", "1f1b" or "interleaved"
    stages_per_rank: int = 1  # parts of the pipeline on each rank; more than 1 with "interleaved"
    wrap: str = "block"  # a unit of sharding: "block", "root" (the whole model), "linear", or a number of blocks
    prefetch: int = 0  # units gathered ahead; 0 leaves it to PyTorch
    reshard_after_forward: str = "yes"  # "yes", "no", or the number of ranks to reshard to
    micro_batches: int = 1
    grad_sync: str = "last"  # reduce gradients in the "last" micro-batch of a step, or in "every" one
    precision: str = "fp32"
    reduce_dtype: str = "fp32"  # of gradients on their way, with precision "bf16"
    activation_checkpointing: bool = False
    checkpoint_policy: str = "full"  # of each block recompute all ("full"), or what is not a matmul ("selective")
    compile: bool = False  # torch.compile, block by block
    num_workers: int = 1  # loader processes of each rank; 0 loads in the training process
    prefetch_factor: int = 2  # batches each loader process keeps ready
    pin_memory: bool = True  # has an effect on accelerators only
    steps: int = 20  # those before a checkpoint that the run resumes included
    batch_size: int | None = None
    seq_len: int | None = None
    data: str | None = None  # a text file or a folder of them; None: the Python standard library's own sources
    seed: int = 0
    learning_rate: float = 3e-4
    warmup_steps: int = 0  # over which the learning rate rises; 0: it is constant
    max_grad_norm: float = 1.0  # 0: do not clip
    timeout_s: float = 300.0  # how long a collective may take before the process group gives up
    checkpoint_every: int = 0  # steps; 0: never
    checkpoint_dir: str | None = None  # None: in the run directory
    keep_checkpoints: int = 3  # the newest ones
    checkpoint_async: bool = True  # write in the background
    resume: str | None = None  # a checkpoint, a folder of them, or the directory of a run that has some
    inject: tuple[str, ...] = ()

    def shape(self) -> ModelShape:
        """The model's shape, with the batch and sequence that were asked for."""
        preset = PRESETS[self.preset]
        values = asdict(preset)
        values["batch_size"] = preset.batch_size if self.batch_size is None else self.batch_size
        values["seq_len"] = preset.seq_len if self.seq_len is None else self.seq_len
        return ModelShape(**values)

    def blocks_per_unit(self) -> int | None:
        """Blocks in one unit of sharding; None where the unit is not made of whole blocks."""
        if self.wrap == "block":
            return 1
        return int(self.wrap) if self.wrap.isdecimal() else None

    def knobs(self) -> Knobs:
        """The strategy's own settings. KnobError where there is no such setting or value."""
        return knobs_of(self.strategy, self.settings)

    def axes(self, world_size: int) -> Axes:
        """How the ranks are cut. ValueError where they do not divide."""
        return Axes.of(
            world_size,
            stages=self.pipeline_parallel,
            replicas=int(self.knobs().get("replicas", "1")),
            parts=self.tensor_parallel,
        )

    def stages(self) -> int:
        """Parts that the layers are cut into."""
        return self.pipeline_parallel * self.stages_per_rank

    def to_json(self) -> str:
        """One line for the environment variable DIAG_TRAINER_OPTIONS."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> TrainerOptions:
        """The options that ``to_json`` wrote. What is missing has its default; an unknown name is an OptionError."""
        try:
            values: Any = json.loads(text)
        except json.JSONDecodeError as error:
            raise OptionError(f"{OPTIONS_ENV} is not JSON ({error}): start the trainer with `diag run`") from error
        if not isinstance(values, dict):
            raise OptionError(f"{OPTIONS_ENV} holds no JSON object: start the trainer with `diag run`")
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(values) - known):
            known_names = ", ".join(sorted(known))
            raise OptionError(f"{OPTIONS_ENV} has unknown names {', '.join(unknown)}; known: {known_names}")
        for name in ("inject", "settings"):
            values[name] = tuple(values.get(name, ()))
        return cls(**values)
