"""The numbers at the top of a run's page, and those behind its first figure, as text: the same on every page."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from diag.model.steps import Bottleneck
from diag.words.formatting import NBSP as NBSP
from diag.words.formatting import UNKNOWN as UNKNOWN
from diag.words.formatting import counted as counted
from diag.words.formatting import duration as duration
from diag.words.formatting import listing as listing
from diag.words.formatting import masked as masked
from diag.words.formatting import measured as measured
from diag.words.formatting import number as number
from diag.words.formatting import share as share
from diag.words.formatting import size as size
from diag.words.formatting import visible as visible
from diag.words.formatting import visible_lines as visible_lines
from diag.words.wording import averaged_over, pieces

from .run_view import Part, RunView

# -- formatting --------------------------------------------------------------------------------------------------------
#
# Text of others made safe for Markdown and for Plotly's labels; and the numbers of ``diag.words.formatting``.

_MARKDOWN = re.compile(r"([\\`*_\[\]{}()#|$~<>&:!+\-])")
# What makes an address: Markdown links it wherever it stands, escaped or not.
_ADDRESS = re.compile(r"(https?\\?://|www(?=\.)|@)", re.IGNORECASE)
_JOINER = "\u2060"  # is not seen, and is no part of an address


def plain(text: object) -> str:
    """Text that Markdown shows as it is, control characters as escapes: paths and messages hold underscores, brackets,
    colons and dollar signs. No address in it becomes a link."""
    return _ADDRESS.sub(rf"\1{_JOINER}", _MARKDOWN.sub(r"\\\1", visible(str(text))))


def label(text: object, most: int = 200) -> str:
    """Text that a figure shows as it is, control characters as escapes, its middle left out where it is long: Plotly
    reads a few tags, entities and, in a template, names of values."""
    whole = visible(str(text))
    if len(whole) > most:
        whole = f"{whole[: most // 2 - 1]}…{whole[-(most // 2 - 1) :]}"
    return html.escape(whole, quote=False).replace("%{", "%&#123;")


def prose(text: str) -> str:
    """The same of our own sentences, in which what stands between backticks is a command to type."""
    return "".join(f"`{visible(part)}`" if typed else _lines(part) for part, typed in pieces(text))


def _lines(text: str) -> str:
    return "\n".join(map(plain, text.split("\n")))


MS = 1e6


@dataclass(frozen=True)
class Metric:
    """``help``: what exactly the number is. ``against``: by how much it differs from the baseline's, signed; "" where
    there is none. ``more_is``: "good" or "bad"."""

    label: str
    value: str
    help: str
    against: str = ""
    more_is: str = "bad"


def metrics(view: RunView, baseline: RunView | None = None) -> tuple[Metric, ...]:
    """The numbers of the steps that count: five, and MFU where it is known; with the difference to a baseline's."""
    return tuple(
        number.metric(view, baseline)
        for number in _NUMBERS
        if number.always or number.value(view) is not None or (baseline and number.value(baseline) is not None)
    )


@dataclass(frozen=True)
class _Number:
    """``value``: of a run, None where it is not known."""

    label: Callable[[RunView], str]
    value: Callable[[RunView], float | None]
    text: Callable[[float], str]
    help: Callable[[RunView], str]
    more_is: str = "bad"
    points: bool = False  # a share: differences are in percentage points
    always: bool = True

    def metric(self, view: RunView, baseline: RunView | None) -> Metric:
        value = self.value(view)
        before = self.value(baseline) if baseline is not None else None
        against = ""
        if value is not None and before is not None:
            change = value - before
            shown = f"{abs(change) * 100:.1f}{NBSP}points" if self.points else self.text(abs(change))
            # Streamlit tells the direction by a minus in front.
            against = f"{'-' if change < 0 else '+'}{shown}"
            if not self.points and before:
                against += f" ({change / before:+.1%})"
        return Metric(
            self.label(view),
            UNKNOWN if value is None else self.text(value),
            self.help(view),
            against,
            self.more_is,
        )


def _memory_label(view: RunView) -> str:
    capacity = view.memory.capacity if view.memory is not None else None
    return "Peak memory" if capacity is None else f"Memory, of {size(capacity)}"


def _communication_help(view: RunView) -> str:
    mean = share(view.mean_share(Part.COMMUNICATION, Part.WAITING, Part.TRANSFER))
    return (
        "Exposed communication: transfers on the critical path, the part of the time that free communication would "
        "save. Waiting for a slower rank is counted with what made it slow. As a mean over the ranks, waiting "
        f"included: {mean}."
    )


def _data_help(view: RunView) -> str:
    return (
        "Waiting for the data loader on the critical path, also where all ranks wait for the loader of one. As a mean "
        f"over the ranks: {share(view.mean_share(Part.DATA))}."
    )


def _step_label(view: RunView) -> str:
    name = "Window" if view.noun == "window" else "Step time"
    return f"{name}, median" if len(view.steps) > 1 else name


def _step_help(view: RunView) -> str:
    text = f"From the first rank's begin to the last rank's end, of the {view.noun}s that count"
    if view.noun == "step":
        return f"{text}."
    return f"{text}; without start-up, and without what lies before the first and after the last work of the device."


def _host_help(view: RunView) -> str:
    return (
        "Idle time of the device on the critical path that its host causes: it launches late, synchronises or "
        "allocates memory, also where all ranks wait for the host of one. As a mean over the ranks: "
        f"{share(view.mean_share(Part.HOST))}."
    )


_NUMBERS = (
    _Number(
        _step_label,
        lambda view: view.median_step_ns,
        duration,
        _step_help,
    ),
    _Number(
        lambda _: "Tokens per second",
        lambda view: view.tokens_per_second,
        "{:,.0f}".format,
        lambda _: "All ranks together, in the steps that count. Unknown where the training does not count its tokens.",
        more_is="good",
    ),
    _Number(
        lambda _: "MFU",
        lambda view: view.result.mfu.value,
        share,
        lambda view: f"Model FLOPs utilisation: {view.result.mfu.basis}.",
        more_is="good",
        points=True,
        always=False,
    ),
    _Number(
        lambda _: "Exposed comm.",
        lambda view: view.result.share_of(Bottleneck.COMMUNICATION),
        share,
        _communication_help,
        points=True,
    ),
    _Number(lambda _: "Data wait", lambda view: view.result.share_of(Bottleneck.DATA), share, _data_help, points=True),
    _Number(
        lambda _: "Host wait",
        lambda view: view.result.share_of(Bottleneck.HOST) if view.result.on_device else None,
        share,
        _host_help,
        points=True,
        always=False,
    ),
    _Number(
        _memory_label,
        lambda view: view.peak_memory,
        size,
        lambda _: (
            "The largest of all ranks and steps: reserved by the allocator of the device, on a CPU the resident set."
        ),
    ),
)


def shown_rank(view: RunView) -> int:
    """Whose steps are shown first: the first rank at fault, else the first one."""
    return next((rank for rank in view.culprits if rank in view.ranks), view.ranks[0])


@dataclass(frozen=True)
class RankValues:
    """``rows``: (rank, at fault, one number a column), milliseconds. ``left_out``: ranks that are not among them."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[int, bool, tuple[str, ...]], ...]
    left_out: int


def rank_values(view: RunView, most: int) -> RankValues:
    """What the figure of the ranks draws, for those who read: the ranks at fault, then the first others, by number."""
    columns = [("step", view.dur_ns), *((part.value, grid) for part, grid in view.parts.items())]
    means = [view.per_rank(grid) / MS for _, grid in columns]
    by_guilt = sorted(range(len(view.ranks)), key=lambda i: view.ranks[i] not in view.culprits)
    rows = [
        (view.ranks[i], view.ranks[i] in view.culprits, _cells([float(mean[i]) for mean in means]))
        for i in sorted(by_guilt[:most])
    ]
    return RankValues(
        averaged_over(view.result.attribution),
        tuple(name for name, _ in columns),
        tuple(rows),
        len(view.ranks) - len(rows),
    )


def _cells(values: Sequence[float]) -> tuple[str, ...]:
    return tuple(UNKNOWN if np.isnan(value) else number(value) for value in values)
