"""Whether the colours can be told apart, also by people who do not see all of them."""

from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from diag.app.run_view import Part
from diag.app.theme import DARK, LIGHT, Theme, ink_on, theme_of
from diag.model.breakdown import KernelKind
from diag.tables.zoom import BACKWARD, FORWARD

# Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB.
SIGHT = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
_TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
_WHITE = np.array([0.9505, 1.0, 1.089])
JUST_TOLD_APART = 10.0  # CIE 1976 colour difference; 2.3 is just noticeable side by side


def lab(colour: str, sight: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    srgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    xyz = _TO_XYZ @ np.clip(sight @ linear, 0, 1) / _WHITE
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_parts_can_be_told_apart(theme: Theme, sight: str) -> None:
    # Communication that cannot be split stands in for its two parts and is never drawn beside them.
    colours = {part.value: colour for part, colour in theme.part.items() if part != Part.COMMUNICATION}
    assert alike(colours | {"the page": theme.ground, "host": theme.host}, sight) == {}


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_series_can_be_told_apart(theme: Theme, sight: str) -> None:
    assert alike(dict(enumerate([theme.ground, *theme.series])), sight) == {}


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_what_memory_is_used_for_and_the_phases_below_it_can_be_told_apart(theme: Theme, sight: str) -> None:
    phases = {f"phase: {work}": theme.work[work] for work in (FORWARD, BACKWARD, KernelKind.OPTIMIZER)}
    pairs = alike({**theme.memory, **phases}, sight)
    assert {pair: distance for pair, distance in pairs.items() if not set(pair) <= set(phases)} == {}
    allocated, reserved, free = theme.held
    assert alike({"allocated": allocated, "reserved": reserved, "free": free}, sight) == {}
    assert {*theme.held}.isdisjoint({*theme.memory.values(), *theme.part.values(), *theme.series})


def alike(colours: dict[Any, str], sight: str) -> dict[tuple[Any, Any], float]:
    """The pairs that are too similar, with their distance."""
    distances = {
        (a, b): round(float(np.linalg.norm(lab(colours[a], SIGHT[sight]) - lab(colours[b], SIGHT[sight]))), 1)
        for a, b in combinations(colours, 2)
    }
    return {pair: distance for pair, distance in distances.items() if distance < JUST_TOLD_APART}


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_the_colour_of_a_part_of_the_step_means_nothing_else(theme: Theme) -> None:
    of_parts = {part: colour for part, colour in theme.part.items() if part != Part.COMMUNICATION}
    assert len(set(of_parts.values())) == len(of_parts)
    assert set(theme.series).isdisjoint(of_parts.values())
    shared = {work: colour for work, colour in theme.work.items() if colour in of_parts.values()}
    # A matrix product is compute, an all-reduce is communication.
    assert shared == {KernelKind.GEMM: of_parts[Part.COMPUTE], "all_reduce": of_parts[Part.TRANSFER]}
    assert {theme.host, theme.faint, theme.soft}.isdisjoint(of_parts.values())


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_idle_time_is_grey(theme: Theme) -> None:
    for part in (Part.HOST, Part.QUEUED, Part.IDLE):
        assert np.abs(lab(theme.part[part], SIGHT["normal"])[1:]).max() < JUST_TOLD_APART, part


def contrast(one: str, other: str) -> float:
    """WCAG's ratio of two colours: 1 to 21."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    srgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ np.array([0.2126, 0.7152, 0.0722]))


def test_numbers_on_the_bars_can_be_read() -> None:
    assert ink_on("#ffffff") == "#000000"
    assert ink_on("#0072b2") == "#ffffff"


def test_light_until_the_browser_has_said_so() -> None:
    assert theme_of(None) is LIGHT
    assert theme_of("dark") is DARK
