"""The size of a decoder: parameters by component, from its dimensions, a preset's name or a Hugging Face config.json;
and the bytes of training states per parameter."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from diag.collectors.reading import read_regular
from diag.errors import DiagError
from diag.model.states import BytesPerParameter
from diag.planning.policy import PLANNING

_SUFFIX = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


class Latent(Struct, frozen=True):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): queries, and keys with values, go through vectors of
    ``queries`` and ``keys`` elements. Of each head: ``plain`` and ``rotated`` elements of query and key, ``values`` of
    the value. All heads share the rotated part of the key."""

    queries: int
    keys: int
    plain: int
    rotated: int
    values: int

    def weights(self, hidden: int, heads: int) -> int:
        down = hidden * (self.queries + self.keys + self.rotated)
        up = heads * (self.queries * (self.plain + self.rotated) + self.keys * (self.plain + self.values))
        return down + up + heads * self.values * hidden

    @property
    def norms(self) -> int:
        return self.queries + self.keys

    @property
    def kept(self) -> int:
        """Elements of a token that the products and norms of both vectors keep: the norms' inputs and outputs. The
        rotated part of the key stays with the vector that one product makes together with it."""
        return 2 * self.norms + self.rotated


class Shape(Struct, frozen=True):
    """A decoder-only transformer. Each block has ``experts`` MLPs, of which a token uses ``experts_used``, and beside
    them one with a hidden layer of ``shared_ffn`` for all tokens. The blocks of the numbers ``dense`` have a single MLP
    with ``dense_ffn`` instead. ``biases``: linear layers and norms have biases; ``qkv_biases``: only the three
    projections have. ``router_biases``: one number for each expert. ``held``: the experts of a block that a rank holds
    where expert parallelism divides them; 0: all."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    vocab: int
    gated: bool = True  # three matrices in the MLP (SwiGLU, GeGLU), or two
    tied: bool = False  # the output projection shares the token embedding
    biases: bool = False
    qkv_biases: bool = False
    qk_norms: bool = False  # norms of each head's queries and keys
    positions: int = 0  # learned position embeddings
    experts: int = 1
    experts_used: int = 1
    shared_ffn: int = 0
    dense: tuple[int, ...] = ()
    dense_ffn: int = 0
    latent: Latent | None = None
    router_biases: bool = False
    held: int = 0

    @property
    def normed(self) -> int:
        """Elements of a token's queries and keys that have norms of their own."""
        return self.head_size * (self.heads + self.kv_heads) if self.qk_norms else 0

    @property
    def attended(self) -> tuple[int, int, int, int]:
        """Elements of a token that attention keeps: queries, keys, values and its output. The values of latent
        attention stay together with the plain part of the keys: one product makes both."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        if self.latent is None:
            return queries, keys, keys, queries
        values = self.heads * self.latent.values
        return queries, keys, self.heads * self.latent.plain + values, values

    @property
    def attention(self) -> int:
        """Parameters of one block's attention."""
        count = self._attention_weights
        if self.biases or self.qkv_biases:
            count += self.head_size * (self.heads + 2 * self.kv_heads)
        if self.qk_norms:
            count += 2 * self.head_size
        if self.latent is not None:
            count += self.latent.norms
        return count + (self.hidden if self.biases else 0)

    @property
    def expert(self) -> int:
        """Parameters of one MLP."""
        return self._expert_weights + (self.ffn * (2 if self.gated else 1) + self.hidden if self.biases else 0)

    @property
    def mlp(self) -> int:
        """Parameters of the MLPs and the router of a block that has experts, if any has."""
        router = self.experts * (self.hidden + self.router_biases) if self.experts > 1 else 0
        return (self.held or self.experts) * self.expert + self._matrices(self.shared_ffn) + router

    @property
    def of_experts(self) -> int:
        """Parameters of the experts that a rank holds, in all blocks: what expert parallelism divides."""
        if self.experts == 1:
            return 0
        return (
            sum(number not in self.dense for number in range(self.layers)) * (self.held or self.experts) * self.expert
        )

    @property
    def norm(self) -> int:
        return self.hidden * (2 if self.biases else 1)

    @property
    def block(self) -> int:
        """Parameters of the largest block: attention, MLP and the two norms."""
        return max(self.blocks)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Parameters of each block."""
        rest = self.attention + 2 * self.norm
        mlps = (self._matrices(self.dense_ffn) if number in self.dense else self.mlp for number in range(self.layers))
        return tuple(rest + mlp for mlp in mlps)

    def part(self, first: int, layers: int) -> Shape:
        """The same with ``layers`` of its blocks, from the block of number ``first``."""
        dense = tuple(number - first for number in self.dense if first <= number < first + layers)
        return replace(self, layers=layers, dense=dense)

    @property
    def table(self) -> int:
        """Parameters of the token embedding and of learned positions."""
        return (self.vocab + self.positions) * self.hidden

    @property
    def head(self) -> int:
        """Parameters of the output projection; 0 if it is tied to the token embedding."""
        return 0 if self.tied else self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        return self.table + sum(self.blocks) + self.norm + self.head

    @property
    def multiplied(self) -> int:
        """The weights that a token is multiplied with: those of linear layers, of the experts that it uses, and of the
        output projection."""
        mlps = self.layers * self.used_ffn
        return self.layers * self._attention_weights + self._matrices(round(mlps)) + self.vocab * self.hidden

    @property
    def used_ffn(self) -> float:
        """The hidden layers of the MLPs that a token passes through in a block, in the mean over the blocks."""
        with_experts = self.experts_used * self.ffn + self.shared_ffn
        dense = len(self.dense)
        return ((self.layers - dense) * with_experts + dense * self.dense_ffn) / self.layers

    @property
    def largest_ffn(self) -> int:
        """The hidden layer of the largest MLP."""
        return max(self.ffn, self.shared_ffn, self.dense_ffn)

    @property
    def _attention_weights(self) -> int:
        if self.latent is not None:
            return self.latent.weights(self.hidden, self.heads)
        return 2 * self.hidden * self.head_size * (self.heads + self.kv_heads)

    def _matrices(self, ffn: int) -> int:
        return (3 if self.gated else 2) * self.hidden * ffn

    @property
    def _expert_weights(self) -> int:
        return self._matrices(self.ffn)

    def flops_per_token(self, seq_len: int) -> int:
        """FLOPs of forward and backward: 6 per weight, and 12 x layers x width of attention x length. Causality is not
        discounted and recomputation not counted (torchtitan, PaLM)."""
        return 6 * self.multiplied + round(12 * self.layers * self.scored * seq_len)

    @property
    def scored(self) -> float:
        """Elements of all heads that enter the attention's products of two activations, in the mean of both."""
        queries, _, _, output = self.attended
        return (queries + output) / 2


def _llama(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, **fields: Any
) -> Shape:
    return Shape(name, layers, hidden, heads, kv_heads, hidden // heads, ffn, vocab, **fields)


def _qwen3(name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, **fields: Any) -> Shape:
    return Shape(name, layers, hidden, heads, kv_heads, 128, ffn, 151_936, qk_norms=True, **fields)


def _llama4(name: str, experts: int, dense: tuple[int, ...]) -> Shape:
    return _llama(
        name, 48, 5120, 40, 8, 8192, 202_048, experts=experts, experts_used=1, shared_ffn=8192, dense=dense,
        dense_ffn=16_384 if dense else 0,
    )  # fmt: skip


def _gpt2(name: str, layers: int, hidden: int, heads: int) -> Shape:
    return _llama(
        name, layers, hidden, heads, heads, 4 * hidden, 50_257, gated=False, tied=True, biases=True, positions=1024
    )


PRESETS: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        _gpt2("gpt2", 12, 768, 12),
        _gpt2("gpt2-medium", 24, 1024, 16),
        _gpt2("gpt2-large", 36, 1280, 20),
        _gpt2("gpt2-xl", 48, 1600, 25),
        _llama("llama-2-7b", 32, 4096, 32, 32, 11_008, 32_000),
        _llama("llama-2-13b", 40, 5120, 40, 40, 13_824, 32_000),
        _llama("llama-2-70b", 80, 8192, 64, 8, 28_672, 32_000),
        _llama("llama-3-8b", 32, 4096, 32, 8, 14_336, 128_256),
        _llama("llama-3-70b", 80, 8192, 64, 8, 28_672, 128_256),
        _llama("llama-3-405b", 126, 16_384, 128, 8, 53_248, 128_256),
        _llama("mistral-7b", 32, 4096, 32, 8, 14_336, 32_000),
        _llama("mixtral-8x7b", 32, 4096, 32, 8, 14_336, 32_000, experts=8, experts_used=2),
        _llama("qwen2.5-7b", 28, 3584, 28, 4, 18_944, 152_064, qkv_biases=True),
        _llama("qwen2.5-32b", 64, 5120, 40, 8, 27_648, 152_064, qkv_biases=True),
        _llama("qwen2.5-72b", 80, 8192, 64, 8, 29_568, 152_064, qkv_biases=True),
        # Qwen/Qwen3-*/config.json on Hugging Face; the same numbers are in slime's scripts/models/qwen3-*.sh.
        _qwen3("qwen3-8b", 36, 4096, 32, 8, 12_288),
        _qwen3("qwen3-14b", 40, 5120, 40, 8, 17_408),
        _qwen3("qwen3-32b", 64, 5120, 64, 8, 25_600),
        _qwen3("qwen3-30b-a3b", 48, 2048, 32, 4, 768, experts=128, experts_used=8),
        _qwen3("qwen3-235b-a22b", 94, 4096, 64, 4, 1536, experts=128, experts_used=8),
        # deepseek-ai/DeepSeek-V3/config.json, without its module that predicts a second token (14 billion more).
        Shape(
            "deepseek-v3",
            61,
            7168,
            128,
            128,
            192,
            2048,
            129_280,
            experts=256,
            experts_used=8,
            shared_ffn=2048,
            dense=(0, 1, 2),
            dense_ffn=18_432,
            latent=Latent(1536, 512, 128, 64, 128),
            router_biases=True,
        ),
        # The text models of meta-llama/Llama-4-*/config.json; Maverick has experts in every second block.
        _llama4("llama-4-scout", 16, ()),
        _llama4("llama-4-maverick", 128, tuple(range(0, 48, 2))),
    )
}


class Size(Struct, frozen=True):
    """A model, by its number of parameters alone or with its ``shape``. ``rest``: parameters outside of blocks, if it
    is a part of a model; None: table, norm and head."""

    name: str
    parameters: int
    shape: Shape | None = None
    rest: int | None = None


def size_of(model: str) -> Size:
    """A model by a preset's name, by its number of parameters ("7B", "350M", "1.5e9") or by the path of a Hugging Face
    config.json. DiagError for anything else, and for a file with an unknown type of model."""
    preset = PRESETS.get(model.lower())
    if preset is not None:
        return Size(preset.name, preset.parameters, preset)
    number = parameters_of(model)
    if number is not None:
        return Size(model, number)
    path = Path(model)
    if path.is_dir() and (path / "config.json").is_file():
        path /= "config.json"
    if path.is_file():
        shape = read_config(path)
        return Size(shape.name, shape.parameters, shape)
    raise DiagError(
        f"no such model: {model}",
        hint=f"give a number of parameters (7B), a Hugging Face config.json, or one of {', '.join(PRESETS)}",
    )


def parameters_of(text: str) -> int | None:
    """ "7B", "350m", "1.5e9" as a number; None for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d{1,2})?)([kmbt]?)", text.strip().lower().replace("_", ""))
    return round(float(match[1]) * _SUFFIX.get(match[2], 1)) or None if match else None


_GATED = {
    "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma", "smollm3", "phi3", "deepseek_v3",
    "llama4_text",
}  # fmt: skip
_WITH_TEXT = {"llama4": "text_config"}  # of several kinds of input: the table of the text model
# Types whose code, not config.json, gives the projections of queries, keys and values biases.
_QKV_BIASES = {"qwen2"}
# Other names for the same numbers.
_NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_size": ("head_dim",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim"),
    "vocab": ("vocab_size",),
    "positions": ("n_positions",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_used": ("num_experts_per_tok",),
}
# Of one type of model, whose others mean something else by them or do not have them.
_MORE_NAMES = {
    "expert_ffn": ("moe_intermediate_size",),
    "dense_ffn": ("intermediate_size_mlp",),
    "shared": ("n_shared_experts",),
    "first_dense": ("first_k_dense_replace",),
    "experts_every": ("interleave_moe_layer_step", "decoder_sparse_step"),
    "queries": ("q_lora_rank",),
    "keys": ("kv_lora_rank",),
    "plain": ("qk_nope_head_dim",),
    "rotated": ("qk_rope_head_dim",),
    "values": ("v_head_dim",),
}
_KNOWN = ("gpt2", "gpt_neox", *sorted(_GATED | set(_WITH_TEXT)))


def read_config(path: Path) -> Shape:
    """The shape in a Hugging Face config.json. DiagError for any other file, and for an unknown type of model: a wrong
    count would be worse than none."""
    try:
        config = msgspec.json.decode(read_regular(path, PLANNING.most_config_bytes))
    except OSError as error:
        raise DiagError(f"cannot be read: {error.strerror or error}", path=str(path)) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise DiagError(f"not JSON: {error}", path=str(path), hint="give a model's config.json") from error
    kind = config.get("model_type") if isinstance(config, dict) else None
    if isinstance(kind, str) and isinstance(config.get(_WITH_TEXT.get(kind)), dict):
        config = config[_WITH_TEXT[kind]]
        kind = config.get("model_type", f"{kind}_text")
    if kind not in _KNOWN:
        raise DiagError(
            f"model_type {kind!r} is not supported" if kind else "model_type is missing",
            path=str(path),
            hint=f"give its number of parameters instead (7B); known types: {', '.join(_KNOWN)}",
        )
    numbers = {name: _integer(config, keys, path) for name, keys in _NAMES.items()}
    layers, hidden, heads = (_needed(numbers, name, path) for name in ("layers", "hidden", "heads"))
    gated = kind in _GATED
    return _with_experts(kind, config, path, Shape(
        name=path.parent.name or kind,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=numbers["kv_heads"] or heads,
        head_size=numbers["head_size"] or hidden // heads,
        ffn=_needed(numbers, "ffn", path) if gated else numbers["ffn"] or 4 * hidden,
        vocab=_needed(numbers, "vocab", path),
        gated=gated,
        tied=bool(config.get("tie_word_embeddings", kind in ("gpt2", "gemma"))),
        biases=not gated,
        qk_norms=kind in ("qwen3", "qwen3_moe"),
        qkv_biases=kind in _QKV_BIASES or bool(config.get("attention_bias", False)),
        positions=(numbers["positions"] or 1024) if kind == "gpt2" else 0,
        experts=numbers["experts"] or 1,
        experts_used=numbers["experts_used"] or 1,
    ))  # fmt: skip


def _with_experts(kind: str, config: dict[str, Any], path: Path, shape: Shape) -> Shape:
    """The shape with what its type of model says of experts, of the blocks without them, and of latent attention."""
    if kind not in ("qwen3_moe", "deepseek_v3", "llama4_text"):
        return shape
    more = {name: _integer(config, keys, path, least=0) for name, keys in _MORE_NAMES.items()}
    every, first = more["experts_every"] or 1, more["first_dense"] or 0
    only = config.get("mlp_only_layers" if kind == "qwen3_moe" else "moe_layers") or []
    if not isinstance(only, list) or not all(isinstance(number, int) for number in only):
        raise DiagError(f"{only!r} is not a list of layers", path=str(path))
    layers = range(shape.layers)
    dense = tuple(number for number in layers if number < first or (number + 1) % every)
    if kind == "llama4_text":
        if only:  # the layers that have experts
            dense = tuple(number for number in layers if number not in only)
        return replace(shape, shared_ffn=shape.ffn, dense=dense, dense_ffn=(more["dense_ffn"] or 0) if dense else 0)
    expert = _needed(more, "expert_ffn", path, _MORE_NAMES)
    if kind == "qwen3_moe":
        dense = tuple(sorted({*dense, *(number for number in only if number in layers)}))
        return replace(shape, ffn=expert, dense=dense, dense_ffn=shape.ffn if dense else 0)
    if not more["queries"]:
        raise DiagError("q_lora_rank is missing: queries without a latent vector are not supported", path=str(path))
    names = ("queries", "keys", "plain", "rotated", "values")
    latent = Latent(*(_needed(more, name, path, _MORE_NAMES) for name in names))
    return replace(
        shape, ffn=expert, dense=dense, dense_ffn=shape.ffn if dense else 0, shared_ffn=(more["shared"] or 0) * expert,
        latent=latent, head_size=latent.plain + latent.rotated, router_biases=True,
    )  # fmt: skip


def _integer(config: dict[str, Any], keys: tuple[str, ...], path: Path, least: int = 1) -> int | None:
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 10**9:
            raise DiagError(f"{key} is {value!r}, not a valid count", path=str(path))
        return value
    return None


def _needed(numbers: dict[str, int | None], name: str, path: Path, names: dict[str, tuple[str, ...]] = _NAMES) -> int:
    value = numbers[name]
    if value is None:
        raise DiagError(f"{names[name][0]} is missing", path=str(path))
    return value


# -- recipe ------------------------------------------------------------------------------------------------------------
#
# Training states per parameter: bytes of parameters, gradients, fp32 copies and optimizer moments.
#
# Published tables disagree because they count with different recipes; `PUBLISHED` lists what each counts, so that
# numbers from different tables are not compared directly.


class Recipe(Struct, frozen=True):
    """Bytes per parameter without sharding. ``master``: the fp32 copy that the optimizer updates if the parameters have
    a 16-bit type; ``moments``: the optimizer's own states. ``computed``: bytes of a parameter in computation, when it
    is gathered; ``reduced``: bytes of a gradient when it is reduced. ``in_one_buffer``: all gradients lie in one
    buffer, in which they are reduced, and which needs no other."""

    name: str
    about: str
    parameters: int
    gradients: int
    master: int
    moments: int
    computed: int
    reduced: int
    in_one_buffer: bool = False

    @property
    def total(self) -> int:
        return self.each.total

    @property
    def each(self) -> BytesPerParameter:
        return BytesPerParameter(self.parameters, self.gradients, self.master + self.moments)


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("mixed", "16-bit parameters and gradients, fp32 copy, Adam (ZeRO's 2 + 2 + 12)", 2, 2, 4, 8, 2, 2),
        Recipe("fsdp-mixed", "fp32 parameters and gradients, computed in bf16 (FSDP)", 4, 4, 0, 8, 2, 4),
        Recipe("fp32", "all in fp32, Adam", 4, 4, 0, 8, 4, 4),
        # megatron/core/distributed/param_and_grad_buffer.py; its distributed optimizer is ZeRO-1: 6 + 12/d bytes for d
        # data-parallel ranks (docs.nvidia.com/megatron-core, Distributed Optimizer).
        Recipe(
            "mixed-fp32-gradients",
            "16-bit parameters, fp32 gradients and copy, Adam (Megatron)",
            2,
            4,
            4,
            8,
            2,
            4,
            True,
        ),
        Recipe("bf16", "all in bf16, Adam's moments too, no fp32 copy", 2, 2, 0, 4, 2, 2),
        Recipe("mixed-8bit-adam", "as mixed, moments of 8 bits (bitsandbytes)", 2, 2, 4, 2, 2, 2),
        Recipe("mixed-sgd", "as mixed, SGD with momentum", 2, 2, 4, 4, 2, 2),
    )
}


class Published(Struct, frozen=True):
    """The way in which a published table counts."""

    where: str
    each: BytesPerParameter
    says: str


PUBLISHED = (
    Published(
        "the ZeRO paper's figure 1 (arXiv 1910.02054)",
        BytesPerParameter(2, 2, 12),
        "the 12: fp32 copy 4, Adam's moments 8",
    ),
    Published("Megatron-LM", BytesPerParameter(2, 4, 12), "gradients in fp32"),
    Published(
        "Hugging Face's model memory anatomy",
        BytesPerParameter(6, 4, 8),
        "the fp32 copy is among the weights, the 8 are moments",
    ),
    Published(
        "tables with 8 bytes for optimizer and copy",
        BytesPerParameter(2, 2, 8),
        "moments alone: the fp32 copy is not counted",
    ),
)
