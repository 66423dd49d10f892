"""The answer of ``diag analyze`` as it is kept: what was printed, and the exit code."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from diag.collectors.layout import RunLayout
from diag.rundir.answers import Answers, answers_on
from diag.rundir.attempts import newest_with_steps
from diag.words.terminal import put

if TYPE_CHECKING:
    from diag.api import Result


class Printed:
    """The answer to a question about paths, if any is kept. ``question``: see ``answers_on``."""

    def __init__(self, paths: Sequence[str], question: object) -> None:
        run = newest_with_steps(RunLayout(Path(paths[0]))) if len(paths) == 1 else None
        paths = paths if run is None else [str(run.root)]
        attempts = 0 if run is None else len(run.first.attempts())  # the answer says which of them it is about
        self._answers: Answers | None = answers_on(paths, lambda: (question, _layout(), attempts))
        self._text: object = ""

    def again(self) -> int | None:
        """Prints the kept answer, and returns its exit code; None if there is none."""
        kept = self._answers.load() if self._answers is not None else None
        if kept is None:
            return None
        code, _, text = kept.partition(b"\n")
        put(text.decode(errors="surrogatepass"))
        return int(code)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Notes what is printed meanwhile."""
        with _noted() as self._text:
            yield

    def keep(self, result: Result, exit_code: int) -> None:
        """Keeps what was noted of this result, whose verdict.json is written."""
        tables = result.tables
        if self._answers is not None and self._answers.path == tables.root:
            answer = f"{exit_code:d}\n{self._text}".encode(errors="surrogatepass")
            self._answers.save(answer, tables.manifest, result.state, writes=tables.only is None)


class _Noted:
    """A stream that keeps what is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._written = stream, list[str]()

    def write(self, text: str) -> int:
        self._written.append(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __str__(self) -> str:
        return "".join(self._written)


@contextmanager
def _noted() -> Iterator[object]:
    """Notes what is written to standard output meanwhile: the ``str`` of what this returns."""
    before, kept = sys.stdout, _Noted(sys.stdout)
    sys.stdout = cast("TextIO", kept)
    try:
        yield kept
    finally:
        sys.stdout = before


# What rich reads from the environment.
_LOOKS = (
    "COLUMNS", "LINES", "TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE",
)  # fmt: skip


def _layout() -> tuple[object, ...]:
    """What the layout and the colours of a report on standard output depend on."""
    size = shutil.get_terminal_size() if sys.stdout.isatty() else None
    return size, sys.stdout.encoding, tuple(os.environ.get(name) for name in _LOOKS)
