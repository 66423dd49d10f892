"""A plan as text and as JSON."""

from __future__ import annotations

import json
from typing import Any

from msgspec import to_builtins
from rich.console import Console
from rich.text import Text

from diag.collectors.layout import SCHEMA_VERSION
from diag.plan.plan import USABLE, Plan, Row
from diag.plan.recipe import PUBLISHED
from diag.plan.topology import Topology
from diag.words.cells import print_columns, report_console
from diag.words.formatting import counted, number, share, size, spaced

from .plan_times import print_likely, print_times


def to_json(plan: Plan, topology: Topology | None) -> str:
    """The document: bytes, seconds and names; what is not known is null."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "plan": {
            "model": {"name": plan.size.name, "parameters": plan.size.parameters},
            "recipe": {**to_builtins(plan.recipe), "total": plan.recipe.total},
            "cluster": to_builtins(plan.cluster),
            "topology": topology.axes if topology else None,
            "batch": to_builtins(plan.batch),
            "activations": _activations(plan),
            "outside_states": plan.outside,
            "usable_share": USABLE,
            "fewest_gpus": {"bound": plan.bound, "estimate": plan.estimate},
            "strategies": [_row(row) for row in plan.rows],
            "recommended": plan.chosen.name if plan.chosen else None,
            "reasons": list(plan.reasons),
            "assumed": to_builtins(plan.speed) if plan.speed else None,
            "likely_peak": to_builtins(plan.likely) if plan.likely else None,
        },
    }
    return json.dumps(document, indent=1)


def _activations(plan: Plan) -> dict[str, int] | None:
    found = plan.activations
    return {**to_builtins(found), "total": found.total, "peak": found.peak} if found is not None else None


def _row(row: Row) -> dict[str, Any]:
    return {
        "name": row.need.strategy.name,
        "about": row.need.strategy.about,
        "shards": row.need.shards,
        "states": {**to_builtins(row.need.states), "total": row.need.states.total},
        "gathered": row.need.gathered,
        "buffers": row.need.buffers,
        "peak": row.peak,
        "fits": row.fits,
        "traffic": {**to_builtins(row.traffic), "total": row.traffic.total},
        "outside": row.outside,
        "stage": row.stage,
        "axes": [{**to_builtins(axis), "seconds": axis.seconds} for axis in row.axes],
        "expected": to_builtins(row.expected) if row.expected else None,
    }


def print_plan(plan: Plan, topology: Topology | None, console: Console | None = None) -> None:
    """The recommendation first, then the table it rests on, then what the numbers leave out."""
    console = report_console(console)
    cluster, recipe = plan.cluster, plan.recipe
    if plan.chosen is not None:
        answer = Text(f"Use {plan.chosen.name} ({plan.chosen.about})", "bold green")
    else:
        answer = Text("None of these fits", "bold yellow")
    console.print(answer + Text(spaced(f": {'; '.join(plan.reasons)}.")))
    device = f"{cluster.gpu} of {size(cluster.memory)}" if cluster.gpu else f"GPU of {size(cluster.memory)}"
    named = f"{plan.size.name}, " if plan.size.shape is not None else ""
    _line(
        console,
        f"{named}{plan.size.parameters:,} parameters on {cluster.gpus} x {device}, {cluster.per_host} a host"
        + (f"; {topology}." if topology else "."),
    )
    parts = f"{recipe.parameters} + {recipe.gradients} + {recipe.master} + {recipe.moments} = {recipe.total} bytes"
    _line(console, f"Recipe {recipe.name}: {parts} a parameter (parameters, gradients, fp32 copy, moments).")
    console.print()
    columns: dict[str, list[str]] = {
        "strategy": [row.need.strategy.name for row in plan.rows],
        "states GB": [_gb(row.need.states.total) for row in plan.rows],
        "parameters": [_gb(row.need.states.parameters) for row in plan.rows],
        "gradients": [_gb(row.need.states.gradients) for row in plan.rows],
        "optimizer": [_gb(row.need.states.optimizer) for row in plan.rows],
        "gathered": [_gb(row.need.gathered + row.need.buffers) for row in plan.rows],
        "outside": [_gb(row.outside) for row in plan.rows],
        "peak GB": [_gb(row.peak) for row in plan.rows],
        "fits": ["yes" if row.fits else "no" for row in plan.rows],
        "sent GB": [_gb(row.sent) for row in plan.rows],
        "s a step": [number(row.seconds) for row in plan.rows],
    }
    print_columns(console, columns, left=("strategy",), more=0)
    console.print()
    print_times(plan, console)
    _line(console, f"GB of each GPU at its peak, {share(USABLE)} of which may be used; 1 GB is 10^9 bytes.")
    _line(console, "Sent: by each GPU in a step, and the time the links need for it if nothing hides it.")
    if plan.bound is not None:
        _line(console, f"Bound: below {counted(plan.bound, 'GPU')} the states cannot be held, however they are cut.")
    if plan.estimate is not None:
        _line(console, f"Estimate: ZeRO-3 fits from {counted(plan.estimate, 'GPU')} on.")
    if plan.activations is not None:
        kept = plan.activations
        _line(
            console,
            f"Activations by formula: {size(kept.peak)} for {counted(plan.batch.tokens, 'token')} a micro-batch "
            f"(blocks {size(kept.blocks)}, recomputed at once {size(kept.working)}, logits {size(kept.logits)}, "
            f"their gradients {size(kept.loss)}), "
            f"checkpointing {plan.batch.checkpointing}.",
        )
        print_likely(plan, console)
    elif not plan.outside:
        _line(console, "Of this model only the number of parameters is known, so activations are not counted.")
    _line(console, "Tables that count otherwise, not to be mixed with this one:")
    for one in PUBLISHED:
        if one.each != recipe.each:
            so = f"{one.each.parameters} + {one.each.gradients} + {one.each.optimizer} = {one.each.total} bytes"
            _line(console, f"  {so}: {one.where}; {one.says}.")


def _gb(count: int) -> str:
    return f"{count / 1e9:,.2f}"


def _line(console: Console, text: str) -> None:
    console.print(Text(spaced(text)))
