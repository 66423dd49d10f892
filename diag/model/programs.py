"""Programs that train with options of their own: Megatron-LM, NeMo 1 and 2, and verl. Their names for what is read and
advised here, in one place.

The keys are those of megatron/training/arguments.py (Megatron-LM, core 0.7 to 0.14), of NeMo 1's
megatron_gpt_config.yaml, of NeMo 2's recipes (nemo/collections/llm/recipes/CONFIGURATION-HIERARCHY.md, as NeMo-Run
writes them into a YAML), and of verl's ppo_trainer.yaml and ppo_megatron_trainer.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

Scalar = int | float | str | bool


class Program(StrEnum):
    MEGATRON = "Megatron-LM"
    NEMO = "NeMo"
    NEMO_2 = "NeMo 2"
    VERL = "verl"


class Concept(StrEnum):
    """What an option is about, whatever a program calls it."""

    TP = "tensor parallelism"
    PP = "pipeline parallelism"
    CP = "context parallelism"
    EP = "expert parallelism"
    VIRTUAL = "pipeline stages on a rank"
    VIRTUAL_LAYERS = "layers of a virtual pipeline stage"
    MICRO_BATCH = "micro-batch"
    GLOBAL_BATCH = "global batch"
    LENGTH = "sequence length"
    LAYERS = "layers"
    HIDDEN = "hidden size"
    FFN = "hidden layer of the MLP"
    HEADS = "attention heads"
    QUERY_GROUPS = "key-value heads"
    VOCABULARY = "vocabulary"
    EXPERTS = "experts"
    EXPERTS_USED = "experts of a token"
    EXPERT_FFN = "hidden layer of an expert"
    HEAD_SIZE = "elements of a head"
    GROUPED = "key-value heads for several query heads"
    GATED = "gated MLP"
    UNTIED = "output projection of its own"
    UNBIASED = "no biases"
    RECOMPUTE = "recomputation"
    SEQUENCE_PARALLEL = "sequence parallelism"
    SHARDED_OPTIMIZER = "sharded optimizer states"
    OVERLAP_REDUCE = "gradients reduced during the backward"
    OVERLAP_GATHER = "parameters gathered during the forward"
    OVERLAP_TP = "tensor-parallel communication overlapped"
    ENGINE = "training engine"
    SHARDS = "ranks that share one copy"
    SP = "Ulysses sequence parallelism"
    OFFLOAD_PARAMETERS = "parameters offloaded"
    OFFLOAD_OPTIMIZER = "optimizer states offloaded"
    GPUS_PER_NODE = "GPUs of a node"
    NODES = "nodes"


_C = Concept
_ACTOR = "actor_rollout_ref.actor"

# Each program's names, the one to write first.
_KEYS: Mapping[Program, Mapping[Concept, tuple[str, ...]]] = {
    Program.MEGATRON: {
        _C.TP: ("--tensor-model-parallel-size",),
        _C.PP: ("--pipeline-model-parallel-size",),
        _C.CP: ("--context-parallel-size",),
        _C.EP: ("--expert-model-parallel-size",),
        _C.VIRTUAL: ("--num-virtual-stages-per-pipeline-rank",),
        _C.VIRTUAL_LAYERS: ("--num-layers-per-virtual-pipeline-stage",),
        _C.MICRO_BATCH: ("--micro-batch-size",),
        _C.GLOBAL_BATCH: ("--global-batch-size",),
        _C.LENGTH: ("--seq-length",),
        _C.LAYERS: ("--num-layers",),
        _C.HIDDEN: ("--hidden-size",),
        _C.FFN: ("--ffn-hidden-size",),
        _C.HEADS: ("--num-attention-heads",),
        _C.QUERY_GROUPS: ("--num-query-groups",),
        _C.VOCABULARY: ("--vocab-size",),
        _C.EXPERTS: ("--num-experts",),
        _C.EXPERTS_USED: ("--moe-router-topk",),
        _C.EXPERT_FFN: ("--moe-ffn-hidden-size",),
        _C.HEAD_SIZE: ("--kv-channels",),
        _C.GROUPED: ("--group-query-attention",),
        _C.GATED: ("--swiglu",),
        _C.UNTIED: ("--untie-embeddings-and-output-weights",),
        _C.UNBIASED: ("--disable-bias-linear",),
        _C.RECOMPUTE: ("--recompute-granularity", "--recompute-activations"),
        _C.SEQUENCE_PARALLEL: ("--sequence-parallel",),
        _C.SHARDED_OPTIMIZER: ("--use-distributed-optimizer",),
        _C.OVERLAP_REDUCE: ("--overlap-grad-reduce",),
        _C.OVERLAP_GATHER: ("--overlap-param-gather",),
        _C.OVERLAP_TP: ("--tp-comm-overlap",),
    },
    Program.NEMO: {
        _C.TP: ("model.tensor_model_parallel_size",),
        _C.PP: ("model.pipeline_model_parallel_size",),
        _C.CP: ("model.context_parallel_size",),
        _C.EP: ("model.expert_model_parallel_size",),
        _C.VIRTUAL: ("model.virtual_pipeline_model_parallel_size",),
        _C.MICRO_BATCH: ("model.micro_batch_size",),
        _C.GLOBAL_BATCH: ("model.global_batch_size",),
        _C.LENGTH: ("model.encoder_seq_length",),
        _C.LAYERS: ("model.num_layers",),
        _C.HIDDEN: ("model.hidden_size",),
        _C.FFN: ("model.ffn_hidden_size",),
        _C.HEADS: ("model.num_attention_heads",),
        _C.QUERY_GROUPS: ("model.num_query_groups",),
        _C.EXPERTS: ("model.num_moe_experts",),
        _C.EXPERTS_USED: ("model.moe_router_topk",),
        _C.RECOMPUTE: ("model.activations_checkpoint_granularity",),
        _C.SEQUENCE_PARALLEL: ("model.sequence_parallel",),
        _C.SHARDED_OPTIMIZER: ("model.optim.name",),
        _C.OVERLAP_REDUCE: ("model.optim.overlap_grad_sync",),
        _C.OVERLAP_GATHER: ("model.optim.overlap_param_sync",),
        _C.OVERLAP_TP: ("model.ub_tp_comm_overlap",),
        _C.GPUS_PER_NODE: ("trainer.devices",),
        _C.NODES: ("trainer.num_nodes",),
    },
    Program.NEMO_2: {
        _C.TP: ("trainer.strategy.tensor_model_parallel_size",),
        _C.PP: ("trainer.strategy.pipeline_model_parallel_size",),
        _C.CP: ("trainer.strategy.context_parallel_size",),
        _C.EP: ("trainer.strategy.expert_model_parallel_size",),
        _C.VIRTUAL: ("trainer.strategy.virtual_pipeline_model_parallel_size",),
        _C.MICRO_BATCH: ("data.micro_batch_size",),
        _C.GLOBAL_BATCH: ("data.global_batch_size",),
        _C.LENGTH: ("data.seq_length", "model.config.seq_length"),
        _C.LAYERS: ("model.config.num_layers",),
        _C.HIDDEN: ("model.config.hidden_size",),
        _C.FFN: ("model.config.ffn_hidden_size",),
        _C.HEADS: ("model.config.num_attention_heads",),
        _C.QUERY_GROUPS: ("model.config.num_query_groups",),
        _C.EXPERTS: ("model.config.num_moe_experts",),
        _C.EXPERTS_USED: ("model.config.moe_router_topk",),
        _C.EXPERT_FFN: ("model.config.moe_ffn_hidden_size",),
        _C.HEAD_SIZE: ("model.config.kv_channels",),
        _C.RECOMPUTE: ("model.config.recompute_granularity",),
        _C.SEQUENCE_PARALLEL: ("trainer.strategy.sequence_parallel",),
        _C.SHARDED_OPTIMIZER: (
            "optim.config.use_distributed_optimizer",
            "trainer.strategy.ddp.use_distributed_optimizer",
        ),
        _C.OVERLAP_REDUCE: ("trainer.strategy.ddp.overlap_grad_reduce",),
        _C.OVERLAP_GATHER: ("trainer.strategy.ddp.overlap_param_gather",),
        _C.OVERLAP_TP: ("model.config.tp_comm_overlap",),
        _C.GPUS_PER_NODE: ("trainer.devices",),
        _C.NODES: ("trainer.num_nodes",),
    },
    Program.VERL: {
        _C.ENGINE: (f"{_ACTOR}.strategy",),
        _C.TP: (f"{_ACTOR}.megatron.tensor_model_parallel_size",),
        _C.PP: (f"{_ACTOR}.megatron.pipeline_model_parallel_size",),
        _C.CP: (f"{_ACTOR}.megatron.context_parallel_size",),
        _C.EP: (f"{_ACTOR}.megatron.expert_model_parallel_size",),
        _C.VIRTUAL: (f"{_ACTOR}.megatron.virtual_pipeline_model_parallel_size",),
        _C.SP: (f"{_ACTOR}.ulysses_sequence_parallel_size",),
        _C.SHARDS: (f"{_ACTOR}.fsdp_config.fsdp_size",),
        _C.MICRO_BATCH: (f"{_ACTOR}.ppo_micro_batch_size_per_gpu",),
        _C.GLOBAL_BATCH: (f"{_ACTOR}.ppo_mini_batch_size",),  # of prompts, each with several answers
        _C.RECOMPUTE: (
            f"{_ACTOR}.megatron.override_transformer_config.recompute_granularity",
            "actor_rollout_ref.model.enable_gradient_checkpointing",
        ),
        _C.SEQUENCE_PARALLEL: (f"{_ACTOR}.megatron.sequence_parallel",),
        _C.SHARDED_OPTIMIZER: (f"{_ACTOR}.megatron.use_distributed_optimizer",),
        _C.OVERLAP_REDUCE: (f"{_ACTOR}.megatron.override_ddp_config.overlap_grad_reduce",),
        _C.OVERLAP_GATHER: (f"{_ACTOR}.megatron.override_ddp_config.overlap_param_gather",),
        _C.OVERLAP_TP: (f"{_ACTOR}.megatron.override_transformer_config.tp_comm_overlap",),
        _C.OFFLOAD_PARAMETERS: (f"{_ACTOR}.fsdp_config.param_offload", f"{_ACTOR}.megatron.param_offload"),
        _C.OFFLOAD_OPTIMIZER: (f"{_ACTOR}.fsdp_config.optimizer_offload", f"{_ACTOR}.megatron.optimizer_offload"),
        _C.GPUS_PER_NODE: ("trainer.n_gpus_per_node",),
        _C.NODES: ("trainer.nnodes",),
    },
}
# Options that no other program has, of which one must be there: sizes of models and nodes are called so by many.
_PARALLEL = (
    *(_C.TP, _C.PP, _C.CP, _C.EP, _C.VIRTUAL, _C.VIRTUAL_LAYERS),
    *(_C.SHARDED_OPTIMIZER, _C.OVERLAP_REDUCE, _C.OVERLAP_GATHER, _C.OVERLAP_TP),
)
_TELLING: Mapping[Program, frozenset[Concept]] = {
    Program.MEGATRON: frozenset(_PARALLEL),
    Program.NEMO: frozenset(_PARALLEL) - {_C.SHARDED_OPTIMIZER},  # model.optim.name
    Program.NEMO_2: frozenset(_PARALLEL),
    Program.VERL: frozenset(_KEYS[Program.VERL]) - {_C.NODES},
}
# Values that turn an option of the program on, where they are not true and false.
_ON: Mapping[tuple[Program, Concept], str] = {(Program.NEMO, _C.SHARDED_OPTIMIZER): "distributed_fused_adam"}
# What the configuration that a program ships with does not have. Hydra refuses to set that on a command line, unless
# ++ stands before it (hydra.cc, "Basic Override syntax").
_ADDED = frozenset(
    {
        *((Program.NEMO, concept) for concept in (_C.CP, _C.EXPERTS, _C.EXPERTS_USED)),
        *((Program.NEMO, concept) for concept in (_C.OVERLAP_REDUCE, _C.OVERLAP_GATHER)),
        *((Program.VERL, concept) for concept in (_C.OVERLAP_REDUCE, _C.OVERLAP_GATHER, _C.OVERLAP_TP, _C.RECOMPUTE)),
    }
)
_FULL = {"--recompute-activations": "selective", "actor_rollout_ref.model.enable_gradient_checkpointing": "full"}
_AXES = {"tp": _C.TP, "pp": _C.PP, "cp": _C.CP, "ep": _C.EP}
_DEFAULT_ON = {(Program.VERL, _C.SHARDED_OPTIMIZER), (Program.VERL, _C.SEQUENCE_PARALLEL)}


class Settings(Struct, frozen=True):
    """What a command line or a configuration says, with the program's own name of each. A concept without a value is
    not given."""

    program: Program
    values: dict[Concept, Scalar]
    keys: dict[Concept, str] = field(default_factory=dict)

    def whole(self, concept: Concept) -> int | None:
        """A count of one or more; None where it is not given, or is no number (a variable of a script, say)."""
        value = self.values.get(concept)
        text = str(value) if not isinstance(value, bool) else ""
        return int(text) if text.isdecimal() and len(text) < 10 and int(text) > 0 else None

    def on(self, concept: Concept) -> bool:
        value = self.values.get(concept, (self.program, concept) in _DEFAULT_ON)
        on = _ON.get((self.program, concept))
        return value == on if on is not None else str(value).lower() in ("true", "1", "yes")

    def off(self, concept: Concept) -> bool:
        """Whether it is known to be off. A recipe of NeMo 2 sets what a configuration on top of it does not repeat."""
        return not self.on(concept) and (self.program is not Program.NEMO_2 or concept in self.values)

    def size(self, axis: str) -> int:
        """Of an axis (tp, pp, cp, ep), 1 where it is not given."""
        return self.whole(_AXES[axis]) or 1

    @property
    def recompute(self) -> str:
        """ "none", "selective" or "full"."""
        value = self.values.get(Concept.RECOMPUTE)
        if value is None or str(value).lower() in ("false", "none", "null", ""):
            return "none"
        by_flag = _FULL.get(self.keys.get(Concept.RECOMPUTE, ""))
        return by_flag or ("full" if str(value) in ("full", "uniform", "block") else "selective")

    @property
    def by_megatron(self) -> bool:
        """Whether Megatron's engine trains: verl has FSDP as well."""
        return self.program is not Program.VERL or self.values.get(Concept.ENGINE) == "megatron"

    def gpus(self, given: int | None, per_host: int) -> tuple[int | None, int]:
        """The GPUs of the job and of a host: as given, else as the configuration says; None where neither does."""
        each, nodes = self.whole(Concept.GPUS_PER_NODE), self.whole(Concept.NODES)
        return (each * nodes, each) if given is None and each is not None and nodes is not None else (given, per_host)

    @property
    def model_parallel(self) -> int:
        """Ranks that share one copy of the model."""
        return self.size("tp") * self.size("pp") * self.size("cp")

    def data_parallel(self, gpus: int | None) -> int | None:
        """None where the number of GPUs is unknown, or the axes do not divide it."""
        return None if gpus is None or gpus % self.model_parallel else gpus // self.model_parallel

    def micro_batches(self, gpus: int | None) -> int | None:
        """Of a step and a rank; None where they are unknown, or the batch is not divisible."""
        whole, micro, data = self.whole(Concept.GLOBAL_BATCH), self.whole(Concept.MICRO_BATCH), self.data_parallel(gpus)
        if whole is None or micro is None or data is None or whole % (micro * data):
            return None
        return whole // (micro * data) if self.program is not Program.VERL else None

    def told(self) -> list[str]:
        """What is set, a line each, with the program's own name."""
        return [f"{concept}: {value} ({self.keys[concept]})" for concept, value in self.values.items()]

    def key(self, concept: Concept) -> str:
        """The program's own name: as given, else the one to write."""
        return self.keys.get(concept) or name_of(self.program, concept)


def name_of(program: Program, concept: Concept) -> str:
    """The program's own name; "" where it has none."""
    return _KEYS[program].get(concept, ("",))[0]


def written(program: Program, concept: Concept, value: Scalar = True, *, in_a_file: bool = False) -> str:
    """The option as it is written on a command line: ``--overlap-grad-reduce``, ``model.micro_batch_size=2``,
    ``++model.context_parallel_size=2``. ``in_a_file``: of a YAML, the path of its key and the value."""
    name = name_of(program, concept)
    if value is True:
        value = _ON.get((program, concept), True)
    if program is Program.MEGATRON:
        return name if value is True else f"{name} {value}"
    added = "++" if (program, concept) in _ADDED and not in_a_file else ""
    return f"{added}{name}={value}"


def settings_of(options: Mapping[str, Any]) -> Settings | None:
    """By the options' own names, which dots join. None where they are of no program that is known."""
    best: Settings | None = None
    for program, names in _KEYS.items():
        values: dict[Concept, Scalar] = {}
        keys: dict[Concept, str] = {}
        for concept, own in names.items():
            for key in own:
                value = options.get(key)
                if isinstance(value, int | float | str) and "${" not in str(value):
                    values[concept], keys[concept] = value, key
                    break
        known = len(values) > 1 and not _TELLING[program].isdisjoint(values)
        if known and (best is None or len(values) > len(best.values)):
            best = Settings(program, values, keys)
    return best


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables as one, with dotted keys, in their order."""
    found: dict[str, Any] = {}
    open_tables = [("", iter(values.items()))]
    while open_tables:
        prefix, items = open_tables[-1]
        for key, value in items:
            if isinstance(value, Mapping):
                open_tables.append((f"{prefix}{key}.", iter(value.items())))
                break
            found[f"{prefix}{key}"] = value
        else:
            open_tables.pop()
    return found


def options_of_command(words: Iterable[str]) -> dict[str, Scalar]:
    """The options in the words of a command: ``--flag``, ``--flag value``, ``--flag=value`` and Hydra's
    ``table.key=value``."""
    found: dict[str, Scalar] = {}
    flag = ""
    for word in words:
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            flag = "" if equals else name
            found[name] = value if equals else True
        elif equals and re.fullmatch(r"\+{0,2}[A-Za-z_][\w.]*", name):
            found[name.lstrip("+")], flag = value, ""
        elif flag:
            found[flag], flag = word, ""
    return found


def settings_of_command(words: Iterable[str]) -> Settings | None:
    return settings_of(options_of_command(words))
