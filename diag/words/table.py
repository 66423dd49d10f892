"""A table as every front end shows it: the terminal, a notebook, the HTML report, the dashboard, a data frame.

A table holds values. Its columns say how they are written, so that a number has the same digits wherever it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from .formatting import begun, duration, number, share, size, visible
from .policy import TERMINAL

if TYPE_CHECKING:
    import polars as pl

UNKNOWN = "-"  # a cell without a known value


class Unit(Struct, frozen=True):
    """How values of a column are stored and written.

    ``name``: the unit of the stored value, "" without one. ``text``: writes a known value. ``type``: of polars, by its
    name. ``is_number``: it is aligned to the right, and never cut. ``symbol``: the unit of the text where the text does
    not name it. ``per``: the stored values in one of what a sortable column of the dashboard shows, in ``symbol``;
    ``format``: Streamlit's format of that number."""

    name: str
    text: Callable[[Any], str]
    type: str = "Int64"
    is_number: bool = True
    symbol: str = ""
    per: float = 1
    format: str = "localized"


TEXT = Unit("", str, "String", is_number=False)
TEXT_RIGHT = Unit("", str, "String")  # several numbers
FLAG = Unit("", lambda value: "yes" if value else "no", "Boolean", is_number=False)
INDEX = Unit("", str)  # the number of a rank or of a step
CLOCK = Unit("ns", "{:,}".format)  # a moment, on the clock that the table names
INDICES = Unit("", lambda values: ", ".join(map(str, values)), "List(Int64)", is_number=False)
COUNT = Unit("", "{:,}".format)
WHOLE = Unit("", "{:,.0f}".format, "Float64")
NUMBER = Unit("", number, "Float64", format="%.3g")
MEAN_COUNT = Unit("", lambda value: f"{value:,.2f}".rstrip("0").rstrip("."), "Float64", format="%.4g")
RATIO = Unit("", "{:.2f}".format, "Float64", format="%.2f")
SHARE = Unit("fraction", share, "Float64", format="percent")
PRECISE_SHARE = Unit("fraction", lambda value: share(value, digits=1), "Float64", format="percent")
SIZE = Unit("bytes", size, per=1e3, symbol="kB")
MB = Unit("bytes", lambda count: f"{count / 1e6:,.1f}", symbol="MB", per=1e6, format="%.1f")
GB = Unit("bytes", lambda count: f"{count / 1e9:,.2f}", symbol="GB", per=1e9, format="%.3f")
DURATION = Unit("ns", duration, per=1e6, symbol="ms", format="%.3f")
MS = Unit("ns", lambda ns: number(ns / 1e6), symbol="ms", per=1e6, format="%.3f")
TENTHS_OF_MS = Unit("ns", lambda ns: f"{ns / 1e6:,.1f}", symbol="ms", per=1e6, format="%.1f")
HUNDREDTHS_OF_MS = Unit("ns", lambda ns: f"{ns / 1e6:,.2f}", symbol="ms", per=1e6, format="%.2f")
THOUSANDTHS_OF_MS = Unit("ns", lambda ns: f"{ns / 1e6:,.3f}", symbol="ms", per=1e6, format="%.3f")
US = Unit("ns", lambda ns: number(ns / 1e3), symbol="µs", per=1e3, format="%.1f")
MOMENT = Unit("", "{:%Y-%m-%d %H:%M}".format, "Datetime", is_number=False)  # a datetime
SECONDS = Unit("s", number, "Float64", symbol="s", format="%.3g")
GB_S = Unit("GB/s", number, "Float64", symbol="GB/s", format="%.3g")
TFLOP_S = Unit("TFLOP/s", number, "Float64", symbol="TFLOP/s", format="%.3g")
_NAMES_ITS_UNIT = (SIZE, DURATION)  # in the text


class Column(Struct, frozen=True):
    """``id``: its name in a data frame. ``label``: what it is called, "" if the unit's symbol says it; None for the
    words of the id. ``meaning``: a sentence. ``long``: names of any length, which a narrow terminal may cut.
    ``weight``: where not all columns have room, those with the least one are left out first; 0 is always shown."""

    id: str
    unit: Unit = TEXT
    meaning: str = ""
    label: str | None = None
    long: bool = False
    weight: int = 1

    @property
    def name(self) -> str:
        return self.id.replace("_", " ") if self.label is None else self.label

    @property
    def sortable_heading(self) -> str:
        """The heading over numbers without their units: ``Transfer, ms``."""
        return begun(", ".join(filter(None, (self.name, self.unit.symbol))))


class Cell(Struct, frozen=True):
    """A value that is not written as its column's unit has it: a bound, or with another number behind it."""

    value: Any
    text: str


class Table(Struct, frozen=True):
    """``name``: for programs. ``rows``: a value, None or a `Cell` for each column. ``notes``: sentences about it.
    ``symbol``: a unit that the title names, so that headings do not. ``left_out``: how many rows more there are.
    ``at_fault``: the places of the rows that the verdict names. ``noun``: what a row is, for ``more``."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    notes: tuple[str, ...] = ()
    symbol: str = ""
    left_out: int = 0
    at_fault: frozenset[int] = frozenset()
    noun: str = ""

    def heading(self, column: Column) -> str:
        """``transfer``, or ``bus GB/s`` with the unit of the numbers below it."""
        symbol = column.unit.symbol
        named = column.unit in _NAMES_ITS_UNIT or symbol == self.symbol
        return " ".join(filter(None, (column.name, "" if named else symbol)))

    @property
    def headings(self) -> tuple[str, ...]:
        return tuple(map(self.heading, self.columns))

    def capital(self, column: Column) -> str:
        """The heading with a capital letter, for pages."""
        return begun(self.heading(column))

    @property
    def more(self) -> str:
        """How many rows are left out, in words; "" without any."""
        if not self.left_out:
            return ""
        of = f" {self.noun}{'s' if self.left_out > 1 else ''}" if self.noun else ""
        return f"… and {self.left_out:,} more{of}."

    def texts(self, unknown: str = UNKNOWN) -> tuple[tuple[str, ...], ...]:
        """The rows as text."""
        return tuple(
            tuple(written(column, value, unknown) for column, value in zip(self.columns, row, strict=True))
            for row in self.rows
        )

    def values(self, id: str) -> list[Any]:
        """The values of one column, without the texts of its cells."""
        place = [column.id for column in self.columns].index(id)
        return [_plain(row[place]) for row in self.rows]

    def plain(self) -> Table:
        """The table with the values of its cells, without their texts."""
        return replace(self, rows=tuple(tuple(map(_plain, row)) for row in self.rows))

    def known(self) -> Table:
        """The table without the columns that have no known value."""
        return self.only(
            column.id
            for place, column in enumerate(self.columns)
            if any(row[place] is not None and row[place] != "" for row in self.rows) or not self.rows
        )

    def without_zeros(self) -> Table:
        """The table without the less important columns in which every number is written as zero."""
        zero = {
            column.id
            for place, column in enumerate(self.columns)
            if self.rows and all(self._is_zero(column, row[place]) for row in self.rows)
        }
        return self.only(
            column.id
            for column in self.columns
            if column.id not in zero or not column.unit.is_number or not 0 < column.weight <= TERMINAL.may_go_weight
        )

    def _is_zero(self, column: Column, value: Any) -> bool:
        return not _plain(value) or (column.unit.is_number and written(column, value) == column.unit.text(0))

    def only(self, ids: Iterable[str]) -> Table:
        """The table with these columns, in this order."""
        places = {column.id: place for place, column in enumerate(self.columns)}
        chosen = [places[id] for id in ids]
        return replace(
            self,
            columns=tuple(self.columns[place] for place in chosen),
            rows=tuple(tuple(row[place] for place in chosen) for row in self.rows),
        )

    def frame(self) -> pl.DataFrame:
        """The values as a data frame: a column for each, named by its id."""
        return data_frame(self.columns, (dict(zip(self._ids, map(_plain, row), strict=True)) for row in self.rows))

    @property
    def _ids(self) -> list[str]:
        return [column.id for column in self.columns]


def table_of(
    name: str,
    title: str,
    columns: Mapping[Column, Sequence[Any]],
    notes: Iterable[str] = (),
    symbol: str = "",
    left_out: int = 0,
    noun: str = "",
    at_fault: frozenset[int] = frozenset(),
) -> Table:
    """The table of these columns, each with its values. Empty notes are left out."""
    rows = tuple(zip(*columns.values(), strict=True))
    return Table(
        name, title, tuple(columns), rows, tuple(filter(None, notes)), symbol, max(0, left_out), at_fault, noun
    )


def written(column: Column, value: Any, unknown: str = UNKNOWN) -> str:
    """A cell's text; ``unknown`` for None."""
    if isinstance(value, Cell):
        return value.text
    return unknown if value is None else column.unit.text(value)


def data_frame(columns: Collection[Column], rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """A data frame with exactly these columns; other keys of the rows are left out, missing ones are null."""
    import polars as pl

    taken = [{column.id: _stored(column, row.get(column.id)) for column in columns} for row in rows]
    return pl.DataFrame(taken, schema=schema_of(columns))


def _stored(column: Column, value: Any) -> Any:
    return round(value) if column.unit.type == "Int64" and isinstance(value, float) else value


def schema_of(columns: Collection[Column]) -> dict[str, pl.DataType]:
    import polars as pl

    types: dict[str, pl.DataType] = {
        "Int64": pl.Int64(), "Float64": pl.Float64(), "String": pl.String(), "Boolean": pl.Boolean(),
        "List(Int64)": pl.List(pl.Int64()), "Datetime": pl.Datetime(),
    }  # fmt: skip
    return {column.id: types[column.unit.type] for column in columns}


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(
        f"|{'|'.join(f' {visible(cell)} ' if cell != '---' else cell for cell in line)}|" for line in lines
    )


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Cell) else value
