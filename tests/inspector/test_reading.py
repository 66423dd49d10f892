"""NCCL Inspector's files in every version, whole and damaged."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from diag.rundir.durations import DurationRecords
from diag.rundir.inspector import read_inspector
from diag.rundir.inspector_files import alone
from tests.inspector.files import EPOCH_US, collective, header, lines, metadata, write_job

# A record that a training on three nodes left (NCCL 2.28; from the tests of Datadog's agent).
REAL = (
    '{"header":{"id":"0xad56c683b0c4ef","rank":1,"n_ranks":3,"nnodes":3},"metadata":{"inspector_output_format_version":'
    '"v4.0","git_rev":"standalone-build","hostname":"worker-0","pid":48,"dump_timestamp_us":1772585717263338},'
    '"coll_perf":{"coll":"AllReduce","coll_sn":8995,"coll_msg_size_bytes":2360832,"coll_exec_time_us":5663.0,'
    '"coll_timing_source":"kernel_gpu","coll_algobw_gbs":0.416887,"coll_busbw_gbs":0.555850}}\n'
)
# Samples in the forms of NCCL 2.29 and of RCCL, which has one more label.
PROMETHEUS = """# HELP nccl_bus_bandwidth_gbs NCCL bus bandwidth in GB/s
# TYPE nccl_bus_bandwidth_gbs gauge
nccl_bus_bandwidth_gbs{version="v5.1",slurm_job_id="7",node="n0",gpu="GPU0",comm_name="DP",n_nodes="1",nranks="2",collective="AllReduce",message_size="1-2MB",algo_proto="RING_LL"} 123.5
nccl_collective_exec_time_microseconds{version="v5.1",slurm_job_id="7",node="n0",gpu="GPU0",comm_name="DP",n_nodes="1",nranks="2",collective="AllReduce",message_size="1-2MB",algo_proto="RING_LL"} 456
nccl_collective_exec_time_microseconds{version="v5.1",cluster="c",slurm_job_id="7",node="n0",gpu="GPU1",comm_name="DP",n_nodes="1",nranks="2",collective="AllReduce",message_size="1-2MB",algo_proto="RING_LL"} 58.8652
nccl_p2p_exec_time_microseconds{version="v5.1",slurm_job_id="7",node="n0",gpu="GPU0",comm_name="unknown",n_nodes="1",nranks="64",p2p_operation="Recv",message_size="512-513KB"} 92.5781
nccl_collectives_total{version="v5.1",slurm_job_id="7",node="n0",gpu="GPU0"} 12
"""  # noqa: E501


def read(folder: Path, text: str | bytes, name: str = "host-pid1.log") -> DurationRecords:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert alone([folder]) == [path]
    return read_inspector([path])


def test_a_real_record(tmp_path: Path) -> None:
    found = read(tmp_path, REAL)
    (row,) = found.rows.to_dicts()
    assert row == {
        "process": 0, "seq": 8995, "bytes": 2360832, "duration_ns": 5_663_000, "end_ns": None,
        "dumped_ns": 1772585717263338_000, "peer": -1, "group": "0xad56c683b0c4ef", "op": "all_reduce",
    }  # fmt: skip
    (process,) = found.processes
    assert (process.host, process.pid, process.communicators) == ("worker-0", 48, {"0xad56c683b0c4ef": (1, 3)})
    assert found.gaps == ()


@pytest.mark.parametrize("version", ["v4.0", "v4.2", "v4.3"])
@pytest.mark.parametrize("packed", [False, True])
def test_every_version_holds_the_same(tmp_path: Path, version: str, packed: bool) -> None:
    records = [collective(number, 100 + number) for number in range(3)]
    text = lines(version, header("0xa", 0, 2), metadata(version, "h", 7), records).encode()
    text += lines(version, header("0xb", 1, 4), metadata(version, "h", 7), records[:1]).encode()
    found = read(tmp_path, gzip.compress(text) if packed else text)
    assert found.gaps == ()
    assert found.rows["group"].to_list() == ["0xa", "0xa", "0xa", "0xb"]
    assert found.rows["duration_ns"].to_list() == [100_000, 101_000, 102_000, 100_000]
    assert found.processes[0].communicators == {"0xa": (0, 2), "0xb": (1, 4)}


@pytest.mark.parametrize(("algobw", "full"), [(4 * 10.0, 4 << 20), (10.0, 1 << 20), (0.0, 4 << 20)])
def test_the_full_tensor_of_an_all_gather(tmp_path: Path, algobw: float, full: int) -> None:
    """By the bandwidth, which rests on it; without one, what every rank contributes, times the ranks."""
    took = (1 << 20) / 10_000  # microseconds of 1 MiB at 10 GB/s
    record = collective(1, took, "AllGather", 1 << 20, coll_algobw_gbs=algobw)
    found = read(tmp_path, lines("v4.0", header("0xa", 0, 4), metadata("v4.0", "h", 7), [record]))
    assert (found.rows["op"][0], found.rows["bytes"][0]) == ("all_gather", full)


def test_sends_and_verbose_records(tmp_path: Path) -> None:
    context = {"header": header("0xa", 0, 2), "metadata": metadata("v4.2", "h", 7)}
    sent = {"p2p": "Send", "p2p_sn": 4, "p2p_peer": 1, "p2p_msg_size_bytes": 9000, "p2p_exec_time_us": 20}
    times = {"coll_start_ts": EPOCH_US, "coll_stop_ts": EPOCH_US + 90, "kernel_events": [{"channel_id": 0}]}
    verbose = collective(1, 80, event_trace_sn={"coll_start_sn": 1}, event_trace_ts=times)
    proxy = {"record_type": "proxy_op", "rank": 0}
    records = [{"p2p_perf": sent}, {"coll_perf": verbose}, {"proxy_trace": proxy}]
    found = read(tmp_path, "".join(json.dumps({**context, **record}) + "\n" for record in records))
    assert found.gaps == ()
    assert found.rows.select("op", "seq", "peer").rows() == [("send", 4, 1), ("all_reduce", 1, -1)]
    assert found.rows["end_ns"].to_list() == [None, (EPOCH_US + 90) * 1000]


def test_dropped_records_are_counted_once_a_communicator(tmp_path: Path) -> None:
    about, by = header("0xa", 0, 2), metadata("v4.2", "h", 7)
    text = lines("v4.2", about, by, [collective(1, 9)], coll_dropped_total=5)
    text += lines("v4.2", about, by, [collective(9, 9)], coll_dropped_total=12, p2p_dropped_total=1)
    assert read(tmp_path, text).dropped == 13


def test_prometheus_text_holds_means(tmp_path: Path) -> None:
    found = read(tmp_path, PROMETHEUS, "nccl_inspector_metrics_GPU-1.prom")
    assert found.means
    assert found.gaps == ()
    assert [(p.host, p.gpu) for p in found.processes] == [("n0", "GPU0"), ("n0", "GPU1")]
    columns = found.rows.select("group", "op", "bytes", "duration_ns").rows()
    assert columns == [
        ("DP of 2 ranks", "all_reduce", 1 << 20, 456_000),
        ("DP of 2 ranks", "all_reduce", 1 << 20, 58_865),
        ("unknown of 64 ranks", "recv", 512 << 10, 92_578),
    ]


@pytest.mark.parametrize(
    ("damage", "kept", "why"),
    [
        (lambda text: text[:-20], 2, "the last line is truncated"),
        (lambda text: text + b"\x00\xff\x00 not JSON\n" + b"[" * 200_000 + b"\n", 3, "2\u00a0invalid NCCL Inspector"),
        (lambda text: text.replace(b'"coll_sn":1', b'"coll_sn":"one"'), 2, "1\u00a0invalid"),
        (lambda text: text.replace(b'"coll_sn":1', b'"coll_sn":99999999999999999999999'), 2, "1\u00a0invalid"),
        (lambda text: text.replace(b'"coll_exec_time_us":101', b'"coll_exec_time_us":-1e300'), 2, "1\u00a0invalid"),
        (lambda text: text + b'{"coll_perf":' + json.dumps(collective(3, 1)).encode() + b"}\n", 3, "a communicator"),
        (lambda text: gzip.compress(text)[:-30], 0, "cannot be read to the end"),
    ],
)  # fmt: skip
def test_what_is_damaged_is_a_gap(tmp_path: Path, damage: object, kept: int, why: str) -> None:
    records = [collective(number, 100 + number) for number in range(3)]
    text = lines("v4.0", header("0xa", 0, 2), metadata("v4.0", "h", 7), records).encode()
    found = read(tmp_path, damage(text))  # type: ignore[operator]
    assert why in " ".join(gap.reason for gap in found.gaps)
    assert len(found.rows) >= kept


def test_a_version_4_3_dump_ends_with_the_next_line_of_statistics(tmp_path: Path) -> None:
    """One without a header belongs to nobody, and so do the records behind it."""
    good = lines("v4.3", header("0xa", 0, 2), metadata("v4.3", "h", 7), [collective(1, 9)])
    lost = '{"dump_stats":{"coll_records":1}}\n' + json.dumps({"coll_perf": collective(2, 9)}) + "\n"
    found = read(tmp_path, good + lost)
    assert found.rows["seq"].to_list() == [1]
    assert [gap.reason for gap in found.gaps] == ["1\u00a0record without a communicator header; left out"]


def test_a_file_that_inflates_to_lines_that_are_no_records_is_a_gap(tmp_path: Path) -> None:
    """4 MB of newlines inflated for minutes."""
    found = read(tmp_path, gzip.compress(REAL.encode() + b"\n" * 1_000_000 + REAL.encode()))
    assert len(found.rows) == 1
    assert "are no records" in found.gaps[0].reason


def test_a_gzip_header_without_end_does_not_stop_the_others(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.log", tmp_path / "bad.log.gz"
    good.write_text(REAL)
    bad.write_bytes(b"\x1f\x8b\x08\x08" + bytes(6) + b"a" * 600_000)
    found = read_inspector([bad, good])
    assert len(found.rows) == 1
    assert [gap.path for gap in found.gaps] == [str(bad)]


def test_what_is_not_inspector_s(tmp_path: Path) -> None:
    other = tmp_path / "train.log"
    other.write_text("step 1 loss 2.0\n")
    assert alone([tmp_path]) == []
    write_job(tmp_path / "job", {"0xa": (0, 1)}, lambda *_: 10, count=2)
    assert len(alone([tmp_path])) == 2
    (tmp_path / "rank0.json").write_text('{"traceEvents": []}')
    assert alone([tmp_path]) == [], "a trace holds more"
    assert alone([tmp_path / "nothing"]) == []


def test_a_copied_file_counts_once(tmp_path: Path) -> None:
    write_job(tmp_path, {"0xabc": (0, 1)}, lambda number, rank, ranks: 100.0)
    once = read_inspector(sorted(tmp_path.rglob("*.log")))
    first = next(tmp_path.rglob("*.log"))
    first.with_name("copy.log").write_bytes(first.read_bytes())
    twice = read_inspector(sorted(tmp_path.rglob("*.log")))
    assert len(twice.rows) == len(once.rows) > 0
    assert "twice, as in copied files" in twice.gaps[0].reason
