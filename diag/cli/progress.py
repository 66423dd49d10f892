"""Progress on standard error, only where somebody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from diag.words.terminal import console


@contextmanager
def reading_progress(what: str = "reading") -> Iterator[Callable[[int, int, str], None] | None]:
    """A function that is told (files read, files in all, the file), or None where standard error is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn(what, markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console(err=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def tell(done: int, total: int, path: str) -> None:
            bar.update(task, completed=done, total=total, description=path.rsplit("/", 1)[-1])

        yield tell
