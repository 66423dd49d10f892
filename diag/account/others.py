"""What the others did: the median over all ranks but one, for each of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.int64]


def median_of_others(values: Values) -> Values:
    """For each row the median of all other rows, column by column, rounded down; itself where there is only one.

    In linear time: which of the middle values it is depends only on which side of them the row itself is. Where rows
    are equal to a middle value, it does not matter which of them is left out.
    """
    count = len(values)
    if count < 2:
        return values
    middle = count // 2
    kth = (middle - 1, middle, min(middle + 1, count - 1))
    ordered = np.partition(values, sorted(set(kth)), axis=0)
    below, at, above = (ordered[index] for index in kth)
    if count % 2 == 0:  # an odd number of others: one of them is in the middle
        found: Values = np.where(values > below, below, at)
        return found
    others = np.where(values > at, below + at, np.where(values < at, at + above, below + above))
    halved: Values = others // 2
    return halved
