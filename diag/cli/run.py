"""``diag run``: trains, with the bundled trainer or a training of the user's, and records everything."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diag.cli.reading import PolicyOption, override_thresholds, set_up_numpy
from diag.cli.recording import NOTIFY_HELP, ON_EVENT_HELP, SKIP, RecordingOptions, with_options
from diag.collectors.layout import MOST_RANKS, RunLayout
from diag.collectors.settings import COLLECT_VARIABLE, CollectorSettings
from diag.collectors.trainer.keys import option, options_of
from diag.collectors.trainer.options import COLLECT, LAUNCH, TrainerOptions
from diag.errors import DiagError, ExitCode
from diag.words.places import in_command
from diag.words.places import shown as name_of
from diag.words.terminal import console, flush_or_drop, report_console, say

if TYPE_CHECKING:
    from diag.collectors.packing import Packing
    from diag.collectors.trainer.checkpoint.folder import Checkpoint
    from diag.watch.launch import Launch, Outcome
    from diag.watch.notify import Notifier

# -- why ---------------------------------------------------------------------------------------------------------------
#
# Why a run that has just ended hung or crashed: the triage of its directory, stored there and printed.


def say_why(layout: RunLayout) -> None:
    """Writes hang.json and prints the verdict on standard error. A triage that fails changes no exit code."""
    from diag.ended.outcome import keep
    from diag.hang.api import triage
    from diag.show.triage import print_triage, to_json

    try:
        answer = triage([str(layout.root)])
    except DiagError as error:
        say(f"diag: no triage: {error.message}", err=True)
        return
    try:
        keep(layout, to_json(answer))
    except OSError as error:
        say(f"diag: the triage could not be stored: {error}", err=True)
    say(err=True)
    print_triage(answer, console(err=True), more=f"diag triage {in_command(str(layout.root))} -v")
    say(err=True)


# -- ended -------------------------------------------------------------------------------------------------------------
#
# What is printed when a training has ended, and its exit code.


def say_end(layout: RunLayout, outcome: Outcome, collect: bool, shown: bool = False, quiet: bool = True) -> int:
    """The exit code of the training, whatever fails here. ``shown``: its own output has been on the terminal;
    ``quiet``: without the verdict."""
    from diag.watch.launch import after_training

    with after_training(_print_message):
        _say_end(layout, outcome, collect, shown)
    if collect and not quiet and not outcome.exit_code:
        with after_training(_print_message):
            _say_verdict(layout.newest(), shown)
    flush_or_drop()
    return outcome.exit_code


def _say_end(layout: RunLayout, outcome: Outcome, collect: bool, shown: bool) -> None:
    from diag.rundir.lines import has_steps
    from diag.watch.launch import after_training, log_tail

    newest = layout.newest()
    # Standard output is left to the user's training.
    if outcome.exit_code:
        rank = f"rank {outcome.failed_rank}: " if outcome.failed_rank is not None else ""
        _print_message(f"the training ended early: {rank}{outcome.reason}")
        if outcome.failed_rank is not None and not shown:
            for line in log_tail(newest, outcome.failed_rank):
                say(f"      {line}", err=True)
        if collect:
            with after_training(_print_message):
                say_why(layout)  # of every attempt
        if has_steps(newest):
            say(f"      what was recorded until then: diag analyze {in_command(str(newest.root))}", err=True)
    elif collect:
        from diag.ended.rundir import needs_triage
        from diag.rundir.pieces import may_be_piece

        with after_training(_print_message):
            if needs_triage(newest):
                _print_message("the training ended with exit code 0, and not every rank reached its end")
                say_why(newest)
        root = str(newest.root)
        say(f"Recorded in {name_of(root)}. Next: diag analyze {in_command(root)}", err=shown)
        if may_be_piece(newest.root):  # with local storage, of one of several nodes
            say(f"Other nodes recorded elsewhere? All at once: diag analyze {in_command(root)} FOLDER ...", err=shown)


def _say_verdict(layout: RunLayout, shown: bool) -> None:
    """Analyses the run and prints its verdict; says so where that would take long. Another node's ranks may be left: of
    several nodes, the one with the first rank prints it."""
    import socket

    from diag.rundir.lines import has_steps, read_identity
    from diag.rundir.runs import record_bytes
    from diag.watch.policy import WATCHING

    ranks = layout.ranks()
    if not has_steps(layout):
        return
    first, _ = read_identity(next(iter(ranks.values())))
    if first is not None and first.host != socket.gethostname():
        return
    if record_bytes(layout.root) > WATCHING.most_bytes_of_verdict:
        return  # the line before names the command
    set_up_numpy()
    from diag.by_size import open_by_size
    from diag.show.answer import print_answer
    from diag.show.json import save

    result = open_by_size(layout.root)
    say(err=shown)
    print_answer(result, report_console(console(err=shown)))
    save(result, None)


def _print_message(text: str) -> None:
    say(f"diag: {text}", err=True)


_HANG_S = 300.0  # without progress, before a training of the user's is reported as hung


@dataclass(frozen=True)
class RunOptions(RecordingOptions, TrainerOptions):
    """The options of ``diag run``: those of the bundled trainer, and those that hold for every training."""

    module: bool = option(False, LAUNCH, "SCRIPT is a module, as in python -m.", "--module/-m")
    nproc: int = option(2, LAUNCH, "Ranks on this node; by default 1 for your own script.", least=1, most=MOST_RANKS)
    nnodes: int = option(1, LAUNCH, "Number of nodes.", least=1, most=MOST_RANKS)
    node_rank: int | None = option(None, LAUNCH, "Number of this node, for --rdzv-backend static.")
    rdzv_backend: str = option("c10d", LAUNCH, "Backend of torchrun's rendezvous.")
    rdzv_endpoint: str = option("", LAUNCH, "HOST:PORT of the rendezvous; needed with --nnodes.")
    rdzv_id: str = option("", LAUNCH, "The job's name, the same on all nodes.")
    hang_timeout: float | None = option(
        None,
        LAUNCH,
        "Seconds without any progress before the run is ended as hung; by default just before --timeout; 0: never.",
        least=0,
    )
    trace_stacks: bool = option(False, COLLECT, "Record Python stacks, which costs a few percent.")
    trace_memory: bool = option(
        False, COLLECT, "Record every allocation of the window, which diag plan --measured needs on a CPU."
    )
    auto_traces: int | None = option(
        None,
        COLLECT,
        "Maximum number of windows recorded because the verdict on the newest steps turns bad; by default 3, none with "
        "--no-trace.",
        least=0,
    )
    notify: tuple[str, ...] = option((), COLLECT, NOTIFY_HELP, metavar="URL|FILE")
    on_event: str = option("", COLLECT, ON_EVENT_HELP, metavar="COMMAND")
    quiet: bool = option(False, COLLECT, "Leave out the verdict at the end, for which the run is analysed.")
    collect: bool = option(True, COLLECT, "--no-collect trains without any collector.", "--collect/--no-collect")

    @classmethod
    def of(cls, parsed: Mapping[str, Any]) -> RunOptions:
        """The options from the values that Typer parsed."""
        values = dict(parsed)
        for field, about in options_of(cls):
            if about.path and values[field.name] is not None:
                values[field.name] = str(values[field.name].resolve())
            elif field.name in values and isinstance(field.default, tuple):
                values[field.name] = tuple(values[field.name] or ())
        return cls(**values)

    def of_trainer(self) -> TrainerOptions:
        return TrainerOptions(**{field.name: getattr(self, field.name) for field in fields(TrainerOptions)})

    def of_collectors(self) -> CollectorSettings:
        return replace(
            super().of_collectors(),
            auto_traces=(3 * self.trace if self.auto_traces is None else self.auto_traces) if self.collect else 0,
            trace_stacks=self.trace_stacks,
            trace_memory=self.trace_memory,
        )

    def _notifier(self) -> Notifier | None:
        from diag.watch.notify import Notifier, addresses, command_of

        urls, command = addresses(self.notify), command_of(self.on_event)
        return Notifier(urls, command, _print_message) if urls or command else None

    def of_launch(self) -> Launch:
        from diag.watch.launch import Launch

        hang_timeout_s = self.timeout_s if self.hang_timeout is None else self.hang_timeout
        return Launch(
            nproc=self.nproc,
            nnodes=self.nnodes,
            node_rank=self.node_rank,
            rdzv_backend=self.rdzv_backend,
            rdzv_endpoint=self.rdzv_endpoint,
            rdzv_id=self.rdzv_id,
            environment={} if self.collect else {COLLECT_VARIABLE: "off"},
            hang_timeout_s=hang_timeout_s if self.collect else 0,
            notifier=self._notifier() if self.collect else None,
            say=lambda text: say(f"diag: {text}", err=True),
        )


# Options that describe the bundled training, and those of torchrun: a command of the user's starts its own ranks.
_OF_TRAINER = frozenset(field.name for field in fields(TrainerOptions))
_OF_TORCHRUN = frozenset(key.name for key, about in options_of(RunOptions) if about.panel == LAUNCH) - {"hang_timeout"}


@with_options(RunOptions)
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
    policy: PolicyOption = None,
    **values: Any,
) -> None:
    """Train with collectors attached, and leave a run directory that `diag analyze` reads.

    `diag run [OPTIONS]` trains with the bundled trainer. `diag run --nproc 8 train.py --its args` runs your own script,
    unmodified, as torchrun would; `diag run -- torchrun ... train.py` runs a command (accelerate, deepspeed, python).

    The exit code is the training's own, or 5 if the training hung and was ended. It ends with the verdict, as
    `diag analyze` gives it, or after a hang or a crash with the rank that is at fault, as `diag triage` gives it.
    """
    override_thresholds(policy)
    options = RunOptions.of(values)
    if options.nnodes > 1 and not (options.rdzv_endpoint and options.rdzv_id and options.out):
        raise DiagError(
            "--nnodes needs --rdzv-endpoint HOST:PORT, --rdzv-id and --out",
            hint="give the same on every node; --out on shared storage collects all ranks in one run",
            exit_code=ExitCode.USAGE,
        )
    if "list" in options.settings:
        _list_settings()
    elif "list" in options.inject:
        _list_faults()
    elif command or options.module:
        raise typer.Exit(_run_own(context, command or [], options))
    else:
        raise typer.Exit(_run_bundled(options))


def _list_settings() -> None:
    from diag.collectors.trainer.strategies import STRATEGIES

    for strategy in STRATEGIES.values():
        say(f"{strategy.facts.id}: {strategy.about}")
        for key in strategy.settings:
            choices = f" ({', '.join(key.choices)})" if key.choices else ""
            say(f"    {key}: {key.help}{choices}")


def _list_faults() -> None:
    from diag.collectors.trainer.faults import FAULTS

    for kind in FAULTS.values():
        say(f"{kind.usage()}\n    {kind.help}")
        for key in kind.keys:
            say(f"    {key.name}: {key.help}")


def _run_bundled(options: RunOptions) -> int:
    """The exit code of a training with the bundled trainer."""
    from diag.collectors.trainer.checkpoint.folder import find
    from diag.collectors.trainer.faults import FaultError
    from diag.collectors.trainer.keys import OptionError
    from diag.collectors.trainer.refusals import validate, validate_backend, without_effect
    from diag.watch.launch import bundled, open_run_directory, require_torch
    from diag.watch.notify import without_addresses
    from diag.watch.packing import packed, place_of

    trainer, launch, settings = options.of_trainer(), options.of_launch(), options.of_collectors()
    steps, before = trainer.steps, None
    try:
        if trainer.resume is not None:  # found here once, so that all ranks continue from the same checkpoint
            resumed = find(Path(trainer.resume))
            trainer = replace(trainer, resume=str(resumed.folder))
            steps -= resumed.manifest.steps
            before = resumed
        validate(trainer, world_size=launch.world_size)
        require_torch()
        from diag.collectors.accelerator import backend_of, device_of_rank  # torch: not before the rest is in order

        validate_backend(trainer, backend_of(device_of_rank(0, launch.nproc)))
    except (OptionError, FaultError) as error:
        raise DiagError(str(error), exit_code=ExitCode.USAGE) from error
    if options.trace_skip is None:  # fewer in a short run, so that some untraced steps follow
        settings = replace(settings, trace_skip=max(1, min(SKIP, (steps - options.trace_active) // 2)))
    for sentence in without_effect(trainer, trainer.steps - steps):
        say(f"diag: {sentence}", err=True)
    if settings.trace and settings.trace_skip >= steps:
        say(f"diag: --trace-skip {settings.trace_skip}: no window will be recorded in {steps} steps", err=True)
    folder, packing = place_of(options.out, options.pack, options.pack_interval)
    layout = open_run_directory(
        folder,
        launch,
        without_addresses(sys.argv[1:]),
        trainer.strategy,
        world_size=launch.world_size,
        strategy=trainer.strategy,
        injected=list(trainer.inject),
        resumed_from=trainer.resume or "",
        resumed_step=before.manifest.steps if before is not None else None,
        training=_training_of(before) if before is not None else "",
    )
    launch = replace(launch, packing=packing)
    with packed(layout.root, packing, launch.say):
        outcome = bundled(layout, launch, settings, trainer)
    return say_end(_with_other_nodes(layout, packing), outcome, options.collect, quiet=options.quiet)


def _training_of(before: Checkpoint) -> str:
    """The training that saved the checkpoint. Older checkpoints do not say it, but lie in the directory of its run."""
    from diag.collectors.manifest import training_of
    from diag.collectors.trainer.checkpoint.folder import OF_RUN

    of_run = before.folder.parent
    return before.manifest.training or (training_of(RunLayout(of_run.parent)) if of_run.name == OF_RUN else "")


def _run_own(context: typer.Context, command: list[str], options: RunOptions) -> int:
    """The exit code of a training of the user's: a script or module under torchrun, or a launcher's command."""
    from diag.watch.launch import environment_of, open_run_directory, require_torch, run_command, run_script
    from diag.watch.notify import without_addresses
    from diag.watch.packing import packed, place_of

    if not command:
        raise DiagError("-m needs the name of a module", exit_code=ExitCode.USAGE)
    is_script = options.module or command[0].endswith(".py")
    _refuse_options_of_the_trainer(context, is_script)
    if is_script and not options.module and not Path(command[0]).is_file():
        raise DiagError("there is no such script", path=Path(command[0]), exit_code=ExitCode.USAGE)
    if is_script:  # a command may start another Python
        require_torch(f", or start it with the Python that trains: diag run -- .../bin/torchrun {shlex.join(command)}")
    launch = options.of_launch()
    collect = options.collect
    named = options.hang_timeout is not None
    launch = replace(
        launch,
        nproc=launch.nproc if _is_on_command_line(context, "nproc") else 1,
        hang_timeout_s=(launch.hang_timeout_s if named else _HANG_S) if collect else 0,
        ends_hung=named,  # a hung run is ended only if the user set the limit
    )
    world_size = launch.world_size if is_script else None
    folder, packing = place_of(options.out, options.pack, options.pack_interval)
    layout = open_run_directory(
        folder, launch, without_addresses(sys.argv[1:]), Path(command[0]).stem, world_size=world_size
    )
    settings = options.of_collectors()
    environment = environment_of(layout, settings, collect, packing if not is_script else None)
    launch = replace(launch, environment=environment, packing=packing)
    start = partial(run_script, module=options.module) if is_script else run_command
    with packed(layout.root, packing, launch.say):
        outcome = start(layout, launch, settings, command)
    return say_end(_with_other_nodes(layout, packing), outcome, collect, shown=True, quiet=options.quiet)


def _with_other_nodes(layout: RunLayout, packing: Packing | None) -> RunLayout:
    """The run with what other nodes have stored of it, if it is packed and can be read."""
    if packing is not None:
        from diag.rundir.local import local_path
        from diag.watch.launch import after_training

        with after_training(_print_message):
            run = RunLayout(local_path(packing.to))
            if run.is_run():
                return run
    return layout


def _is_on_command_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _refuse_options_of_the_trainer(context: typer.Context, is_script: bool) -> None:
    """DiagError for an option that would have no effect: it describes the bundled training, or torchrun's ranks."""
    kind = "script" if is_script else "command"
    without_effect = _OF_TRAINER if is_script else _OF_TRAINER | _OF_TORCHRUN
    for parameter in context.command.params:
        if parameter.name in without_effect and _is_on_command_line(context, parameter.name):
            raise DiagError(
                f"{parameter.opts[0]} has no effect on your own {kind}",
                hint=f"write the {kind}'s own options after its name",
                exit_code=ExitCode.USAGE,
            )
