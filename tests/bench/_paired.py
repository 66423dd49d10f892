"""Ratios of what was measured in turns, and how sure their median is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_DRAWS = 2000


def bootstrap(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Draws of them with repetition, a row each."""
    return np.random.default_rng(0).choice(values, size=(_DRAWS, len(values)))


def paired_ratio(ones: Sequence[float], others: Sequence[float]) -> str:
    """``1.0042 [0.9981, 1.0103]``: the median of the ratios of each round, and its 95 % bootstrap interval."""
    ratios = np.array(ones) / np.array(others)
    low, high = np.percentile(np.median(bootstrap(ratios), axis=1), [2.5, 97.5])
    return f"{np.median(ratios):.4f} [{low:.4f}, {high:.4f}]"
