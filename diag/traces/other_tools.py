"""Names the files of other profilers by their names and their first bytes, with what can be read instead.

A folder may hold nothing but them. Their endings, and the first bytes of the formats, are those of the tools'
documentation and sources (November 2026).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from diag.collectors.layout import is_folder, run_of
from diag.collectors.reading import open_regular, walk
from diag.traces.policy import TRACE_LIMITS

from .text_stream import file_name, is_remote

_KINETO = (
    "diag reads the traces of torch.profiler. Record one of the same run: "
    '`with torch.profiler.profile(on_trace_ready=torch.profiler.tensorboard_trace_handler("DIR")) as prof:`, with '
    "`prof.step()` after each step; or start it with `diag run --out DIR -- COMMAND`."
)
_TRIAGE = "`diag triage` reads them."


class Tool(Struct, frozen=True):
    """Files of one tool. ``named``: a pattern of their names; ``begins``: a pattern that the first bytes match; "" for
    any. ``instead``: what to pass."""

    name: str
    named: str = ""
    begins: bytes = b""
    instead: str = _KINETO


# The first that matches counts.
TOOLS: tuple[Tool, ...] = (
    Tool("Nsight Systems", r"\.(?:nsys-rep|qdrep|qdstrm)$"),
    Tool("Nsight Compute", r"\.(?:ncu-repz?|nsight-cuprof-report|nsight-cuprof)$"),
    Tool("nvprof", r"\.nvvp$|\.nvprof$"),
    Tool(
        "Nsight Systems (exports to SQLite)",
        "",
        rb"SQLite format 3\0.*(?:CUPTI_ACTIVITY|TARGET_INFO_|NVTX_EVENTS|ENUM_NSYS_)",
    ),
    Tool("rocprofv3 or rocm-systems (rocpd databases)", "", rb"SQLite format 3\0.*rocpd_"),
    Tool("rocprof (RPD databases)", r"\.rpd$"),
    Tool("rocprof or rocpd (databases)", r"\.db$", rb"SQLite format 3\0"),
    Tool("Nsight Systems, rocpd or another program (an SQLite database)", "", rb"SQLite format 3\0"),
    Tool(
        "rocprof (tables)",
        r"\.csv$",
        rb'"?(?:Kind"?,"?Agent_Id|Domain"?,"?Function|Name"?,"?Calls"?,"?TotalDurationNs|Node_Id"?,|'
        rb"Correlation_Id|Dispatch_Id|Index\"?,\"?KernelName|BeginNs|Guid\"?,)",
    ),
    Tool(
        "Nsight Systems or nvprof (tables)",
        r"\.csv$",
        rb'(?:==\d+==|"?Time \(%\)"?,|"?Start \(ns\)"?,|"?ID"?,"?Process ID"?,)',
    ),
    Tool(
        "Perfetto (rocprofv3, rocprofiler-systems and others)",
        r"\.(?:pftrace|perfetto-trace)$|perfetto-trace.*\.proto$",
    ),
    Tool("OTF2 (Score-P, rocprofv3)", r"\.(?:otf2|evt)$|^traces\.otf2$"),
    Tool("XProf, JAX or TensorFlow (XPlane profiles)", r"\.xplane\.pb$"),
    Tool("TensorBoard (event files)", r"tfevents\.\d"),
    Tool("protocol buffers", r"\.pb(?:\.gz)?$"),
    Tool("Intel VTune (results)", r"\.(?:vtune|amplxe)$"),
    Tool(
        "Ascend's profiler (tables and databases)",
        r"^(?:kernel_details|operator_details|step_trace_time|op_statistic).*\.csv$",
    ),
    Tool("torch.profiler's export_memory_timeline", r"memory_timeline.*\.html$"),
    Tool("torch.compile (TORCH_TRACE logs, for tlparse)", r"^dedicated_log_torch_trace_"),
    Tool("torch.compile (TORCH_TRACE logs, for tlparse)", r"\.log$", rb'[VIW]\d{4} [\d:.]+ +\d+ [^\n]{0,200}\] \{"'),
    Tool("torch.compile (tlparse)", r"^(?:compile_directory|chromium_events)\.json$|^raw\.jsonl$"),
    Tool("py-spy or another sampler (flame graphs)", r"\.svg$", rb"(?s).{0,4000}(?:flame|Flame)"),
    Tool(
        "stacks with counts (export_stacks of torch.profiler, py-spy, perf)",
        r"\.(?:txt|stacks?|folded|collapsed)$",
        rb"[^\n;]+(?:;[^\n;]+)+ \d+(?:\r?\n|$)",
    ),
    Tool("Python's cProfile", r"\.(?:prof|pstats?)$"),
    Tool("memray", "", rb"memray\0?"),
    Tool(
        "PyTorch's Flight Recorder (dumps)",
        "",
        rb"(?s)\x80.{0,300}(?:nccl_version|pg_config|comm_lib_version)",
        _TRIAGE,
    ),
    Tool("NCCL (logs)", r"\.(?:log|txt|out|err)$", rb"(?s).{0,20000}NCCL (?:INFO|WARN)", _TRIAGE),
)


class Other(Struct, frozen=True):
    """The files of one tool among the given ones."""

    tool: Tool
    files: tuple[str, ...]

    @property
    def words(self) -> str:
        names = ", ".join(map(file_name, self.files[: TRACE_LIMITS.most_tool_files_named]))
        more = (
            f" and {len(self.files) - TRACE_LIMITS.most_tool_files_named} more"
            if len(self.files) > TRACE_LIMITS.most_tool_files_named
            else ""
        )
        return f"{self.tool.name}: {names}{more}"


def tool_of(name: str, head: bytes) -> Tool | None:
    """The tool that wrote a file of this name with these first bytes; None if it is not one of ``TOOLS``."""
    name = file_name(name)
    for tool, named, begins in _COMPILED:
        if named is not None and not named.search(name):
            continue
        if begins is None or begins.match(head):
            return tool
    return None


_COMPILED = tuple(
    (
        tool,
        re.compile(tool.named, re.I) if tool.named else None,
        re.compile(tool.begins, re.S) if tool.begins else None,
    )
    for tool in TOOLS
)


def others_in(paths: Iterable[str]) -> list[Other]:
    """The files of other tools at or below these paths, by tool. Never raises."""
    files: dict[str, tuple[Tool, list[str]]] = {}
    looked_at = 0
    for path in paths:
        if is_remote(path):
            continue
        for file in walk(path) if is_folder(path) else [path]:
            looked_at += 1
            if looked_at > TRACE_LIMITS.most_tool_files:
                break
            tool = tool_of(file, _head(file))
            if tool is not None:
                files.setdefault(tool.name, (tool, []))[1].append(file)
    return [Other(tool, tuple(of_tool)) for tool, of_tool in files.values()]


def named(others: Sequence[Other]) -> str:
    """The files and their tools, as the end of a sentence."""
    return "; ".join(other.words for other in others)


def _head(file: str) -> bytes:
    try:
        with open_regular(file, run_of(Path(file))) as opened:
            return opened.read(TRACE_LIMITS.tool_head_bytes)
    except OSError:
        return b""
