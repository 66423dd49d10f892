"""Files that are no trace of PyTorch's profiler: refused, with what they are."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from diag.api import open_run
from diag.errors import DiagError
from diag.traces.kineto import read_trace
from diag.traces.other_tools import tool_of
from tests.account.kineto_builder import LAYOUTS, KinetoBuilder, Layout
from tests.command import diag
from tests.traces.outcomes import is_plain, read


def event(name: str = "work", ph: str = "X", **keys: Any) -> dict[str, Any]:
    return {"ph": ph, "name": name, "pid": 1, "tid": 1, "ts": 1, **({"dur": 5} if ph == "X" else {}), **keys}


def process(name: str, pid: int = 1) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}


def chrome(*events: dict[str, Any], **header: Any) -> dict[str, Any]:
    return {**header, "traceEvents": [*events]}


# What it is, the file, and what the reason says.
FOREIGN: list[tuple[str, Any, str]] = [
    ("PyTorch ET", {"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [{"id": 2}]}, "a PyTorch execution trace"),
    ("rocprofv3", {"rocprofiler-sdk-tool": [{"metadata": {}}]}, "the output of rocprofv3"),
    ("memory snapshot", {"segments": [], "device_traces": [], "allocator_settings": {}}, "a CUDA memory snapshot"),
    ("Flight Recorder", {"version": "2.4", "pg_config": {}, "entries": []}, "Flight Recorder"),
    ("speedscope", {"$schema": "x", "shared": {"frames": []}, "profiles": []}, "a speedscope profile"),
    ("pyinstrument", {"root_frame": {}, "sample_count": 3, "duration": 1}, "a pyinstrument profile"),
    ("package.json", {"name": "x", "version": "1", "dependencies": {}}, "a package manifest"),
    ("model config", {"model_type": "llama", "architectures": ["L"]}, "a model configuration"),
    ("DeepSpeed config", {"train_batch_size": 8, "zero_optimization": {}}, "a DeepSpeed configuration"),
    ("a table", {"total_time_ms": 1, "idle_time_percent": 2}, "the keys total_time_ms, idle_time_percent"),
    ("many keys", {f"key{n}": n for n in range(9)}, "key5 and 3 more"),
    ("a list of tables", [{"cols": [], "rows": []}], "a list of objects with the keys cols, rows"),
    ("a list of names", ["a", "b"], "not a Kineto trace"),
    ("an empty list", [], "no event with a duration"),
    ("requests", [event(ph=ph, cat="resnet50", id="1") for ph in "bebe"], "of the phases b, e"),
    ("begins and ends", chrome(event(ph="B"), event(ph="E")), "of the phases B, E"),
    ("counters", chrome(process("power"), event(ph="C", args={"value": 1})), "of the phases C"),
    ("JAX", chrome(process("/device:TPU:0"), event("fusion.1"), displayTimeUnit="ns"), "XProf"),
    ("TensorFlow", chrome(process("/job:localhost/replica:0/task:0/device:GPU:0"), event("MatMul")), "TensorFlow"),
    ("Ascend", chrome(process("Ascend Hardware"), process("CANN", 2), event("MatMulV2")), "Ascend's profiler"),
    ("VizTracer", chrome(event(cat="FEE"), viztracer_metadata={}), "VizTracer"),
    ("py-spy", [event(cat="py-spy")], "py-spy"),
    ("ONNX Runtime", [event("run", cat="Session"), event("MatMul", cat="Node"), event(cat="Kernel")], "ONNX Runtime"),
    ("from Nsight Systems", [event("gemm", cat="cuda"), event(cat="cuda_api"), event(cat="nvtx")], "Nsight Systems"),
    ("PyTorch 1.7", [event("aten::mm", pid="CPU functions"), process("CPU functions")], "legacy autograd profiler"),
    ("rocprof", chrome(process("CPU HIP API"), event("hipLaunchKernel")), "rocprof"),
    ("unknown", chrome(event(cat="a"), event(cat="b")), "of the categories a, b"),
    ("without categories", chrome(event()), "without categories"),
]  # fmt: skip
RAW: list[tuple[str, bytes, str]] = [
    ("JSON Lines", b'{"header": 1, "metadata": {}}\n{"header": 2, "coll_perf": {}}\n', "JSON Lines, but not a Kineto"),
    ("Git LFS", b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "`git lfs pull`"),
    ("HTML", b"\n<!DOCTYPE html><html><body>404</body></html>", "an HTML or XML page"),
    ("XML", b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "an HTML or XML page"),
    ("SQLite", b"SQLite format 3\0" + bytes(200), "an SQLite database"),
    ("zip", b"PK\x03\x04" + bytes(200), "a zip archive"),
    ("zstd", b"\x28\xb5\x2f\xfd" + bytes(200), "zstd"),
    ("a large one that is no JSON", b"x" * 200_000, "not JSON: it begins with neither"),
]


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize(
    ("content", "said"),
    [(json.dumps(value).encode(), said) for _, value, said in FOREIGN] + [(data, said) for _, data, said in RAW],
    ids=[name for name, _, _ in FOREIGN] + [name for name, _, _ in RAW],
)
def test_the_reason_says_what_the_file_is(tmp_path: Path, content: bytes, said: str, compress: bool) -> None:
    path = tmp_path / "rank-4.json"
    path.write_bytes(gzip.compress(content) if compress else content)
    found = read(path)
    is_plain(found, path)
    assert said in found.error
    assert "\n" not in found.error
    if content[:1] in b"{[":
        assert "not JSON" not in found.error


def test_an_execution_trace_that_is_longer_than_a_header_may_be(tmp_path: Path) -> None:
    path = tmp_path / "et.json"
    node = json.dumps({"id": 1, "name": "aten::mm", "inputs": {"values": ["x" * 1000]}}).encode()
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"schema": "1.1.1-chakra.0.0.4", "nodes": [')
        for _ in range(70_000):
            file.write(node + b",\n")
        file.write(node + b"]}")
    with pytest.raises(DiagError, match="a PyTorch execution trace"):
        read_trace(path)


@pytest.mark.parametrize("category", ["kernel", "Operator", "xpu_runtime", "mtia_ccp_events", "python_function"])
def test_one_category_of_the_profilers_own_is_enough(tmp_path: Path, category: str) -> None:
    path = tmp_path / "rank-4.json"
    path.write_text(json.dumps(chrome(event(cat="mine"), event(cat=category))))
    assert len(read_trace(path).events) == 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_trace_of_the_profiler_without_work_is_not_called_another_tools(tmp_path: Path, layout: Layout) -> None:
    found = read(KinetoBuilder().framed().write(tmp_path, layout=layout))
    assert "no event with a duration" in found.error
    assert "longer window" in found.hint


# -- the command -------------------------------------------------------------------------------------------------------


def put(folder: Path, *names: str) -> None:
    for name in names:
        value = next(value for what, value, _ in FOREIGN if what == name)
        (folder / f"{name.split()[-1]}.json").write_text(json.dumps(value))


@pytest.mark.parametrize("names", [("requests",), ("PyTorch ET", "rocprofv3", "package.json", "JAX", "a table")])
def test_a_folder_without_a_trace_is_refused_in_one_line(tmp_path: Path, names: tuple[str, ...]) -> None:
    put(tmp_path, *names)
    ended = diag("analyze", tmp_path, "--json")
    assert (ended.returncode, ended.stderr) == (1, "")
    error = json.loads(ended.stdout)["error"]
    assert "\n" not in error["message"]
    assert "no trace could be read" in error["message"]
    assert error["hint"]
    plain = diag("analyze", tmp_path)
    assert plain.returncode == 1
    assert error["message"] in plain.stderr
    assert "Traceback" not in plain.stderr


def test_the_same_reason_of_many_files_is_given_once(tmp_path: Path) -> None:
    for rank in range(8):
        (tmp_path / f"et_{rank}.json").write_text(json.dumps({"schema": "1.0.1", "nodes": []}))
    ended = diag("analyze", tmp_path)
    assert ended.stderr.count("execution trace") == 1
    assert "et_0.json and 7 more: a PyTorch execution trace" in ended.stderr


def test_in_a_mixed_folder_the_traces_are_analysed_and_the_others_listed(tmp_path: Path) -> None:
    made = KinetoBuilder(world_size=1).step(1, 0, 1_000_000).kernel(10_000, 900_000, launch=5_000)
    made.write(tmp_path, "rank0.json")
    put(tmp_path, "PyTorch ET", "JAX")
    ended = diag("analyze", tmp_path, "--json")
    assert ended.returncode in (0, 4)
    skipped = json.loads(ended.stdout)["coverage"]["skipped"]
    assert {Path(gap["path"]).name for gap in skipped} == {"ET.json", "JAX.json"}
    assert any("execution trace" in gap["reason"] for gap in skipped)
    assert any("XProf" in gap["reason"] for gap in skipped)


# -- files of other tools, which are not even JSON ---------------------------------------------------------------------

OTHERS: list[tuple[str, bytes, str]] = [
    ("a.nsys-rep", b"\x00\x01", "Nsight Systems"),
    ("a.qdrep", b"\x00\x01", "Nsight Systems"),
    ("a.sqlite", b"SQLite format 3\0 CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL", "Nsight Systems"),
    ("export.db", b"SQLite format 3\0 CREATE TABLE TARGET_INFO_GPU", "Nsight Systems"),
    ("k.ncu-rep", b"NVR\0", "Nsight Compute"),
    ("old.nvvp", b"SQLite format 3\0", "nvprof"),
    ("123_kernel_trace.csv", b'"Kind","Agent_Id","Queue_Id","Kernel_Id"\n', "rocprof"),
    ("results.csv", b'"Index","KernelName","gpu-id","queue-id"\n', "rocprof"),
    ("results.stats.csv", b'"Name","Calls","TotalDurationNs","AverageNs"\n', "rocprof"),
    ("gpukernsum.csv", b"Time (%),Total Time (ns),Instances\n", "Nsight Systems or nvprof"),
    ("results.pftrace", b"\n\x05\x08", "Perfetto"),
    ("perfetto-trace-0.proto", b"\n\x05\x08", "Perfetto"),
    ("trace.rpd", b"SQLite format 3\0 CREATE TABLE rocpd_api", "rocpd"),
    ("1_results.db", b"SQLite format 3\0 CREATE TABLE rocpd_kernel_dispatch", "rocpd"),
    ("dedicated_log_torch_trace_rank_0_x.log", b"", "TORCH_TRACE"),
    ("rank0.log", b'V0401 12:00:00.000 12 torch/_logging/structured.py:22] {"str": []}\n', "TORCH_TRACE"),
    ("compile_directory.json", b"{}", "tlparse"),
    ("host.xplane.pb", b"\n\x05", "XPlane"),
    ("trace.pb", b"\n\x05", "protocol buffers"),
    ("events.out.tfevents.1700.host", b"\x18", "TensorBoard"),
    ("profile.stacks", b"train.py: main;forward;aten::mm 12\n", "export_stacks"),
    ("r000hs.vtune", b"<?xml", "VTune"),
    ("kernel_details.csv", b"Device_id,Name\n", "Ascend"),
    ("train.prof", b"{\x02(", "cProfile"),
    ("nccl_trace_rank_0", b"\x80\x05}(X\x07\x00\x00\x00versionX\x0b\x00\x00\x00nccl_version", "Flight Recorder"),
    ("out.log", b"host:1:2 [0] NCCL INFO Bootstrap\n", "NCCL"),
]


@pytest.mark.parametrize(("name", "content", "tool"), OTHERS, ids=[name for name, _, _ in OTHERS])
def test_a_folder_of_another_tools_files_names_them_and_what_to_record(
    name: str, content: bytes, tool: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    for given in (tmp_path, path):
        with pytest.raises(DiagError) as error:
            open_run(given)
        assert tool in error.value.message
        assert name in error.value.message
        assert "torch.profiler" in error.value.hint or "`diag triage` reads them" in error.value.hint


def test_a_profile_of_the_legacy_profiler_is_named(tmp_path: Path) -> None:
    """EventList.export_chrome_trace: processes are names, and nothing names them again."""
    path = tmp_path / "prof.json"
    path.write_text(json.dumps([event("aten::mm", pid="CPU functions"), event("gemm", pid="CUDA functions")]))
    with pytest.raises(DiagError, match="PyTorch's legacy autograd profiler"):
        open_run(tmp_path)


@pytest.mark.parametrize(("name", "content"), [("notes.txt", b"hello; world\n"), ("data.csv", b"a,b\n1,2\n")])
def test_any_other_file_is_nobodys(name: str, content: bytes) -> None:
    assert tool_of(name, content) is None
