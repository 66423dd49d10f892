"""Reading one trace file: what is in it to the nanosecond, and one clear sentence for a file that is not whole."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from diag.errors import DiagError
from diag.traces.kineto import read_trace
from diag.traces.kineto_names import category, collective_op, dtype_bytes, parse_ranks, rank_from_name, rank_from_path
from tests.account.kineto_builder import serialised

OP = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}


def write(folder: Path, text: str, name: str = "t.json") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def document(*events: dict[str, Any], **header: Any) -> str:
    return json.dumps({**header, "traceEvents": list(events)})


def test_header_and_events(tmp_path: Path) -> None:
    text = document(
        {**OP, "cat": "kernel", "pid": 0, "tid": 7, "args": {"correlation": 5, "stream": "7", "device": 0}},
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0, "args": {"name": "python"}},
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "x", "ts": 0, "dur": 9},
        distributedInfo={"rank": 3, "world_size": 8, "backend": "nccl", "pg_config": {"0": [3, 4]}},
        host_name="node-a", deviceProperties=[{"name": "H200"}], baseTimeNanoseconds=1000,
    )  # fmt: skip
    path = write(tmp_path, text)
    trace = read_trace(path)
    assert (trace.rank, trace.world_size, trace.backend, trace.host) == (3, 8, "nccl", "node-a")
    assert (trace.device_names, trace.groups, trace.base_ns, trace.has_gpu) == (("H200",), {"0": (3, 4)}, 1000, True)
    row = trace.events.row(0, named=True)
    assert len(trace.events) == 1
    assert (row["ts_ns"], row["dur_ns"], trace.threads[row["thread"]][1], row["correlation"], row["stream"]) == (
        2000,
        2000,
        "7",
        5,
        7,
    )


@pytest.mark.parametrize(
    ("ts", "base", "expected"),
    [
        ("1712195495519689.047", 0, 1712195495519689047),  # a float64 of this is 47 ns off
        ("4458676522690.655", 1711964646000000000, 1716423322522690655),
        ("1661203462598738", 0, 1661203462598738000),
        ("1e3", 0, 1_000_000),
        ("-2.5", 10_000, 7_500),
    ],
)
def test_times_are_exact(tmp_path: Path, ts: str, base: int, expected: int) -> None:
    text = document(OP, baseTimeNanoseconds=base).replace('"ts": 1,', f'"ts": {ts},')
    assert read_trace(write(tmp_path, text)).events["ts_ns"].to_list() == [expected]


def test_events_without_a_time_are_left_out_and_counted(tmp_path: Path) -> None:
    odd = [{**OP, "ts": value} for value in (None, "soon", {"a": 1}, 1e300)]
    trace = read_trace(write(tmp_path, document(OP, *odd, {**OP, "ts": 5, "dur": -1})))
    assert trace.events["dur_ns"].to_list() == [2000, 0]
    assert trace.gaps == ("left out 4\u00a0events without a readable start time",)


def test_parents_come_before_their_children(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, document({**OP, "ts": 3}, {**OP, "name": "b"}, {**OP, "name": "a", "dur": 9})))
    assert trace.events["name"].to_list() == ["a", "b", "aten::mm"]


def test_old_categories_read_as_new_ones(tmp_path: Path) -> None:
    cats = {
        "Operator": "cpu_op",
        "Runtime": "cuda_runtime",
        "Kernel": "kernel",
        "Memcpy": "gpu_memcpy",
        "Memset": "gpu_memset",
    }
    assert {old: category(old) for old in cats} == cats
    trace = read_trace(
        write(tmp_path, document({**OP, "cat": "Operator", "name": "ProfilerStep#3"}, {**OP, "cat": "Kernel", "ts": 2}))
    )
    assert trace.events["cat"].to_list() == ["user_annotation", "kernel"]
    assert trace.has_gpu


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ([{"pg_name": "0", "ranks": "[0, 1]"}], {"0": (0, 1)}),
        ({"dp": {"ranks": [1, 3]}, "tp": [0, 1]}, {"dp": (1, 3), "tp": (0, 1)}),
        ('[{"pg_name": "7", "ranks": "2,3"}]', {"7": (2, 3)}),
        ([{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": []}], {"0": (0, 1)}),
        ([{"pg_name": "0", "ranks": "[0, 1, ..., 63]"}], {"0": ()}),
        (None, {}), ("nonsense", {}), (7, {}), ([7, {}], {}),
    ],
)  # fmt: skip
def test_process_groups_of_any_shape(tmp_path: Path, config: Any, expected: dict[str, tuple[int, ...]]) -> None:
    trace = read_trace(write(tmp_path, document(OP, distributedInfo={"pg_config": config})))
    assert trace.groups == expected


def test_ranks_of_a_list() -> None:
    assert parse_ranks("[0, 12]") == (0, 12)
    assert parse_ranks([1, "x"]) == ()
    assert parse_ranks(None) == ()


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank-3.json", 3), ("rank3.json.gz", 3), ("worker12.pt.trace.json", 12), ("Rank_007.json", 7),
        ("traceRank3.json", 3), ("RANK=5.json", 5), ("worker0_step_12.1694128201545.pt.trace.json", 0),
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", 34), ("rank3_trace_8.json", 3), ("bs_32_rank0.json.gz", 0),
        ("capture_trace_rank_0_annotation_iteration_1_execute_1_256x256.json.gz", 0), ("node1_rank_9.json", 9),
        # parallel axes
        ("1782841132.2905657-TP-3-DECODE.trace.json.gz", 3), ("17-TP-0-PP-0.trace.json.gz", 0),
        ("17-TP-3-EP-3.trace.json.gz", 3), ("17-TP-0-PP-1.trace.json.gz", None), ("17-TP-3-DP-3.json.gz", None),
        ("dp0_pp0_tp3_dcp0_ep3_rank11.1764000000000.pt.trace.json.gz", 11), ("x_tp_rank_2.json", 2),
        ("x_tp_rank_2_pp_rank_1.json", None), ("tp8.json", None), ("llama_tp8_rank5.json", 5),
        ("local_rank_2.json", 2), ("node1_local_rank_2.json", None),
        # numbers of something else
        ("trace_3.json", None), ("node1_783658.1669783687.pt.trace.json", None), ("trace.json", None),
        ("trace-step000100.json.gz", None), ("rank99999999999999.json", None), ("batch_size_512.json", None),
        ("step_based_trace_2543932.json.gz", None), ("lora_rank_16.json", None), ("lora-rank16_rank2.json", 2),
        ("num_workers_4.json", None), ("num_workers_4_worker2.json", 2), ("rank_0_to_rank_3.json", None),
        ("http-2.json", None), ("frank2.json", None), ("lowrank8.json", None),
    ],
)  # fmt: skip
def test_rank_from_the_file_name(name: str, rank: int | None) -> None:
    assert rank_from_name(name) == rank


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("run/rank_3/trace.json", 3), ("a.tar.gz!run/rank3/trace.json", 3), ("run/rank_3/rank_5.json", 5),
        ("s3://bucket/rank7/trace.json", 7), ("rank3", 3), ("run_rank3_of_8/trace.json", None), ("3/trace.json", None),
        ("rank3/deeper/trace.json", None), (r"C:\run\rank-2\trace.json", 2),
    ],
)  # fmt: skip
def test_rank_from_the_folder(path: str, rank: int | None) -> None:
    assert rank_from_path(path) == rank


def test_the_header_knows_the_rank_better_than_the_name(tmp_path: Path) -> None:
    assert read_trace(write(tmp_path, document(OP, distributedInfo={"rank": 1}), "rank-5.json")).rank == 1
    assert read_trace(write(tmp_path, document(OP), "rank-5.json")).rank == 5
    assert read_trace(write(tmp_path, document(OP, distributedInfo={"rank": "x"}), "a.json")).rank is None


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("allreduce", "all_reduce"), ("_allgather_base", "all_gather"), ("_reduce_scatter_base", "reduce_scatter"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgs)", "all_gather"), ("all_to_allv", "all_to_all"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "send_recv"), ("c10d::broadcast_", "broadcast"),
        ("reduce", "reduce"), ("ncclDevKernel_Generic", "unknown"),
    ],
)  # fmt: skip
def test_operations(name: str, op: str) -> None:
    assert collective_op(name) == op


def test_element_sizes() -> None:
    assert [dtype_bytes(d) for d in ("Float", "c10::BFloat16", "long int", "unsigned char", None, "?")] == [
        4,
        2,
        8,
        1,
        0,
        0,
    ]


WHOLE = document(*([OP] * 200))
BAD: list[tuple[str, bytes, str]] = [
    ("empty", b"", "the file is empty"),
    ("blank", b" \n\n ", "the file is empty"),
    ("truncated gzip", gzip.compress(WHOLE.encode())[:-9], "gzip stream ends early"),
    ("gzip header only", gzip.compress(b"")[:6], "gzip stream ends early"),
    ("damaged gzip", gzip.compress(WHOLE.encode())[:10] + b"\xff" * 40, "gzip stream is damaged"),
    ("empty gzip", gzip.compress(b""), "the file is empty"),
    ("truncated JSON", WHOLE.encode()[:-20], "JSON ends early"),
    ("not JSON", b"step 1 loss 2.3", "not JSON"),
    ("trailing bytes", WHOLE.encode() + b"}", "not JSON"),
    ("object", b'{"a": 1}', "not a Kineto trace"),
    ("list", b"[1, 2]", "not a Kineto trace"),
    ("number", b"7", "not a Kineto trace"),
    ("odd events", b'{"traceEvents": [{"ph": "X", "name": ["a"]}]}', "not a Kineto trace"),
    ("latin-1", WHOLE.replace("aten::mm", "caf\u00e9").replace("\\u00e9", "\u00e9").encode("latin-1"), "not UTF-8"),
    ("UTF-16", WHOLE.encode("utf-16"), "not UTF-8"),
    ("nested", b'{"a": ' + b"[" * 200_000, "nested too deeply"),
    ("nested args", b'{"traceEvents": [{"ph": "X", "args": {"a": ' + b"[" * 200_000, "nested too deeply"),
    ("no events", b'{"traceEvents": []}', "no event with a duration"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "reason"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_files_are_named_with_their_reason(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "rank-4.json"
    path.write_bytes(data)
    with pytest.raises(DiagError) as caught:
        read_trace(path)
    assert reason in caught.value.message
    assert "rank-4.json" in caught.value.message
    assert caught.value.path == str(path)
    assert caught.value.hint


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.json", tmp_path):
        with pytest.raises(DiagError, match="cannot be read") as caught:
            read_trace(path)
        assert caught.value.hint == "Check the path and its permissions."


def test_a_truncated_gzip_can_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rank-4.json.gz"
    path.write_bytes(gzip.compress(WHOLE.encode())[:-9])
    with pytest.raises(DiagError) as caught:
        read_trace(path)
    hint = "Record the trace again, or leave this file out; the other ranks can be analysed without it."
    assert caught.value.hint == hint


def test_every_cut_of_a_file_is_an_error_or_the_whole(tmp_path: Path) -> None:
    text = document(OP, {**OP, "args": {"Collective name": "allreduce", "Input Dims": [[1, 2]]}}).encode()
    path = tmp_path / "t.json"
    for length in range(len(text)):
        path.write_bytes(text[:length])
        with pytest.raises(DiagError):
            read_trace(path)


def test_bare_infinities_of_kineto_are_read(tmp_path: Path) -> None:
    text = document({**OP, "args": {"memory bandwidth (GB/s)": 1, "x": 2}}).replace(': 1, "x": 2', ': inf, "x": -nan')
    assert len(read_trace(write(tmp_path, text)).events) == 1


@pytest.mark.parametrize("closing", ["]", " ]\n\n", "", ",\n"], ids=["closed", "blanks", "open", "a comma"])
@pytest.mark.parametrize("style", ["compact", "indented", "kineto"])
def test_a_bare_array_of_events(tmp_path: Path, style: str, closing: str) -> None:
    """The other form of Chrome's format, in one chunk and in several."""
    for count in (3, 900):
        events = [
            {**OP, "name": f"{i} x", "ts": i, "args": {"External id": i, "Of ours": "x" * 15_000}} for i in range(count)
        ]
        if style == "kineto":
            text = serialised({}, events, "kineto")
            text = text[text.index("[") :].rstrip().removesuffix("}").rstrip()
        else:
            text = json.dumps(events, indent=2 if style == "indented" else None)
        path = write(tmp_path, "\ufeff\n" * (count == 3) + text.removesuffix("]").rstrip() + closing)
        trace = read_trace(path)
        assert trace.events["ts_ns"].to_list() == [1000 * i for i in range(count)]
        assert trace.stored.names[count - 1].startswith(f"{count - 1} x")
        assert [("closing bracket" in gap) for gap in trace.gaps] == ([] if "]" in closing else [True])
    assert count * 15_000 > 8 << 20


def test_gzip_is_known_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + WHOLE.encode()))
    assert len(read_trace(path).events) == 200
