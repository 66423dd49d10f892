"""The only output to a terminal: text for people with control characters escaped, and data unchanged.

Names in a manifest, a heartbeat, a trace or a budget file come from others, and an escape sequence in one of them can
write the clipboard or hide a line. So the commands print, report errors and draw tables through this module only.
Output to a file is treated alike: a log is shown by a terminal later.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from diag.collectors.text import visible, visible_lines
from diag.words.policy import TERMINAL

if TYPE_CHECKING:
    from rich.console import Console


def say(text: str = "", err: bool = False) -> None:
    """Prints text for people on standard output, or on standard error. Only its newlines act on a terminal."""
    print(visible_lines(text), file=sys.stderr if err else sys.stdout, flush=True)


def put(data: str | bytes) -> None:
    """Writes data for programs on standard output, exactly as it is. JSON has its control characters escaped already:
    ``json.dumps`` leaves nothing but ASCII."""
    if isinstance(data, bytes):
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        sys.stdout.write(data)
        sys.stdout.flush()


def flush_or_drop() -> None:
    """Flushes standard output and standard error, where that is still possible."""
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        try:
            stream.flush()
        except OSError:
            drop_output(number)


def drop_output(number: int = 1) -> None:
    """Sends the rest of standard output, or of standard error (2), which takes no more, to the null device: writing it
    when the interpreter ends would fail again, and change the exit code to 120."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    if nowhere != number:
        os.close(nowhere)


def console(err: bool = False, width: int | None = None) -> Console:
    """A console of rich for standard output, or standard error. Control characters in what it prints are escaped before
    layout; rich's own colours and cursor movements stay. It writes no hyperlinks, and nothing to Jupyter."""
    made: Console = _escaping_console()(stderr=err, width=width, highlight=False, emoji=False, force_jupyter=False)
    return made


@functools.cache
def _escaping_console() -> Any:
    """The class, made on first use: importing rich takes longer than many commands."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.text import Span, Text

    class EscapingConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            if isinstance(renderable, str):
                options = options or self.options
                renderable = self.render_str(renderable, highlight=options.highlight, markup=options.markup)
            if isinstance(renderable, Text):  # here, so that lines are broken where the escapes make them too long
                renderable = escaped(renderable)
            for segment in super().render(renderable, options):
                if segment.control:
                    yield segment
                    continue
                style = segment.style
                if style is not None and style.link:
                    style = style.update_link(None)
                yield Segment(visible_lines(segment.text), style)

    def escaped(text: Text) -> Text:
        shown = [part if part in "\n\t" else visible(part) for part in text.plain]
        starts = [0, *itertools.accumulate(map(len, shown))]
        escaped_text = text.blank_copy("".join(shown))
        escaped_text.spans = [
            Span(starts[span.start], starts[min(span.end, len(shown))], span.style) for span in text.spans
        ]
        return escaped_text

    return EscapingConsole


def report_console(existing: Console | None = None) -> Console:
    """``existing``, else a console for standard output, set up for reports: colours only on a terminal; as wide as the
    terminal up to a limit. A file or a pipe is as wide as the environment variable COLUMNS says, else 110 columns."""
    target = existing or console()
    if target.is_terminal:
        target.width = min(target.width, TERMINAL.widest)
    else:
        asked = os.environ.get("COLUMNS", "")
        width = int(asked) if asked.isdecimal() and len(asked) < 5 else 0
        target.width = min(width, TERMINAL.widest) if width >= TERMINAL.narrowest else TERMINAL.widest_elsewhere
    return target
