"""The bundled trainer's options, and the shapes of its models. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..reading import is_of_kind
from .keys import Knobs, OptionError, listed, option
from .strategies import STRATEGIES, knobs_of
from .strategies.base import Axes

OPTIONS_ENV = "DIAG_TRAINER_OPTIONS"

# 256 bytes and the document separator, rounded up to a multiple of 8 so that the tables split evenly over the ranks.
BYTE_VOCAB = 264


@dataclass(frozen=True)
class ModelShape:
    """The shape of a decoder. ``seq_len`` is in tokens, ``batch_size`` in sequences of one rank and micro-batch.

    ``deferred``: too large to be built whole on every rank, so parameters are created on the rank that keeps them.
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
    """The weights that each token is multiplied with: all linear layers and the output projection, without embedding
    table and norms."""
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


SCHEDULES = ("gpipe", "1f1b", "interleaved")
TRAINING, SHARDING, LOADER, CHECKPOINTS = "Training", "Sharding", "Data loader", "Checkpoints"
LAUNCH, FAULT, COLLECT = "Launch", "Faults", "Collectors"


@dataclass(frozen=True)
class TrainerOptions:
    """The trainer's options. ``batch_size`` and ``seq_len`` None: the preset's."""

    strategy: str = option("fsdp2", TRAINING, f"Data parallelism: {listed(STRATEGIES)}.", choices=tuple(STRATEGIES))
    settings: tuple[str, ...] = option(
        (),
        TRAINING,
        "A setting of the strategy; repeatable. `--set list` prints all of them.",
        "--set",
        metavar="KEY=VALUE",
    )
    tensor_parallel: int = option(
        1, TRAINING, "Tensor parallelism: ranks that share each weight matrix.", "--tp", least=1
    )
    pipeline_parallel: int = option(
        1, TRAINING, "Pipeline parallelism: ranks that the model's blocks are spread over.", "--pp", least=1
    )
    pipeline_schedule: str = option("1f1b", TRAINING, f"Schedule of --pp: {listed(SCHEDULES)}.", choices=SCHEDULES)
    stages_per_rank: int = option(1, TRAINING, "Pipeline stages on each rank, for the interleaved schedule.", least=1)
    preset: str = option("tiny", TRAINING, f"Model size: {listed(PRESETS)}.", choices=tuple(PRESETS))
    steps: int = option(20, TRAINING, "Optimizer steps, including those before a resumed checkpoint.", least=1)
    batch_size: int | None = option(
        None, TRAINING, "Sequences per rank and micro-batch; by default the preset's.", least=1
    )
    seq_len: int | None = option(None, TRAINING, "Tokens per sequence; by default the preset's.", least=1)
    micro_batches: int = option(1, TRAINING, "Micro-batches per step (gradient accumulation).", least=1)
    grad_sync: str = option(
        "last", TRAINING, "Reduce gradients on the last micro-batch or on every one.", choices=("last", "every")
    )
    precision: str = option("fp32", TRAINING, "Precision of compute: fp32 or bf16.", choices=("fp32", "bf16"))
    reduce_dtype: str = option(
        "fp32", TRAINING, "Type in which bf16 training reduces gradients: fp32 or bf16.", choices=("fp32", "bf16")
    )
    activation_checkpointing: bool = option(False, TRAINING, "Recompute each block's activations in backward.")
    checkpoint_policy: str = option(
        "full",
        TRAINING,
        "Recompute all of a block (full), or all but matrix products and attention (selective).",
        choices=("full", "selective"),
    )
    compile: bool = option(False, TRAINING, "Compile the model with torch.compile, block by block.")
    warmup_steps: int = option(0, TRAINING, "Steps over which the learning rate rises.", least=0)
    seed: int = option(0, TRAINING, "Seed of the weights and of the order of the data.", least=0)
    data: str | None = option(
        None, TRAINING, "A text file or a folder of them; by default Python's own sources.", path=True
    )
    wrap: str = option("block", SHARDING, "FSDP unit: block, root (the whole model), linear, or a number of blocks.")
    prefetch: int = option(0, SHARDING, "FSDP units to prefetch; 0: PyTorch decides.", least=0)
    reshard_after_forward: str = option("yes", SHARDING, "yes, no, or the number of ranks to reshard to.")
    num_workers: int = option(1, LOADER, "Loader processes per rank; 0: the training process loads.", least=0)
    prefetch_factor: int = option(2, LOADER, "Batches that each loader process prefetches.", least=1)
    pin_memory: bool = option(False, LOADER, "Keep batches in page-locked memory; for accelerators.")
    checkpoint_every: int = option(0, CHECKPOINTS, "Save every N steps; 0: never.", least=0)
    checkpoint_dir: str | None = option(
        None, CHECKPOINTS, "Where to save, on storage that all nodes share; by default RUN/checkpoints.", path=True
    )
    keep_checkpoints: int = option(3, CHECKPOINTS, "Number of the newest checkpoints to keep.", "--keep", least=1)
    checkpoint_async: bool = option(
        True,
        CHECKPOINTS,
        "Write in the background, or stop the training until all is written.",
        "--checkpoint-async/--checkpoint-sync",
    )
    resume: str | None = option(
        None,
        CHECKPOINTS,
        "Continue from a checkpoint, or from the last complete one of a folder or of an earlier run.",
        path=True,
    )
    timeout_s: float = option(300, LAUNCH, "Timeout of a collective, in seconds.", "--timeout", least=1)
    inject: tuple[str, ...] = option(
        (), FAULT, "Plant a fault; repeatable. `--inject list` prints all of them.", metavar="NAME:KEY=VALUE,..."
    )
    learning_rate: float = option(3e-4, "", least=0)
    max_grad_norm: float = option(1.0, "", least=0)  # 0: do not clip

    def shape(self) -> ModelShape:
        """The model's shape, with the batch size and sequence length of the options."""
        preset = PRESETS[self.preset]
        values = asdict(preset)
        values["batch_size"] = preset.batch_size if self.batch_size is None else self.batch_size
        values["seq_len"] = preset.seq_len if self.seq_len is None else self.seq_len
        return ModelShape(**values)

    def blocks_per_unit(self) -> int | None:
        """Blocks in one FSDP unit; None if units do not consist of whole blocks."""
        if self.wrap == "block":
            return 1
        return int(self.wrap) if self.wrap.isdecimal() else None

    def knobs(self) -> Knobs:
        """The strategy's own settings. KnobError for an unknown setting or value."""
        return knobs_of(self.strategy, self.settings)

    def axes(self, world_size: int) -> Axes:
        """The axes of the ranks. ValueError if they do not divide the world size."""
        return Axes.of(
            world_size,
            stages=self.pipeline_parallel,
            replicas=int(self.knobs().get("replicas", "1")),
            parts=self.tensor_parallel,
        )

    def stages(self) -> int:
        """Number of pipeline stages."""
        return self.pipeline_parallel * self.stages_per_rank

    def to_json(self) -> str:
        """One line for the environment variable DIAG_TRAINER_OPTIONS."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> TrainerOptions:
        """The options that ``to_json`` wrote. Missing names have their defaults; an unknown name is an OptionError."""
        try:
            values: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise OptionError(f"{OPTIONS_ENV} is not JSON ({error}): start the trainer with `diag run`") from error
        if not isinstance(values, dict):
            raise OptionError(f"{OPTIONS_ENV} holds no JSON object: start the trainer with `diag run`")
        names = {f.name for f in fields(cls)}
        if unknown := sorted(set(values) - names):
            known_names = ", ".join(sorted(names))
            raise OptionError(f"{OPTIONS_ENV} has unknown names {', '.join(unknown)}; known: {known_names}")
        for f in fields(cls):
            if f.name in values and not is_of_kind(values[f.name], str(f.type)):
                raise OptionError(f"{OPTIONS_ENV} has a wrong value of {f.name}: start the trainer with `diag run`")
        for name in ("inject", "settings"):
            values[name] = tuple(values.get(name, ()))
        return cls(**values)
