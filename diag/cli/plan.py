"""``diag plan``: what a training needs before it is booked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from diag.collectors.layout import MOST_RANKS
from diag.errors import DiagError, ExitCode
from diag.words.terminal import put, say

# -- plan lint ---------------------------------------------------------------------------------------------------------
#
# ``diag plan CONFIG...``: what is wrong in configurations of training.

_SUFFIXES = (".yaml", ".yml", ".toml", ".json")


def is_configuration(text: str) -> bool:
    """Whether the argument of ``diag plan`` is a configuration of training, present or not, and not a model: no preset,
    number of parameters, folder, or config.json of one."""
    from diag.linting.document import read
    from diag.linting.lint import is_model, recognise
    from diag.planning.shape import PRESETS, parameters_of

    path = Path(text)
    if text.lower() in PRESETS or parameters_of(text) is not None or not text or "\0" in text:
        return False
    named = path.suffix.lower() in _SUFFIXES and path.name != "config.json"
    try:
        if not path.is_file():
            return named and not path.is_dir()
        document = read(path)
        if is_model(document.values):
            return False
        recognise(document)
    except DiagError:  # what is broken in it is for its own reader to say
        return named
    except OSError:
        return False
    return True


def lint_command(paths: Sequence[Path], gpus: int | None, per_host: int, as_json: bool) -> ExitCode:
    """Prints the linter's report; GATE_EXCEEDED where there are errors."""

    from diag.linting.lint import lint
    from diag.linting.model import Severity
    from diag.show.lint import print_lint, to_json

    files = lint(paths, gpus, per_host)
    if as_json:
        put(to_json(files) + "\n")
    else:
        print_lint(files)
    errors = any(notice.severity is Severity.ERROR for linted in files for notice in linted.notices)
    return ExitCode.GATE_EXCEEDED if errors else ExitCode.OK


_MODEL, _CLUSTER = "Model and recipe", "Cluster"


def plan(
    asked: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL | CONFIG...",
            help="A number of parameters (7B), a preset (llama-3-8b), or a model's config.json; or configurations of "
            "DeepSpeed, Accelerate, Hugging Face's Trainer or torchtitan, to be checked.",
        ),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(help="How many; else 8.", min=1, max=MOST_RANKS, rich_help_panel=_CLUSTER)
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="Their type: H100, A100-80, ...", rich_help_panel=_CLUSTER)] = None,
    per_host: Annotated[int, typer.Option(help="GPUs of a host.", min=1, max=MOST_RANKS, rich_help_panel=_CLUSTER)] = 8,
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
        typer.Option(metavar="dp=8,tp=4,...", help="Axes that make up the GPUs.", rich_help_panel=_CLUSTER),
    ] = None,
    peak: Annotated[
        float | None, typer.Option(metavar="TFLOP/s", help="Of a GPU, dense.", rich_help_panel=_CLUSTER)
    ] = None,
    mfu: Annotated[
        float | None,
        typer.Option(help="Part of the peak that computation alone reaches; else 0.4.", rich_help_panel=_CLUSTER),
    ] = None,
    latency_within: Annotated[
        float | None, typer.Option(metavar="us", help="Of a hop within a host.", rich_help_panel=_CLUSTER)
    ] = None,
    latency_across: Annotated[
        float | None, typer.Option(metavar="us", help="Of a hop between hosts.", rich_help_panel=_CLUSTER)
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
    schedule: Annotated[
        str, typer.Option(help="Of pipeline stages: gpipe, 1f1b or interleaved.", rich_help_panel=_MODEL)
    ] = "1f1b",
    virtual_stages: Annotated[
        int, typer.Option(help="Parts of the model on each rank, for interleaved.", min=1, rich_help_panel=_MODEL)
    ] = 2,
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
    measured: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Put the peaks that a run recorded beside the estimate for it. Needs no MODEL.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
) -> None:
    """Say what fits, what it sends, and which strategy to use, by formulas that the report names.

    Of configurations: say what is wrong in them; exit code 3 where something is.
    """

    if measured is not None:
        if asked:
            raise DiagError("--measured takes the model from the run", hint=f"leave out {' '.join(asked)}")
        _measured(measured, as_json)
        return
    if not asked:
        raise DiagError("no MODEL", hint="give a number of parameters (7B), a preset, a config.json; or --measured RUN")
    model, *others = asked
    if others or is_configuration(model):
        raise typer.Exit(int(lint_command([Path(path) for path in asked], gpus, per_host, as_json)))
    gpus = 8 if gpus is None else gpus

    from diag.planning.plan import plan_for
    from diag.planning.recipe import RECIPES
    from diag.show.plan import print_plan, to_json

    if recipe == "list":
        say("\n".join(f"  {name:22} {own.about}" for name, own in RECIPES.items()))
        raise typer.Exit
    found = plan_for(
        model,
        gpus,
        gpu,
        per_host=per_host,
        memory_gb=memory,
        within_gb_s=within,
        across_gb_s=across,
        topology=topology,
        peak_tflop_s=peak,
        mfu=mfu,
        latency_within_us=latency_within,
        latency_across_us=latency_across,
        recipe=recipe,
        wrap=wrap,
        batch_size=batch_size,
        seq_len=seq_len,
        micro_batches=micro_batches,
        schedule=schedule,
        virtual_stages=virtual_stages,
        checkpointing=checkpointing,
        outside_gb=outside,
    )
    axes = found.topology if topology is not None else None
    if as_json:
        put(to_json(found, axes) + "\n")
    else:
        print_plan(found, axes)


def _measured(run: Path, as_json: bool) -> None:
    from diag.planning.measured import measured
    from diag.rundir.run import open_paths
    from diag.show.plan import measured_to_json, print_measured

    found = measured(open_paths([run]))
    if as_json:
        put(measured_to_json(found, str(run)) + "\n")
    else:
        print_measured(found, str(run))
