"""``diag dashboard``: opens the web app on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from diag.cli.reading import PolicyOption, override_thresholds

# Also of ``diag metrics``.
AllowHostOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="NAME",
        help="Also accept this host name, for a reverse proxy or an alias; NAME:PORT where the proxy's address "
        "has a port. Repeatable. By default localhost and the address of --host, with its machine's names.",
        show_default=False,
    ),
]


def dashboard(
    path: Annotated[
        str | None,
        typer.Argument(
            help="A run or its address, which need not exist yet, traces, or a folder of runs; by default the "
            "sample runs."
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Port; 0 picks a free one.", min=0, max=65535)] = 8501,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but a loopback address lets other machines connect.")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option(help="Open the browser.")] = True,
    token: Annotated[
        bool,
        typer.Option(help="Require the token of the printed address. Without it, anyone who can connect is let in."),
    ] = True,
    allow_host: AllowHostOption = None,
    policy: PolicyOption = None,
) -> None:
    """Open the dashboard on 127.0.0.1. Nothing leaves this machine unless --host says so.

    The printed address holds a token: the browser that opens it is let in until it is closed.
    """
    override_thresholds(policy)
    from diag.cli.reading import following
    from diag.serve.server import serve_dashboard

    with following(path) as local:
        serve_dashboard(local, port=port, open_browser=browser, host=host, token=token, allowed_hosts=allow_host or ())
