"""The colours of the parts of a step and of the classes of steps, on all pages, for a light and a dark theme.

They are from the palette of Okabe and Ito (2008), lightened or darkened until all pairs can be distinguished with
deuteranopia and protanopia on both backgrounds; tests/app/test_theme.py measures it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from diag.model.steps import Bottleneck, Severity

from .run_view import Part


@dataclass(frozen=True)
class Theme:
    """``ground`` and ``ink``: page and text; ``soft``: secondary text; ``faint`` and ``grid``: lines; ``host``: time on
    the host that may be work or waiting; ``heat``: the scale of heat maps, from zero (near the ground) to the most."""

    name: str
    ground: str
    ink: str
    soft: str
    faint: str
    grid: str
    part: Mapping[Part, str]
    host: str
    bottleneck: Mapping[Bottleneck, str]
    heat: tuple[tuple[float, str], ...]

    @property
    def series(self) -> tuple[str, ...]:
        """Colours of series that are not parts of a step: operations, kinds of kernels. As distinct as the parts'."""
        return tuple(self.part[part] for part in _SERIES)


_SERIES = (Part.COMPUTE, Part.TRANSFER, Part.DATA, Part.COPY, Part.WAITING, Part.CHECKPOINT)


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


_LIGHT_PARTS = {
    Part.COMPUTE: "#0072b2",
    Part.TRANSFER: "#a63c06",
    Part.WAITING: "#f0a830",
    Part.COMMUNICATION: "#a63c06",
    Part.COPY: "#cc79a7",
    Part.DATA: "#00a878",
    Part.CHECKPOINT: "#7cc8f2",
    Part.HOST: "#7a5c8e",
    Part.QUEUED: "#6a6af0",
    Part.IDLE: "#c9ced6",
}
_DARK_PARTS = {
    Part.COMPUTE: "#2a83c4",
    Part.TRANSFER: "#d1571b",
    Part.WAITING: "#f7bd55",
    Part.COMMUNICATION: "#d1571b",
    Part.COPY: "#d98cb8",
    Part.DATA: "#12b886",
    Part.CHECKPOINT: "#a5dcfa",
    Part.HOST: "#a685bd",
    Part.QUEUED: "#5656d8",
    Part.IDLE: "#5c6470",
}

LIGHT = Theme(
    name="light",
    ground="#ffffff",
    ink="#1f2430",
    soft="#646b7a",
    faint="#8a91a0",
    grid="#e4e7ed",
    part=_LIGHT_PARTS,
    host="#6f5b4b",
    bottleneck=_bottlenecks(_LIGHT_PARTS, mixed="#e8dd3a"),
    heat=((0.0, "#fff6e3"), (0.35, "#fbc868"), (0.7, "#e07b0f"), (1.0, "#8a3603")),
)
DARK = Theme(
    name="dark",
    ground="#181715",
    ink="#f1f3f7",
    soft="#a3aab8",
    faint="#9aa2b1",
    grid="#34322f",
    part=_DARK_PARTS,
    host="#946f52",
    bottleneck=_bottlenecks(_DARK_PARTS, mixed="#efe65a"),
    heat=((0.0, "#1d1a17"), (0.35, "#7a430c"), (0.7, "#e08a1e"), (1.0, "#ffe2a8")),
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
