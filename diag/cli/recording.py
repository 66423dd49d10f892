"""Options of the commands that record or plan a training: the fields of a dataclass, each an option."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from diag.cli.writing import no_dash
from diag.collectors.settings import CollectorSettings
from diag.collectors.trainer.keys import Option, option, options_of
from diag.collectors.trainer.options import COLLECT

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def with_options(
    cls: type[DataclassInstance], panels: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command that takes ``**values`` an option for each field of the dataclass, except those that it declares
    itself. ``panels``: the help has the fields' panels, else one list."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        parameters = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        types = get_type_hints(cls)
        for field, about in options_of(cls):
            if about.panel and field.name not in signature.parameters:
                kind: Any = types[field.name]
                if isinstance(field.default, tuple):
                    kind = list[str] | None
                elif about.path:
                    kind = Path | None
                parameters.append(
                    inspect.Parameter(
                        field.name,
                        inspect.Parameter.KEYWORD_ONLY,
                        default=field.default or None if isinstance(field.default, tuple) else field.default,
                        annotation=Annotated[kind, _typer_option(about, kind, about.panel if panels else None)],
                    )
                )
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return add


def _typer_option(about: Option, kind: Any, panel: str | None) -> typer.models.OptionInfo:
    names = [about.flag] if about.flag != "--module/-m" else ["--module", "-m"]
    made: typer.models.OptionInfo = typer.Option(
        *names,
        help=about.help,
        min=about.least,
        max=about.most,
        metavar=about.metavar,
        rich_help_panel=panel,
        callback=no_dash if kind == Path | None or about.flag == "--out" else None,
    )
    return made


NOTIFY_HELP = (
    "Also send messages through Apprise: to a URL (slack://, mailto://, json://, ...), or to those of a file, one a "
    "line; repeatable. The variable DIAG_NOTIFY holds further ones. They are not recorded. Needs the extra "
    "notify."
)
ON_EVENT_HELP = (
    "Run a command for each event, with JSON on its standard input; by default that of the variable DIAG_ON_EVENT."
)

SKIP = 10  # steps before the first window, so that warm-up is over


@dataclass(frozen=True)
class RecordingOptions:
    """What the collectors of any training write, and where: ``diag run`` and ``diag attach``."""

    out: str | None = option(
        None,
        COLLECT,
        "Run directory; by default runs/<time>-<strategy>. Or an address (s3://bucket/run, sftp://...): then each node "
        "records in a folder of its own, and one process of it writes there.",
    )
    pack: bool = option(
        False,
        COLLECT,
        "Write to a shared folder by one process a node, too.",
        "--pack/--no-pack",
    )
    pack_interval: float = option(30.0, COLLECT, "Seconds between two writes of a node.", least=1)
    trace: bool = option(True, COLLECT, "Record a torch.profiler window.", "--trace/--no-trace")
    trace_skip: int | None = option(
        None, COLLECT, "Steps before the first window; by default 10, fewer in a short run."
    )
    trace_active: int = option(3, COLLECT, "Steps per window.", least=1)
    trace_every: int = option(0, COLLECT, "Steps between two windows; 0: one window.", least=0)
    machine_interval: int = option(
        60, COLLECT, "Seconds between two readings of what each node knows: ports, links, pressure; 0: none.", least=0
    )
    byte_budget_mb: int = option(
        1024,
        COLLECT,
        "Disk space for the records of one rank, in MB. When it is used, the oldest are removed.",
        least=1,
    )
    memory_snapshots: bool = option(
        False,
        COLLECT,
        "Record the GPU allocator's history, and write a memory snapshot near out-of-memory and when an allocation "
        "fails. Costs about 2 us an allocation and up to some hundred MB of host memory a rank.",
    )
    collective_timing: Literal["auto", "recorder", "off"] = option(
        "auto",
        COLLECT,
        "Durations of collectives on GPUs; auto: from NCCL Inspector where it is installed; recorder: else from "
        "PyTorch's Flight Recorder.",
    )

    def of_collectors(self) -> CollectorSettings:
        return CollectorSettings(
            trace=self.trace,
            trace_skip=SKIP if self.trace_skip is None else self.trace_skip,
            trace_active=self.trace_active,
            trace_every=self.trace_every,
            machine_interval_s=float(self.machine_interval),
            byte_budget=self.byte_budget_mb * 1_000_000,
            collective_timing=self.collective_timing,
            memory_snapshots=self.memory_snapshots,
        )
