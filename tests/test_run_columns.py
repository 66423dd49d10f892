"""Steps and collectives are read into columns, which are the records that the files hold."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.collectors.policy import RECORDED_FILES
from diag.collectors.records import CollectiveLine, CollectiveRow, MemoryRecord, PhaseRow, StepRecord
from diag.rundir import lines
from diag.rundir.columns import Rows, RowsBuilder, Steps, StepsBuilder
from diag.rundir.lines import read_lines
from diag.rundir.policy import RUN_READING
from diag.rundir.tables import RankTables

numbers = st.integers(-(10**18), 10**18)
names = st.sampled_from(["", "0", "data", "p2p 0>1", "ü"])
st.register_type_strategy(int, numbers)
st.register_type_strategy(str, names)
st.register_type_strategy(float, st.floats(-1e9, 1e9))
step_records = st.lists(st.builds(StepRecord, phases=st.lists(st.builds(PhaseRow), max_size=3)), max_size=9)
rows = st.lists(st.builds(CollectiveRow), max_size=9)


def checked(columns: Rows | Steps, records: list[StepRecord] | list[CollectiveRow], chosen: list[bool]) -> None:
    assert list(columns) == records
    assert columns == records
    assert columns != [*records, None]
    assert [columns[at] for at in range(len(records))] == records
    assert columns[1:-1:2] == records[1:-1:2]
    kept = [record for record, is_chosen in zip(records, chosen, strict=False) if is_chosen]
    mask = np.array(chosen[: len(records)], dtype=np.bool_)
    assert columns.take(mask) == columns.take(np.flatnonzero(mask)) == kept


@settings(deadline=None, max_examples=50)
@given(step_records, rows, st.lists(st.booleans(), min_size=9, max_size=9), st.integers(1, 9))
def test_columns_are_a_sequence_of_the_records(
    records: list[StepRecord], calls: list[CollectiveRow], chosen: list[bool], part: int
) -> None:
    steps, collectives = StepsBuilder(), RowsBuilder()
    for first in range(0, 9, part):  # as files are read
        steps.add(records[first : first + part])
        collectives.add_lines([CollectiveLine(first + at, [row]) for at, row in enumerate(calls[first : first + part])])
    checked(steps.built(), records, chosen)
    built = collectives.built()
    checked(built, calls, chosen)
    assert built.step.tolist() == list(range(len(calls)))


def test_tables_of_a_rank_make_columns_of_its_records() -> None:
    step = StepRecord(3, 0, 9, [PhaseRow("data", 0, 5)], memory=MemoryRecord(7))
    row = CollectiveRow("0", 0, "all_reduce", 4, "float32", 1, None, None, None)
    tables = RankTables(0, steps=(step,), rows=(row,))
    assert (tables.steps.numbers, tables.steps[0], tables.rows[-1]) == ({3}, step, row)
    assert tables == RankTables(0, steps=[step], rows=[row])
    with pytest.raises(IndexError):
        tables.rows[1]


LINE = b'{"step":%d,"rows":[["0",0,"all_reduce",4,"float32",1,2,1,2,true,null]]}\n'
DAMAGE = [
    b"",
    b"\n",
    b"  \n",
    b"{}\n",
    b"[]\n",
    b'{"step":1,\n"rows":[]}\n',  # a record of two lines
    b'{"step":1,"rows":[]} {"step":2,"rows":[]}\n',  # two records on a line
    b'{"step":1,"rows":[],"groups":{}}{"step":2,"rows":[]}\n{"step":\n',
    b'{"step":1,"rows":[["0",0,"all_reduce",4,"float32",99999999999999999999,2,1,2,true,null]]}\n',
    b'{"step":1,"rows":[["0",0,"all_reduce",4,"float32",1,2,1,2,true,null,1]]}\n',
    b'{"step":1,"rows":[],"other":1e999}\n',
    b'{"step":1,"rows":[],"other":' + b"[" * 50_000 + b"}\n",
    b'{"step":1,"rows":[],"other":"\xff"}\n',
    b'{"step":1,"rows":[],"other":"' + b"x" * 500 + b'"}\n',
    b'{"step":1,"rows":[]',
]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.one_of(st.integers(0, 9).map(lambda at: LINE % at), st.sampled_from(DAMAGE)), max_size=8))
def test_lines_decoded_together_are_those_decoded_one_by_one(content: list[bytes]) -> None:
    """Records and gaps: damage in a piece of a file affects its line only."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder, "collectives.jsonl")
        path.write_bytes(b"".join(content))
        patch.setitem(vars(RECORDED_FILES), "line_bytes", 400)
        patch.setitem(vars(RUN_READING), "piece_bytes", 150)
        together = read_lines(path, CollectiveLine, path.parent)
        patch.setattr(lines, "_all_records", lambda *_: None)
        assert together == read_lines(path, CollectiveLine, path.parent)
        patch.setitem(vars(RUN_READING), "piece_bytes", 1 << 20)
        assert together == read_lines(path, CollectiveLine, path.parent)
