"""``diag dashboard``: opens the web app on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def dashboard(
    path: Annotated[Path | None, typer.Argument(help="A run, or a folder of runs; else the sample runs.")] = None,
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = 8501,
    host: Annotated[
        str, typer.Option(help="Address to listen on; another than this machine's own lets others read the runs.")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option(help="Open the browser.")] = True,
) -> None:
    """Open the dashboard on 127.0.0.1. Nothing leaves this machine unless --host says so."""
    from diag.serve import serve_dashboard

    serve_dashboard(path, port=port, open_browser=browser, host=host)
