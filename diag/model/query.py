"""Evidence as a query: which rows of the run's data frames a number comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

Value = bool | int | float | str | Sequence[int | str] | None


class By(StrEnum):
    """How a number comes from a column of the rows. ``rows``: in another way, but from these rows."""

    ROWS = "rows"
    COUNT = "count"
    SUM = "sum"
    MEAN = "mean"
    MEDIAN = "median"
    MAX = "max"


class Query(Struct, frozen=True):
    """Rows of a data frame of the run (``diag.tables.frames.COLUMNS``).

    ``where``: what their columns are: a value, one of the values of a list, or null. A name that ends in " <" or " >="
    gives a bound instead. ``column`` and ``by``: how the number comes from them. It is divided by the number of
    distinct values of the columns ``per`` in the whole frame, or by the sum of the column ``of`` over the rows.
    """

    frame: str
    where: Mapping[str, Value] = {}
    column: str = ""
    by: By = By.ROWS
    per: tuple[str, ...] = ()
    of: str = ""
