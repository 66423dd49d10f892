"""Every colour of the figures, for a light and a dark theme: parts of a step, classes of steps, kinds of work, series.

A part of a step has one colour on all pages, which means nothing else. Idle time is grey, the darker the more its
host causes it. What is no time of a step (runs, memory, predictions) has a colour of ``series``.
They are from the palette of Okabe and Ito (2008), lightened or darkened until all pairs can be distinguished with
deuteranopia and protanopia on both backgrounds; tests/app/test_theme.py measures it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from diag.model.breakdown import KernelKind
from diag.model.memory import Category
from diag.model.steps import Bottleneck, Severity
from diag.show.parts import DARK_PARTS, LIGHT_PARTS, Part
from diag.tables.zoom import BACKWARD, CALL, FORWARD


@dataclass(frozen=True)
class Theme:
    """``ground`` and ``ink``: page and text; ``soft``: secondary text; ``faint`` and ``grid``: lines; ``host``: time on
    the host that may be work or waiting; ``work``: kinds of kernels, operations and phases of the host, as the timeline
    names them; ``memory``: what device memory is used for; ``held``: of all uses together, allocated, reserved beside
    it, and free; ``good``, ``bad`` and ``warn``: texts beside a sign;
    ``series``: of what is no part of a step;
    ``heat``: the scale of heat maps, from zero (near the ground) to the most."""

    name: str
    ground: str
    ink: str
    soft: str
    faint: str
    grid: str
    part: Mapping[Part, str]
    host: str
    bottleneck: Mapping[Bottleneck, str]
    work: Mapping[str, str]
    series: tuple[str, ...]
    memory: Mapping[Category, str]
    held: tuple[str, str, str]
    heat: tuple[tuple[float, str], ...]
    good: str
    bad: str
    warn: str


def _bottlenecks(part: Mapping[Part, str], mixed: str) -> dict[Bottleneck, str]:
    """A class has the colour of its part."""
    return {
        Bottleneck.COMPUTE: part[Part.COMPUTE],
        Bottleneck.COMMUNICATION: part[Part.TRANSFER],
        Bottleneck.DATA: part[Part.DATA],
        Bottleneck.HOST: part[Part.HOST],
        Bottleneck.MIXED: mixed,
        Bottleneck.UNDETERMINED: part[Part.IDLE],
    }


# Light and dark: compute in blue and green, communication from red to orange, the host's phases brown and violet.
_WORK: Mapping[str, tuple[str, str]] = {
    KernelKind.GEMM: ("#0072b2", "#2a83c4"),
    KernelKind.ATTENTION: ("#3b3fae", "#7f86f2"),
    KernelKind.CONVOLUTION: ("#00507d", "#4aa0d8"),
    KernelKind.ELEMENTWISE: ("#56b4e9", "#9bd4f7"),
    KernelKind.REDUCTION: ("#218c97", "#45c1cc"),
    KernelKind.EMBEDDING: ("#1b7f5c", "#3fbf93"),
    KernelKind.OPTIMIZER: ("#74b040", "#2f6b3a"),
    KernelKind.FUSED: ("#8c3b7a", "#c46ab0"),
    KernelKind.TRITON: ("#5b7fd9", "#8fabf2"),
    KernelKind.OTHER: ("#7d8da0", "#93a4b8"),
    KernelKind.COPY: ("#9cc7c1", "#5c8f8a"),
    "all_reduce": ("#a63c06", "#d1571b"),
    "all_gather": ("#cf6210", "#ef8a3c"),
    "reduce_scatter": ("#8a1f2d", "#e0606e"),
    "all_to_all": ("#c2386b", "#ef7aa5"),
    FORWARD: ("#bfd98a", "#e3f0b0"),
    BACKWARD: ("#8a5a2b", "#c9935d"),
    CALL: ("#7a5c8e", "#a685bd"),
}
_SERIES = (
    ("#4b3fa0", "#9b8cf0"),
    ("#a08a12", "#d6c04a"),
    ("#0f7c85", "#3fb6bf"),
    ("#8c2f5e", "#e07aae"),
    ("#a9a9e0", "#d5d5fa"),
    ("#5d4330", "#a97f5e"),
)


def _memory(series: tuple[str, ...], before: str, outside: str) -> dict[Category, str]:
    """What the process cannot name is grey."""
    return {
        Category.BEFORE: before,
        Category.PARAMETERS: series[0],
        Category.OPTIMIZER: series[2],
        Category.GRADIENTS: series[3],
        Category.ACTIVATIONS: series[1],
        Category.COMMUNICATION: series[4],
        Category.OTHER: series[5],
        Category.OUTSIDE: outside,
    }


LIGHT = Theme(
    name="light",
    ground="#ffffff",
    ink="#1f2430",
    soft="#646b7a",
    faint="#8a91a0",
    grid="#e4e7ed",
    part=LIGHT_PARTS,
    host="#6f5b4b",
    bottleneck=_bottlenecks(LIGHT_PARTS, mixed="#e8dd3a"),
    work={work: light for work, (light, _) in _WORK.items()},
    series=tuple(light for light, _ in _SERIES),
    memory=_memory(tuple(light for light, _ in _SERIES), before="#8a91a0", outside="#d3d6dd"),
    held=("#3f4654", "#aab1be", "#e4e7ed"),
    heat=((0.0, "#fff6e3"), (0.35, "#fbc868"), (0.7, "#e07b0f"), (1.0, "#8a3603")),
    good="#1b6e3c",
    bad="#b3261e",
    warn="#8a5a00",
)
DARK = Theme(
    name="dark",
    ground="#181715",
    ink="#f1f3f7",
    soft="#a3aab8",
    faint="#9aa2b1",
    grid="#34322f",
    part=DARK_PARTS,
    host="#946f52",
    bottleneck=_bottlenecks(DARK_PARTS, mixed="#efe65a"),
    work={work: dark for work, (_, dark) in _WORK.items()},
    series=tuple(dark for _, dark in _SERIES),
    memory=_memory(tuple(dark for _, dark in _SERIES), before="#7e7e88", outside="#55585f"),
    held=("#d9dee8", "#7a828f", "#34322f"),
    heat=((0.0, "#1d1a17"), (0.35, "#7a430c"), (0.7, "#e08a1e"), (1.0, "#ffe2a8")),
    good="#6fd49a",
    bad="#ff9a90",
    warn="#f0c36a",
)

# Streamlit's names of colours, and symbols, so that colour is never the only sign.
SEVERITY_COLOUR: dict[Severity, Literal["green", "orange", "red"]] = {
    Severity.HEALTHY: "green",
    Severity.WARN: "orange",
    Severity.CRITICAL: "red",
}
SEVERITY_ICON = {
    Severity.HEALTHY: ":material/check_circle:",
    Severity.WARN: ":material/warning:",
    Severity.CRITICAL: ":material/error:",
}


def favicon() -> str:
    """Three stacked bars as SVG. Not one of Streamlit's symbols: the browser would load those from Google's servers."""
    bars = "".join(
        f'<rect x="2" y="{3 + 9 * row}" width="28" height="7" fill="{LIGHT.part[Part.WAITING]}"/>'
        f'<rect x="2" y="{3 + 9 * row}" width="{length}" height="7" fill="{LIGHT.part[Part.COMPUTE]}"/>'
        for row, length in enumerate((14, 28, 14))
    )
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="32" height="32" viewBox="0 0 32 32">{bars}</svg>'


def pale_on(colour: str, theme: Theme, paleness: float = 0.5) -> str:
    """The colour mixed with the theme's ground: 0 the colour, 1 the ground."""
    parts = [[int(each[i : i + 2], 16) for i in (1, 3, 5)] for each in (colour, theme.ground)]
    mixed = [
        round(of_colour * (1 - paleness) + of_ground * paleness) for of_colour, of_ground in zip(*parts, strict=True)
    ]
    return "#" + "".join(f"{part:02x}" for part in mixed)


def ink_on(colour: str) -> str:
    """Black or white, whichever can be read on the colour (WCAG's relative luminance)."""
    levels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [level / 12.92 if level <= 0.04045 else ((level + 0.055) / 1.055) ** 2.4 for level in levels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#ffffff" if luminance < 0.179 else "#000000"


def theme_of(name: str | None) -> Theme:
    """The theme of this name; light until the browser's is known."""
    return DARK if name == "dark" else LIGHT
