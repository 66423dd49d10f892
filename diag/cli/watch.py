"""``diag watch``: says when the state or the verdict of a run changes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from diag.cli.reading import PolicyOption, following, override_thresholds
from diag.cli.recording import NOTIFY_HELP, ON_EVENT_HELP
from diag.errors import DiagError, ExitCode
from diag.words.terminal import say

if TYPE_CHECKING:
    from pathlib import Path

    from diag.rundir.runs import RunState
    from diag.watch.events import Event

NotifyOption = Annotated[list[str] | None, typer.Option(metavar="URL|FILE", help=NOTIFY_HELP)]
OnEventOption = Annotated[str, typer.Option(metavar="COMMAND", help=ON_EVENT_HELP)]


def watch(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run directory, or its address (s3://...).")],
    notify: NotifyOption = None,
    on_event: OnEventOption = "",
    every: Annotated[float, typer.Option(metavar="SECONDS", help="Seconds between two looks.", min=0.5)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print the state as it is now, and end.")] = False,
    policy: PolicyOption = None,
) -> None:
    """Follow a run from any machine, and print a line when its state or its verdict changes.

    A line says that the training is stuck, since when, and which rank the others wait for; that the verdict on the
    newest steps has changed; and when that is over. It reads the run directory alone. Messages go out at least a minute
    apart.

    Ends with the run, or with Ctrl-C.

    Exit code 0: it ended well, or it lives (--once); 5: it is stuck (--once), or hung and was ended; 1: it failed, was
    stopped, or left no end.
    """
    override_thresholds(policy)
    from diag.collectors.layout import RunLayout
    from diag.rundir.states import State
    from diag.watch.events import line_of
    from diag.watch.follow import Follower
    from diag.watch.notify import Notifier, addresses, command_of

    notifier = Notifier(addresses(notify or []), command_of(on_event), lambda text: say(f"diag: {text}", err=True))

    def tell(event: Event) -> None:
        say(f"{_now()} {event.level.value}: {line_of(event)}")
        notifier.tell(event)

    try:
        with following(run) as local:
            assert local is not None
            follower, shown = Follower(RunLayout(_existing(local)), tell), ""
            while True:
                state = follower.look()
                now = _kind(state)
                if now != shown and state.state not in (State.STUCK, State.FINISHED) and state.live:
                    say(f"{_now()} {now}" + (f": step {state.last_step:,}" if state.last_step is not None else ""))
                shown = now
                if once or not state.live:
                    break
                time.sleep(every)
    finally:
        notifier.stop()
    if state.state in (State.STUCK, State.HUNG):
        raise typer.Exit(ExitCode.HANG)
    raise typer.Exit(ExitCode.OK if state.live or state.state is State.FINISHED else ExitCode.ERROR)


def _kind(state: RunState) -> str:
    """The state for the lines that are printed: an evaluation is a part of training."""
    from diag.rundir.states import State

    usual = (State.TRAINING, State.EVALUATING, State.CHECKPOINTING, State.COMPILING, State.SLOW)
    return State.TRAINING.value if state.state in usual else state.state.value


def _existing(path: Path) -> Path:
    from diag.collectors.layout import RunLayout

    if not RunLayout(path).is_run():
        raise DiagError("is not a run directory", path=path, hint="give the folder of --out", exit_code=ExitCode.ERROR)
    return path


def _now() -> str:
    return time.strftime("%H:%M:%S")
