"""What a run trained, as the planner counts it: from the manifest that the bundled trainer wrote."""

from __future__ import annotations

from typing import Any

from diag.collectors.records import Manifest
from diag.model.states import Sharding, sharding_of, shards_of
from diag.plan.decoder_ops import Kernels
from diag.plan.flat_units import FlatUnits
from diag.plan.recipe import RECIPES
from diag.plan.shape import Shape
from diag.plan.step_memory import LINEAR_AND_HEAD, Step

# Strategies whose step is walked through, as the manifest names them.
_WALKED = ("ddp", "zero1", "fsdp2", "hsdp", "fsdp1", "fsdp1-no_shard")
_NUMBERS = ("layers", "dim", "heads", "kv_heads", "ffn_dim", "vocab", "seq_len", "batch_size")


def step_of_run(manifest: Manifest | None, on_device: bool) -> Step | str:
    """The step, or the reason why it is not known."""
    if manifest is None:
        return "no manifest says what was trained"
    model, trainer = manifest.model, manifest.trainer
    numbers = {name: _number(model, name) for name in _NUMBERS}
    missing = [name for name, value in numbers.items() if value is None]
    if missing or not trainer:
        return f"the manifest does not say the model's {', '.join(missing)}" if missing else _FOREIGN
    strategy = (manifest.strategy or "").lower()
    sharding = sharding_of(strategy)
    ranks = manifest.world_size
    if strategy not in _WALKED or sharding is None or not ranks:
        return f"a step of {manifest.strategy or 'an unknown strategy'} is not modelled: {', '.join(_WALKED)} are"
    setup = trainer["setup"] if isinstance(trainer.get("setup"), dict) else {}
    if setup.get("comm_hook", "none") != "none" or setup.get("find_unused_parameters", "no") != "no":
        return "what DDP's communication hooks and its search for unused parameters allocate is not modelled"
    if any(manifest.mesh.get(axis, 1) > 1 for axis in ("tp", "pp", "cp")):
        return "the run cut the model over an axis other than data parallelism"
    if trainer.get("checkpoint_policy", "full") != "full" or trainer.get("compile"):
        return "what selective recomputation or a compiled block keeps is not modelled"
    if "offload=yes" in trainer.get("settings", ()):
        return "a step whose states are offloaded is not modelled"
    shards = (shards_of(manifest.mesh, ranks) or ranks) if sharding != Sharding.NONE else 1
    shape = shape_of_run(model, {name: value or 0 for name, value in numbers.items()})
    precision = str(trainer.get("precision", "fp32"))
    return Step(
        shape=shape,
        recipe=RECIPES["fp32" if precision == "fp32" else "fsdp-mixed"],
        sharding=sharding,
        shards=shards,
        sequences=numbers["batch_size"] or 1,
        length=numbers["seq_len"] or 1,
        micro_batches=_number(trainer, "micro_batches") or 1,
        wrap=_wrap(strategy, str(trainer.get("wrap", "block"))),
        kept=_kept(str(trainer.get("reshard_after_forward", "yes"))),
        ahead=_number(trainer, "prefetch") or 0,
        recompute=bool(trainer.get("activation_checkpointing", False)),
        gloo=not on_device,
        kernels=Kernels() if on_device else ON_CPU,
        reduce_each=trainer.get("grad_sync") == "every",
        bucket_views=setup.get("gradient_as_bucket_view", "yes") == "yes",
        keeps_logits=False,
        flat=_flat(setup) if strategy.startswith("fsdp1") else None,
    )


_FOREIGN = "it is no run of the bundled trainer: which optimizer, types and units it used is not recorded"
# torch 2.13: RMSNorm is composed, AdamW takes one parameter at a time. Attention is flash attention there, too, also
# where queries share keys.
ON_CPU = Kernels(fused_norms=False, foreach=False)


def shape_of_run(model: dict[str, Any], numbers: dict[str, int]) -> Shape:
    heads = numbers["heads"]
    return Shape(
        name=str(model.get("preset", "model")),
        layers=numbers["layers"],
        hidden=numbers["dim"],
        heads=heads,
        kv_heads=numbers["kv_heads"],
        head_size=numbers["dim"] // heads,
        ffn=numbers["ffn_dim"],
        vocab=numbers["vocab"],
        tied=bool(model.get("tied", False)),
    )


def _number(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _wrap(strategy: str, wrap: str) -> str:
    return LINEAR_AND_HEAD if wrap == "linear" and strategy.startswith("fsdp1") else wrap


def _flat(setup: dict[str, Any]) -> FlatUnits:
    return FlatUnits(
        keeps=setup.get("sharding") == "shard_grad_op",
        backward_prefetch=str(setup.get("backward_prefetch", "pre")),
        forward_prefetch=setup.get("forward_prefetch") == "yes",
        padded=setup.get("use_orig_params", "yes") == "yes",
    )


def _kept(reshard: str) -> float:
    """Of a unit's parameters, after forward."""
    if reshard == "no":
        return 1.0
    return 1 / int(reshard) if reshard.isdecimal() and int(reshard) else 0.0
