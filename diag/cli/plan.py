"""``diag plan``: what a training needs before it is booked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from diag.cli.recording import with_options
from diag.collectors.layout import MOST_RANKS
from diag.collectors.trainer.keys import option
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
    except DiagError:  # its own reader reports what is broken in it
        return named
    except OSError:
        return False
    return True


def lint_command(paths: Sequence[Path], gpus: int | None, per_host: int | None, as_json: bool) -> ExitCode:
    """Prints the linter's report; GATE_EXCEEDED where there are errors."""

    from diag.linting.lint import lint
    from diag.linting.model import NoticeSeverity
    from diag.planning.policy import PLANNING
    from diag.show.plan import lint_to_json, print_lint

    per_host = per_host or PLANNING.per_host
    files = lint(paths, gpus, per_host)
    if as_json:
        put(lint_to_json(files) + "\n")
    else:
        print_lint(files, gpus=gpus, per_host=per_host)
    errors = any(notice.severity is NoticeSeverity.ERROR for linted in files for notice in linted.notices)
    return ExitCode.GATE_EXCEEDED if errors else ExitCode.OK


_MODEL, _CLUSTER = "Model and recipe", "Cluster"


@dataclass(frozen=True)
class PlanOptions:
    """The options of ``diag plan``, named like the parameters of ``plan_for``."""

    gpus: int | None = option(None, _CLUSTER, "Number of GPUs; by default 8.", least=1, most=MOST_RANKS)
    gpu: str | None = option(None, _CLUSTER, "Type of the GPUs: H100, A100-80, ...")
    per_host: int | None = option(
        None, _CLUSTER, "GPUs that fast links connect, as those of a host; by default 8, of GB200 72.",
        least=1, most=MOST_RANKS,
    )  # fmt: skip
    memory_gb: float | None = option(None, _CLUSTER, "Memory per GPU in GB.", "--memory", metavar="GB")
    within_gb_s: float | None = option(
        None, _CLUSTER, "Bus bandwidth between the GPUs of a host.", "--within", metavar="GB/s"
    )
    across_gb_s: float | None = option(
        None, _CLUSTER, "Bandwidth between hosts, for each GPU.", "--across", metavar="GB/s"
    )
    topology: str | None = option(
        None, _CLUSTER, "Axes of parallelism and their sizes, whose product is --gpus.", metavar="dp=8,tp=4,..."
    )
    peak_tflop_s: float | None = option(
        None, _CLUSTER, "Peak of a GPU for dense matrix products.", "--peak", metavar="TFLOP/s"
    )
    mfu: float | None = option(None, _CLUSTER, "Fraction of the peak that compute alone reaches; by default 0.4.")
    latency_within_us: float | None = option(
        None, _CLUSTER, "Latency of a hop within a host.", "--latency-within", metavar="us"
    )
    latency_across_us: float | None = option(
        None, _CLUSTER, "Latency of a hop between hosts.", "--latency-across", metavar="us"
    )
    recipe: str = option("mixed", _MODEL, "Number types and optimizer; `--recipe list` prints all of them.")
    wrap: str = option("block", _MODEL, "Unit of sharding: block, root, linear, or a number of blocks.")
    batch_size: int = option(1, _MODEL, "Sequences per micro-batch.", least=1)
    seq_len: int = option(4096, _MODEL, "Length of a sequence in tokens.", least=1)
    micro_batches: int = option(1, _MODEL, "Micro-batches per step.", least=1)
    schedule: str = option("1f1b", _MODEL, "Schedule of the pipeline: gpipe, 1f1b or interleaved.")
    virtual_stages: int = option(2, _MODEL, "Pipeline stages on each rank, for the interleaved schedule.", least=1)
    checkpointing: str = option("none", _MODEL, "Activation checkpointing: none, selective or full.")
    outside_gb: float | None = option(
        None,
        _MODEL,
        "Peak memory in addition to the model's states, if known; it replaces the estimate of activations.",
        "--outside",
        metavar="GB",
        least=0,
    )


@with_options(PlanOptions)
def plan(
    asked: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL | CONFIG...",
            help="A number of parameters (7B), a preset (llama-3-8b), or a model's config.json; or configurations of "
            "DeepSpeed, Accelerate, Hugging Face's Trainer, torchtitan, Megatron-LM, NeMo or verl, to be checked.",
        ),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Compare the peaks that a run recorded with the estimate for it. Needs no MODEL.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    tables: Annotated[
        bool, typer.Option("--tables", help="Print the parts of each strategy's memory and step.")
    ] = False,
    assumed: Annotated[bool, typer.Option("--assumed", help="Also print what the numbers assume.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Both --tables and --assumed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
    **values: Any,
) -> None:
    """Estimate memory, communication and step time of a model on a cluster, and recommend a sharding strategy.

    Checks configurations instead where it is given some; exit code 3 where one has errors.
    """
    options = PlanOptions(**values)
    if options.recipe == "list":
        from diag.planning.shape import RECIPES

        say("\n".join(f"  {name:22} {recipe.about}" for name, recipe in RECIPES.items()))
        return
    if measured is not None:
        if asked:
            raise DiagError("--measured takes the model from the run", hint=f"leave out {' '.join(asked)}")
        _measured(measured, as_json)
        return
    if not asked:
        raise DiagError("no MODEL", hint="give a number of parameters (7B), a preset, a config.json; or --measured RUN")
    model, *others = asked
    if others or is_configuration(model):
        paths = [Path(path) for path in asked]
        raise typer.Exit(int(lint_command(paths, options.gpus, options.per_host, as_json)))
    _plan(model, options, as_json, tables=tables or verbose, assumed=assumed or verbose)


def _plan(model: str, options: PlanOptions, as_json: bool, *, tables: bool, assumed: bool) -> None:
    from diag.planning.plan import plan_for
    from diag.show.plan import print_plan, to_json

    estimate = plan_for(model, **(asdict(options) | {"gpus": 8 if options.gpus is None else options.gpus}))
    axes = estimate.topology if options.topology is not None else None
    if as_json:
        put(to_json(estimate, axes) + "\n")
    else:
        print_plan(estimate, axes, tables=tables, assumed=assumed)


def _measured(run: Path, as_json: bool) -> None:
    from diag.planning.measured import measured
    from diag.rundir.attempts import attempt_paths
    from diag.rundir.run import open_paths
    from diag.show.plan import measured_to_json, print_measured

    comparison = measured(open_paths(attempt_paths([run])))
    if as_json:
        put(measured_to_json(comparison, str(run)) + "\n")
    else:
        print_measured(comparison, str(run))
