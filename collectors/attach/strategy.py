"""How a training is parallel, told from what is there when it first steps. Names as in ``diag run --strategy``."""

from __future__ import annotations

import sys
from typing import Any


def strategy_of(optimizer: Any, engine: Any, ddp: bool) -> tuple[str, dict[str, int]]:
    """The strategy, "none" without any, and the mesh where one is known."""
    if engine is not None:
        return f"deepspeed-zero{engine.zero_optimization_stage()}", {}
    parameters = [p for group in getattr(optimizer, "param_groups", []) for p in group.get("params", [])]
    mesh = next((found for p in parameters if (found := getattr(p, "device_mesh", None)) is not None), None)
    if mesh is not None:
        fully_sharded = "torch.distributed.fsdp" in sys.modules
        return "fsdp2" if fully_sharded else "tensor-parallel", _sizes(mesh)
    if any(getattr(p, "_fsdp_flattened", False) or type(p).__name__ == "FlatParameter" for p in parameters):
        return "fsdp1", {}
    if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
        return "zero1", {}
    return ("ddp" if ddp else "none"), {}


def _sizes(mesh: Any) -> dict[str, int]:
    names = getattr(mesh, "mesh_dim_names", None) or ()
    return dict(zip(names, map(int, mesh.shape), strict=False))
