"""``diag run``: trains, with the bundled trainer or a training of the user's, and records everything."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diag.collectors.files import replace_file
from diag.collectors.layout import MOST_RANKS, RunLayout
from diag.collectors.settings import CollectorSettings, collecting
from diag.collectors.trainer.strategies import STRATEGIES
from diag.errors import DiagError, ExitCode
from diag.words.terminal import console, flush_or_drop, say

if TYPE_CHECKING:
    from diag.watch.launch import Launch, Outcome

# -- why ---------------------------------------------------------------------------------------------------------------
#
# Why a run that has just ended hung or crashed: the triage of its directory, kept there and printed.


def say_why(layout: RunLayout) -> None:
    """Writes hang.json and prints the verdict on standard error. What the triage cannot read changes no exit code."""
    from diag.hang.api import triage
    from diag.show.triage import print_triage, to_json

    try:
        found = triage([str(layout.root)])
    except DiagError as error:
        say(f"diag: no triage: {error.message}", err=True)
        return
    with suppress(OSError):
        replace_file(layout.hang, to_json(found).encode() + b"\n", private=True)
    say(err=True)
    print_triage(found, console(err=True))
    say(err=True)


# -- ended -------------------------------------------------------------------------------------------------------------
#
# What is said when a training has ended, and its exit code.


def say_end(layout: RunLayout, outcome: Outcome, collect: bool, shown: bool = False) -> int:
    """The exit code of the training, whatever fails here. ``shown``: its own output has been on the terminal."""
    from diag.watch.launch import after_training

    with after_training(_say):
        _say_end(layout, outcome, collect, shown)
    flush_or_drop()
    return outcome.exit_code


def _say_end(layout: RunLayout, outcome: Outcome, collect: bool, shown: bool) -> None:
    from diag.watch.launch import after_training, log_tail

    newest = layout.newest()
    # What a user's training prints on standard output is all that may be there.
    if outcome.exit_code:
        who = f"rank {outcome.failed_rank}: " if outcome.failed_rank is not None else ""
        _say(f"the training ended early: {who}{outcome.reason}")
        if outcome.failed_rank is not None and not shown:
            for line in log_tail(newest, outcome.failed_rank):
                say(f"      {line}", err=True)
        if not outcome.interrupted:
            with after_training(_say):
                say_why(layout)  # of every attempt
        say(f"      what was recorded until then: diag analyze {newest.root}", err=True)
    elif collect:
        say(f"Recorded in {newest.root}. Next: diag analyze {newest.root}", err=shown)


def _say(text: str) -> None:
    say(f"diag: {text}", err=True)


# -- run own -----------------------------------------------------------------------------------------------------------
#
# ``diag run SCRIPT`` and ``diag run -- COMMAND``: a training of the user's, as it is.

# Options of `diag run` that say what to record and when to call it hung; and where and how many, which is a command's
# own affair.
_OF_RECORDING = frozenset(
    {
        "command", "hang_timeout", "out", "collect", "byte_budget_mb",
        "trace", "trace_skip", "auto_traces", "trace_active", "trace_every", "trace_stacks", "trace_memory",
    }
)  # fmt: skip
_OF_LAUNCH = frozenset({"module", "nproc", "nnodes", "node_rank", "rdzv_backend", "rdzv_endpoint", "rdzv_id"})
_HANG_S = 300.0  # without progress, before it is said


def run_own(
    context: typer.Context, command: Sequence[str], launch: Launch, settings: CollectorSettings, out: Path | None
) -> int:
    """The exit code of the training."""
    from diag.watch.launch import environment_of, open_run_directory, run_command, run_script

    module = bool(context.params["module"])
    if not command:
        raise DiagError("-m needs the name of a module", exit_code=ExitCode.USAGE)
    is_script = module or command[0].endswith(".py")
    _refuse(context, _OF_RECORDING | _OF_LAUNCH if is_script else _OF_RECORDING, "script" if is_script else "command")
    if is_script and not module and not Path(command[0]).is_file():
        raise DiagError("there is no such script", path=Path(command[0]), exit_code=ExitCode.USAGE)
    collect = collecting(launch.environment)
    named = context.params["hang_timeout"] is not None
    launch = replace(
        launch,
        nproc=launch.nproc if _given(context, "nproc") else 1,
        hang_timeout_s=(launch.hang_timeout_s if named else _HANG_S) if collect else 0,
        ends_hung=named,  # only who says how long it may take wants it ended
    )
    name = Path(command[0]).stem
    world_size = launch.nproc * launch.nnodes if is_script else None
    layout = open_run_directory(out, launch, sys.argv[1:], name, world_size=world_size)
    launch = replace(launch, environment=environment_of(layout, settings, collect))
    if is_script:
        outcome = run_script(layout, launch, settings, command, module)
    else:
        outcome = run_command(layout, launch, settings, command)
    return say_end(layout, outcome, collect, shown=True)


def _given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _refuse(context: typer.Context, allowed: frozenset[str], what: str) -> None:
    """Options that would say nothing to the training: they describe the bundled one."""
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in allowed and _given(context, name):
            raise DiagError(
                f"{parameter.opts[0]} means nothing to a {what} of yours",
                hint=f"options of the {what} itself go behind its name",
                exit_code=ExitCode.USAGE,
            )


def _one_of(choices: Iterable[str]) -> str:
    *others, last = choices
    return f"{', '.join(others)} or {last}"


_TRAINING = "Training"
_SHARDING = "Sharding"
_LOADER = "Data loader"
_SAVE = "Checkpoints"
_LAUNCH = "Launch"
_COLLECT = "Collectors"
_FAULTS = "Faults"
_SKIP = 10  # steps, so that warm-up is over


def run(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SCRIPT.py|COMMAND] [ARGS]...",
            help="Your own training, unmodified: a script, or after -- the command that starts it.",
            show_default=False,
        ),
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(help=f"Data parallelism: {_one_of(STRATEGIES)}.", rich_help_panel=_TRAINING),
    ] = "fsdp2",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of the strategy's own; repeatable. `--set list` shows them all.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    tp: Annotated[
        int, typer.Option(help="Tensor parallelism: ranks that share each matrix.", min=1, rich_help_panel=_TRAINING)
    ] = 1,
    pp: Annotated[
        int,
        typer.Option(
            help="Pipeline parallelism: ranks that the blocks are dealt to.", min=1, rich_help_panel=_TRAINING
        ),
    ] = 1,
    pipeline_schedule: Annotated[
        str, typer.Option(help="Of --pp: gpipe, 1f1b or interleaved.", rich_help_panel=_TRAINING)
    ] = "1f1b",
    stages_per_rank: Annotated[
        int, typer.Option(help="Of the interleaved schedule.", min=1, rich_help_panel=_TRAINING)
    ] = 1,
    preset: Annotated[
        str, typer.Option(help="Model size: tiny, small, 124m, 1b or 8b.", rich_help_panel=_TRAINING)
    ] = "tiny",
    steps: Annotated[int, typer.Option(help="Optimizer steps.", min=1, rich_help_panel=_TRAINING)] = 20,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Sequences a rank and micro-batch; else the preset's.", rich_help_panel=_TRAINING),
    ] = None,
    seq_len: Annotated[
        int | None, typer.Option(help="Tokens a sequence; else the preset's.", rich_help_panel=_TRAINING)
    ] = None,
    micro_batches: Annotated[
        int, typer.Option(help="Micro-batches a step (gradient accumulation).", rich_help_panel=_TRAINING)
    ] = 1,
    grad_sync: Annotated[
        str,
        typer.Option(help="Reduce gradients on the last micro-batch or on every one.", rich_help_panel=_TRAINING),
    ] = "last",
    precision: Annotated[str, typer.Option(help="fp32 or bf16.", rich_help_panel=_TRAINING)] = "fp32",
    reduce_dtype: Annotated[
        str, typer.Option(help="Of gradients on their way, with bf16: fp32 or bf16.", rich_help_panel=_TRAINING)
    ] = "fp32",
    activation_checkpointing: Annotated[
        bool,
        typer.Option("--activation-checkpointing", help="Recompute each block in backward.", rich_help_panel=_TRAINING),
    ] = False,
    checkpoint_policy: Annotated[
        str,
        typer.Option(
            help="Recompute all of a block (full), or all but products of matrices and attention (selective).",
            rich_help_panel=_TRAINING,
        ),
    ] = "full",
    compile_blocks: Annotated[
        bool, typer.Option("--compile", help="torch.compile, block by block.", rich_help_panel=_TRAINING)
    ] = False,
    warmup_steps: Annotated[
        int, typer.Option(help="Steps over which the learning rate rises.", min=0, rich_help_panel=_TRAINING)
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed of weights and data order.", rich_help_panel=_TRAINING)] = 0,
    data: Annotated[
        Path | None,
        typer.Option(help="A text file or a folder of them; else Python's own sources.", rich_help_panel=_TRAINING),
    ] = None,
    wrap: Annotated[
        str,
        typer.Option(help="FSDP unit: block, root, linear, or N blocks a unit.", rich_help_panel=_SHARDING),
    ] = "block",
    prefetch: Annotated[
        int, typer.Option(help="Units gathered ahead of their use.", min=0, rich_help_panel=_SHARDING)
    ] = 0,
    reshard_after_forward: Annotated[
        str, typer.Option(help="yes, no, or the number of ranks to reshard to.", rich_help_panel=_SHARDING)
    ] = "yes",
    num_workers: Annotated[int, typer.Option(help="Loader processes a rank.", min=0, rich_help_panel=_LOADER)] = 1,
    prefetch_factor: Annotated[
        int, typer.Option(help="Batches that each worker keeps ready.", min=1, rich_help_panel=_LOADER)
    ] = 2,
    pin_memory: Annotated[
        bool, typer.Option("--pin-memory", help="Page-locked batches.", rich_help_panel=_LOADER)
    ] = False,
    checkpoint_every: Annotated[
        int, typer.Option(help="Save after every so many steps; 0: never.", min=0, rich_help_panel=_SAVE)
    ] = 0,
    checkpoint_dir: Annotated[
        Path | None,
        typer.Option(
            help="Where to save, on storage that all nodes share; else RUN/checkpoints.", rich_help_panel=_SAVE
        ),
    ] = None,
    keep: Annotated[int, typer.Option(help="Newest checkpoints that are kept.", min=1, rich_help_panel=_SAVE)] = 3,
    checkpoint_async: Annotated[
        bool,
        typer.Option(
            "--checkpoint-async/--checkpoint-sync",
            help="Write in the background, or stop the training until all is written.",
            rich_help_panel=_SAVE,
        ),
    ] = True,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Go on from a checkpoint, or the last complete one of a folder or of an earlier run.",
            rich_help_panel=_SAVE,
        ),
    ] = None,
    module: Annotated[
        bool,
        typer.Option("--module", "-m", help="SCRIPT is a module, as in python -m.", rich_help_panel=_LAUNCH),
    ] = False,
    nproc: Annotated[
        int,
        typer.Option(
            help="Ranks on this node; of a script of yours 1.", min=1, max=MOST_RANKS, rich_help_panel=_LAUNCH
        ),
    ] = 2,
    nnodes: Annotated[int, typer.Option(help="Nodes.", min=1, max=MOST_RANKS, rich_help_panel=_LAUNCH)] = 1,
    node_rank: Annotated[
        int | None, typer.Option(help="This node, for --rdzv-backend static.", rich_help_panel=_LAUNCH)
    ] = None,
    rdzv_backend: Annotated[str, typer.Option(help="torchrun's rendezvous.", rich_help_panel=_LAUNCH)] = "c10d",
    rdzv_endpoint: Annotated[
        str, typer.Option(help="HOST:PORT of the rendezvous; needed with --nnodes.", rich_help_panel=_LAUNCH)
    ] = "",
    rdzv_id: Annotated[str, typer.Option(help="The job's name, equal on all nodes.", rich_help_panel=_LAUNCH)] = "",
    timeout: Annotated[
        float, typer.Option(help="Seconds that a collective may take.", min=1, rich_help_panel=_LAUNCH)
    ] = 300,
    hang_timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds without any progress before the run is ended as hung; else just before --timeout; 0: never.",
            min=0,
            rich_help_panel=_LAUNCH,
        ),
    ] = None,
    inject: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:KEY=VALUE,...",
            help="Plant a fault; repeatable. `--inject list` shows them all.",
            rich_help_panel=_FAULTS,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run directory; else runs/<time>-<strategy>.", rich_help_panel=_COLLECT)
    ] = None,
    trace: Annotated[bool, typer.Option(help="Record a torch.profiler window.", rich_help_panel=_COLLECT)] = True,
    trace_skip: Annotated[
        int | None,
        typer.Option(help="Steps before the first window; else 10, fewer in a short run.", rich_help_panel=_COLLECT),
    ] = None,
    trace_active: Annotated[int, typer.Option(help="Steps a window.", min=1, rich_help_panel=_COLLECT)] = 3,
    trace_every: Annotated[
        int, typer.Option(help="Steps between two windows; 0: one window.", min=0, rich_help_panel=_COLLECT)
    ] = 0,
    trace_stacks: Annotated[
        bool, typer.Option("--trace-stacks", help="Python stacks: costs a few percent.", rich_help_panel=_COLLECT)
    ] = False,
    trace_memory: Annotated[
        bool,
        typer.Option(
            "--trace-memory",
            help="Every allocation of the window: what diag plan --measured needs on a CPU.",
            rich_help_panel=_COLLECT,
        ),
    ] = False,
    auto_traces: Annotated[
        int | None,
        typer.Option(
            help="Windows at most that are recorded because the verdict on the newest steps turns bad; by default 3, "
            "none with --no-trace.",
            min=0,
            show_default=False,
            rich_help_panel=_COLLECT,
        ),
    ] = None,
    collect: Annotated[
        bool, typer.Option(help="--no-collect trains without any collector.", rich_help_panel=_COLLECT)
    ] = True,
    byte_budget_mb: Annotated[
        int, typer.Option(help="The most that one rank may write, in MB.", min=1, rich_help_panel=_COLLECT)
    ] = 1024,
) -> None:
    """Train, collectors attached, and leave a run directory that `diag analyze` reads.

    `diag run [OPTIONS]` trains with the bundled trainer. `diag run --nproc 8 train.py --its args` runs a script of
    yours, as it is, as torchrun would; `diag run -- torchrun ... train.py` (accelerate, deepspeed, python) a command.

    Ends with the training's own exit code, or with 5 if it hung and was ended. Of a run that hung or crashed it says
    which rank is at fault, as `diag triage` does.
    """
    if nnodes > 1 and not (rdzv_endpoint and rdzv_id and out):
        raise DiagError(
            "--nnodes needs --rdzv-endpoint HOST:PORT, --rdzv-id and --out",
            hint="give the same on every node; --out on shared storage collects all ranks in one run",
            exit_code=ExitCode.USAGE,
        )
    from diag.collectors.settings import COLLECT_VARIABLE, CollectorSettings
    from diag.collectors.trainer.checkpoint.folder import find
    from diag.collectors.trainer.faults import FAULTS, FaultError
    from diag.collectors.trainer.keys import OptionError
    from diag.collectors.trainer.options import TrainerOptions
    from diag.collectors.trainer.refusals import validate, validate_backend
    from diag.watch.launch import Launch

    if settings and "list" in settings:
        for kind in STRATEGIES.values():
            say(f"{kind.id}: {kind.about}")
            for key in kind.settings:
                choices = f" ({', '.join(key.choices)})" if key.choices else ""
                say(f"    {key}: {key.help}{choices}")
        raise typer.Exit
    if inject and "list" in inject:
        for fault in FAULTS.values():
            say(f"{fault.usage()}\n    {fault.help}")
            for key in fault.keys:
                say(f"    {key.name}: {key.help}")
        raise typer.Exit
    recorded = CollectorSettings(
        trace=trace,
        trace_skip=trace_skip if trace_skip is not None else _SKIP,
        trace_active=trace_active,
        auto_traces=(3 * trace if auto_traces is None else auto_traces) if collect else 0,
        trace_every=trace_every,
        trace_stacks=trace_stacks,
        trace_memory=trace_memory,
        byte_budget=byte_budget_mb * 1_000_000,
    )
    launch = Launch(
        nproc=nproc,
        nnodes=nnodes,
        node_rank=node_rank,
        rdzv_backend=rdzv_backend,
        rdzv_endpoint=rdzv_endpoint,
        rdzv_id=rdzv_id,
        environment={} if collect else {COLLECT_VARIABLE: "off"},
        hang_timeout_s=(timeout if hang_timeout is None else hang_timeout) if collect else 0,
        say=lambda text: say(f"diag: {text}", err=True),
    )
    if command or module:
        raise typer.Exit(run_own(context, command or [], launch, recorded, out))
    try:
        # Found here once, so that all ranks go on from the same.
        resumed = find(resume.resolve()) if resume is not None else None
        options = TrainerOptions(
            preset=preset,
            strategy=strategy,
            settings=tuple(settings or ()),
            tensor_parallel=tp,
            pipeline_parallel=pp,
            pipeline_schedule=pipeline_schedule,
            stages_per_rank=stages_per_rank,
            wrap=wrap,
            prefetch=prefetch,
            reshard_after_forward=reshard_after_forward,
            micro_batches=micro_batches,
            grad_sync=grad_sync,
            precision=precision,
            reduce_dtype=reduce_dtype,
            checkpoint_policy=checkpoint_policy,
            compile=compile_blocks,
            activation_checkpointing=activation_checkpointing,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            pin_memory=pin_memory,
            steps=steps,
            batch_size=batch_size,
            seq_len=seq_len,
            data=str(data.resolve()) if data else None,
            seed=seed,
            warmup_steps=warmup_steps,
            checkpoint_every=checkpoint_every,
            checkpoint_dir=str(checkpoint_dir.resolve()) if checkpoint_dir else None,
            keep_checkpoints=keep,
            checkpoint_async=checkpoint_async,
            resume=str(resumed.folder) if resumed is not None else None,
            timeout_s=timeout,
            inject=tuple(inject or ()),
        )
        validate(options, world_size=nproc * nnodes)
        from diag.collectors.accelerator import backend_of, device_of_rank  # torch: not before the rest is in order

        validate_backend(options, backend_of(device_of_rank(0, nproc)))
    except (OptionError, FaultError) as error:
        raise DiagError(str(error), exit_code=ExitCode.USAGE) from error
    to_do = steps - (resumed.manifest.steps if resumed is not None else 0)
    if trace_skip is None:
        recorded = replace(recorded, trace_skip=_skip(to_do, trace_active))

    from diag.watch.launch import open_run_directory, run_trainer

    layout = open_run_directory(
        out,
        launch,
        sys.argv[1:],
        options.strategy,
        world_size=nproc * nnodes,
        strategy=options.strategy,
        injected=list(options.inject),
        resumed_from=options.resume or "",
    )
    raise typer.Exit(say_end(layout, run_trainer(layout, launch, options, recorded), collect))


def _skip(steps: int, active: int) -> int:
    """Steps before the window: fewer in a short run, so that some untraced steps follow."""
    return max(1, min(_SKIP, (steps - active) // 2))
