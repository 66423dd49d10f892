"""``diag export`` and ``diag metrics``: a run's numbers for other systems."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diag.cli.dashboard import AllowHostOption
from diag.cli.reading import PolicyOption, following, override_thresholds, rank_list
from diag.cli.writing import STDOUT, no_dash
from diag.collectors.masking import masked
from diag.errors import DiagError, ExitCode
from diag.words.terminal import put, say

if TYPE_CHECKING:
    from diag.export.definitions import Sample
    from diag.export.run_metrics import RunMetrics

# A variable and not an option: other users of the machine can read command lines.
_TOKEN_VARIABLE = "DIAG_METRICS_TOKEN"


class Format(StrEnum):
    """Where the numbers go."""

    PROMETHEUS = "prometheus"
    JSONL = "jsonl"
    OTLP = "otlp"
    TENSORBOARD = "tensorboard"
    WANDB = "wandb"


_OF_STEPS = (Format.TENSORBOARD, Format.WANDB)

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A run directory or its address, finished or still growing.")
]
PerRankOption = Annotated[
    bool | None,
    typer.Option(
        "--per-rank/--summary",
        help="Series for each rank, or sums, min, mean and max over the ranks. By default the former up to 64 ranks.",
        show_default=False,
    ),
]

RanksOption = Annotated[
    str | None, typer.Option(metavar="LIST", help="Only these ranks, for example 0-7,64. By default all.")
]


def _ranks(written: str | None) -> frozenset[int] | None:
    return frozenset(rank_list(written)) if written is not None else None


def export(
    run: RunArgument,
    to: Annotated[
        Format,
        typer.Option(
            "--format",
            help="prometheus: its text format. jsonl: a JSON object a line. otlp: to an OpenTelemetry collector, "
            "needs the extra otel. tensorboard, wandb: the curves of every step into a folder, "
            "where these are installed.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="PATH",
            help="prometheus: a file, replaced in one move (for node_exporter's textfile collector). jsonl: a file to "
            "append to; - is standard output. tensorboard, wandb: the folder. By default standard output, or a folder "
            "next to the run.",
        ),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="otlp: URL of the collector; by default OTEL_EXPORTER_OTLP_ENDPOINT, else "
            "http://localhost:4318/v1/metrics.",
        ),
    ] = None,
    per_rank: PerRankOption = None,
    ranks: RanksOption = None,
    follow: Annotated[bool, typer.Option("--follow", help="Export repeatedly until the run has ended.")] = False,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", help="Seconds between two exports with --follow.", min=0.1)
    ] = 15.0,
    policy: PolicyOption = None,
) -> None:
    """Export a run's numbers to another system, once or until the run ends.

    Exit code 0: exported; 1: no run directory, or what should take the numbers does not.
    """
    override_thresholds(policy)
    if to in _OF_STEPS:
        if follow:
            raise DiagError(
                f"--follow cannot be combined with {to}", hint="export when it has ended", exit_code=ExitCode.USAGE
            )
        from diag.collectors.layout import RunLayout
        from diag.rundir.attempts import attempt_path

        folder, local = no_dash(out), attempt_path(run)
        if folder is None:
            first = RunLayout(local).first.root
            beside = first.parent if run in (str(first), str(local)) else Path()
            name = first.resolve().name if local == first else f"{first.resolve().name}-{local.name}"
            folder = beside / f"{name}-{to}"
        _write_steps(local, to, folder)
        return
    out = None if out == STDOUT else out
    if to is Format.PROMETHEUS and follow and out is None:
        raise DiagError("--follow needs a file", hint="give -o FILE, or use diag metrics", exit_code=ExitCode.USAGE)
    from diag.export.run_metrics import RunMetrics
    from diag.serve.server import ended_by_signals

    with following(run) as local_run, ended_by_signals(), suppress(KeyboardInterrupt):
        assert local_run is not None
        metrics = RunMetrics(local_run, per_rank, _ranks(ranks), _print_gap)
        write = _writer(local_run, to, out, endpoint)
        write(metrics.read())
        if follow:
            _follow(metrics, write, every)


def _print_gap(path: str, reason: str) -> None:
    say(f"diag: {path}: {reason}", err=True)


def _follow(metrics: RunMetrics, write: Callable[[list[Sample]], None], every_s: float) -> None:
    """Exports until the run has ended. A failed export is printed, and tried again."""
    failed: DiagError | None = None
    while metrics.live:
        time.sleep(every_s)
        samples = metrics.read()
        try:
            write(samples)
            failed = None
        except DiagError as error:
            failed = error
            say(f"diag: {error.message}; trying again", err=True)
    if failed is not None:
        raise failed


def _writer(run: Path, to: Format, out: Path | None, endpoint: str | None) -> Callable[[list[Sample]], None]:
    if to is Format.OTLP:
        from diag.export.formats import OtlpSender

        return OtlpSender(run.resolve().name, endpoint).send
    if to is Format.PROMETHEUS:
        from diag.export.formats import to_text

        return lambda samples: _replace(out, to_text(samples))
    from diag.export.formats import to_lines

    return lambda samples: _append(out, to_lines(samples, time.time_ns()))


def _replace(out: Path | None, text: str) -> None:
    if out is None:
        put(text)
        return
    from diag.collectors.files import replace_file

    try:
        replace_file(out, text.encode(errors="backslashreplace"))
    except OSError as error:
        raise _unwritable(out, error) from error


def _append(out: Path | None, text: str) -> None:
    if out is None:
        put(text)
        return
    try:
        with out.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        raise _unwritable(out, error) from error


def _unwritable(out: Path, error: OSError) -> DiagError:
    return DiagError(f"cannot be written: {error.strerror or error}", path=out, hint="give another place: -o")


def _write_steps(run: Path, to: Format, folder: Path) -> None:
    from diag.export.finished_steps import history

    steps = history(run, _print_gap)
    if to is Format.TENSORBOARD:
        from diag.export.formats import write_events

        written, then = write_events(steps, folder), f"tensorboard --logdir {folder}"
    else:
        from diag.export.formats import write_run

        written, then = write_run(steps, run.resolve().name, folder), f"wandb sync {folder}/wandb/offline-run-*"
    say(f"{written} steps written to {folder}. Next: {then}")


def metrics(
    run: Annotated[
        str | None, typer.Argument(help="A run directory or its address, finished or still growing.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port; 0 picks a free one.", min=0, max=65535)] = 9123,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but a loopback address lets other machines connect.")
    ] = "127.0.0.1",
    token: Annotated[
        bool | None,
        typer.Option(
            "--token/--no-token",
            help="Require a token in each request: 'Authorization: Bearer TOKEN', or ?token=TOKEN. The token is "
            f"that of {_TOKEN_VARIABLE}, else a new one, which is printed. Enabled by default where {_TOKEN_VARIABLE} "
            "is set or other machines can connect.",
            show_default=False,
        ),
    ] = None,
    allow_host: AllowHostOption = None,
    per_rank: PerRankOption = None,
    ranks: RanksOption = None,
    grafana: Annotated[
        bool, typer.Option("--grafana", help="Print the Grafana dashboard of these metrics, to import, and end.")
    ] = False,
    alerts: Annotated[
        bool,
        typer.Option(
            "--alerts",
            help="Print Prometheus alerting rules, and end: stuck, slow, another culprit, recorder silent, device "
            "unhealthy.",
        ),
    ] = False,
    policy: PolicyOption = None,
) -> None:
    """Serve a run's numbers to Prometheus at /metrics. Every scrape reads what is new in the run.

    Runs until Ctrl-C, also when the run has ended.
    """
    override_thresholds(policy)
    if grafana:
        from diag.export.definitions import dashboard

        put(dashboard())
        return
    if alerts:
        from diag.export.alerts import alerts as rules

        put(rules())
        return
    if run is None:
        raise DiagError("no run was given", hint="diag metrics RUN", exit_code=ExitCode.USAGE)
    from diag.export.run_metrics import RunMetrics

    with following(run) as local:
        assert local is not None
        followed = RunMetrics(local, per_rank, _ranks(ranks), _print_gap)
        _serve(followed, run, host, port, token, allow_host or ())


def _serve(
    followed: RunMetrics, run: str, host: str, port: int, with_token: bool | None, allowed_hosts: Sequence[str]
) -> None:
    from diag.export.formats import serving
    from diag.serve import guard
    from diag.serve.server import ended_by_signals

    _, (address, _) = guard.resolved(host, port)
    local = guard.is_loopback(address)
    chosen = os.environ.get(_TOKEN_VARIABLE, "")
    token = None
    if with_token or (with_token is None and (chosen or not local)):
        token = guard.checked_token(chosen, f"what {_TOKEN_VARIABLE} holds") if chosen else guard.new_token()
    with ended_by_signals(), suppress(KeyboardInterrupt):
        followed.read()  # everything so far: this takes longer than a scrape would wait
        with serving(followed, host, port, token=token, allowed_hosts=allowed_hosts) as (bound, thread):
            if token is None and not local:
                say(f"No token is required: anyone who can reach {host} can read the metrics.", err=True)
            elif token is None and with_token is False:
                say("No token is required: every user of this machine can read the metrics.", err=True)
            # A token that the user has chosen is not printed: it is in the scraper's configuration already.
            name = socket.gethostname() if guard.is_everywhere(address) else host
            shown = guard.url(name, bound, "/metrics", None if chosen else token)
            say(f"Metrics of {masked(run)}: {shown} (Ctrl-C ends it)")
            if token is not None and not chosen:
                say(
                    "Prometheus sends this token with `authorization: {credentials: TOKEN}` in its scrape_config. "
                    f"Set {_TOKEN_VARIABLE} to keep the same token.",
                    err=True,
                )
            thread.join()
