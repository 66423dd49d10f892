"""What the others did: the median over all ranks but one, for each of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.int64]


def median_of_others(values: Values) -> Values:
    """For each row the median of all other rows, column by column, rounded down; itself where there is only one."""
    count = len(values)
    if count < 2:
        return values
    order = np.argsort(values, axis=0, kind="stable")
    place = np.argsort(order, axis=0, kind="stable")
    ascending = np.take_along_axis(values, order, axis=0)

    def other(index: int) -> Values:
        """The index-th of the others: the sorted ones without the row itself."""
        found: Values = np.take_along_axis(ascending, np.where(place > index, index, index + 1), axis=0)
        return found

    found: Values = (other((count - 2) // 2) + other((count - 1) // 2)) // 2
    return found
