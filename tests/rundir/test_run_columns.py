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
from diag.rundir.lines import each_piece, read_lines
from diag.rundir.policy import RUN_READING
from diag.rundir.step_lines import RowsReader
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
    everything = np.arange(len(records))
    assert columns.take(everything) is columns.take(everything >= 0) is columns[:] is columns
    assert columns.take(everything[::-1]) == records[::-1]


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


HUGE = [3 * 10**18, -3 * 10**18, 2**63, -(2**63), 10**30]


@pytest.mark.parametrize("huge", HUGE)
def test_a_line_with_a_number_that_does_not_fit_is_left_out_alone(tmp_path: Path, huge: int) -> None:
    file = tmp_path / "run/ranks/00000/steps.jsonl"
    file.parent.mkdir(parents=True)
    fields = [
        '"phases":[]',
        f'"phases":[["data",{huge},5]]',
        f'"phases":[],"gc":[[0,{huge}]]',
        f'"phases":[],"tokens":{huge}',
        f'"phases":[],"loss":{float(huge)}', f'"phases":[],"memory":{{"rss":{huge}}}', '"phases":[],"window":"last"',
        f'"phases":[],"window":"no","held":{{"parameters":1,"gradients":{huge},"optimizer":3}}',
    ]  # fmt: skip
    lines_of_file = [f'{{"step":{at},"begin_ns":0,"end_ns":9,{rest}}}\n' for at, rest in enumerate(fields)]
    file.write_text("".join(lines_of_file))
    builder = StepsBuilder()
    gaps = each_piece(file, StepRecord, builder.add, checks=True)
    steps = builder.built()
    assert steps.step.tolist() == [0, 6]
    assert "no" not in steps.names
    assert [gap.reason for gap in gaps] == ["invalid collector records on 6 of 8 lines; left out"]


@pytest.mark.parametrize("huge", HUGE)
def test_collectives_with_a_number_that_does_not_fit_are_left_out_alone(tmp_path: Path, huge: int) -> None:
    file = tmp_path / "run/ranks/00000/collectives.jsonl"
    file.parent.mkdir(parents=True)
    row = '["0",1,"barrier",4,"float32",1,2,null,null]'
    odd = f'["odd",1,"barrier",4,"float32",1,{huge},null,null]'
    rest = ["", f',"dropped":{huge}', f',"groups":{{"0":[{huge}]}}', ""]
    file.write_text(
        "".join(f'{{"step":{at},"rows":[{row}{"" if at else "," + odd}]{more}}}\n' for at, more in enumerate(rest))
    )
    reader = RowsReader()
    gaps = each_piece(file, CollectiveLine, reader.take, checks=True)
    read = reader.read(file, gaps)
    assert (read.rows.step.tolist(), read.groups, read.dropped) == ([3], {}, 0)
    assert "odd" not in read.rows.names
    assert [gap.reason for gap in gaps] == ["invalid collector records on 3 of 4 lines; left out"]
