"""``diag plan``: what a training needs before it is booked."""

from __future__ import annotations

from typing import Annotated

import typer

from diag.errors import DiagError

_MODEL, _CLUSTER = "Model and recipe", "Cluster"


def plan(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A number of parameters (7B), a preset (llama-3-8b), or a config.json."),
    ],
    gpus: Annotated[int, typer.Option(help="How many.", min=1, rich_help_panel=_CLUSTER)] = 8,
    gpu: Annotated[str | None, typer.Option(help="Their type: H100, A100-80, ...", rich_help_panel=_CLUSTER)] = None,
    per_host: Annotated[int, typer.Option(help="GPUs of a host.", min=1, rich_help_panel=_CLUSTER)] = 8,
    memory: Annotated[float | None, typer.Option(metavar="GB", help="Of a GPU.", rich_help_panel=_CLUSTER)] = None,
    within: Annotated[
        float | None,
        typer.Option(metavar="GB/s", help="Bus bandwidth between the GPUs of a host.", rich_help_panel=_CLUSTER),
    ] = None,
    across: Annotated[
        float | None, typer.Option(metavar="GB/s", help="Between hosts, for each GPU.", rich_help_panel=_CLUSTER)
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(metavar="dp=8,tp=4,...", help="Check that these axes make up the GPUs.", rich_help_panel=_CLUSTER),
    ] = None,
    recipe: Annotated[
        str, typer.Option(help="Types and optimizer: see --recipe list.", rich_help_panel=_MODEL)
    ] = "mixed",
    wrap: Annotated[
        str, typer.Option(help="Unit of sharding: block, root, linear, or blocks.", rich_help_panel=_MODEL)
    ] = "block",
    batch_size: Annotated[int, typer.Option(help="Sequences of a micro-batch.", min=1, rich_help_panel=_MODEL)] = 1,
    seq_len: Annotated[int, typer.Option(help="Their length in tokens.", min=1, rich_help_panel=_MODEL)] = 4096,
    micro_batches: Annotated[int, typer.Option(help="Of a step.", min=1, rich_help_panel=_MODEL)] = 1,
    checkpointing: Annotated[
        str, typer.Option(help="Of activations: none, selective or full.", rich_help_panel=_MODEL)
    ] = "none",
    outside: Annotated[
        float | None,
        typer.Option(
            metavar="GB",
            help="Peak outside the model's states, if known: counts instead of activations by formula.",
            min=0,
            rich_help_panel=_MODEL,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
) -> None:
    """Say what fits, what it sends, and which strategy to use, by formulas that the report names."""
    from diag.plan.activations import Checkpointing
    from diag.plan.cluster import cluster_of
    from diag.plan.plan import Batch
    from diag.plan.plan import plan as planned
    from diag.plan.recipe import RECIPES
    from diag.plan.shape import size_of
    from diag.plan.topology import check_world, topology_of
    from diag.report.plan import print_plan, to_json

    if recipe not in RECIPES:
        listed = "\n".join(f"  {name:22} {own.about}" for name, own in RECIPES.items())
        if recipe == "list":
            typer.echo(listed)
            raise typer.Exit
        raise DiagError(f"--recipe: there is no {recipe!r}", hint=f"one of\n{listed}")
    if checkpointing not in list(Checkpointing):
        raise DiagError(f"--checkpointing: there is no {checkpointing!r}", hint=f"one of {', '.join(Checkpointing)}")
    if wrap not in ("block", "root", "linear") and not (wrap.isdecimal() and int(wrap)):
        raise DiagError(f"--wrap: there is no unit {wrap!r}", hint="block, root, linear, or a number of blocks")
    axes = topology_of(topology) if topology is not None else None
    if axes is not None:
        check_world(axes, gpus)
    cluster = cluster_of(gpus, gpu, per_host=per_host, memory_gb=memory, within_gb_s=within, across_gb_s=across)
    width = RECIPES[recipe].computed
    batch = Batch(batch_size, seq_len, Checkpointing(checkpointing), micro_batches, width)
    beside = round(outside * 1e9) if outside is not None else None
    found = planned(size_of(model), RECIPES[recipe], cluster, batch, wrap=wrap, outside=beside)
    if as_json:
        typer.echo(to_json(found, axes))
    else:
        print_plan(found, axes)
