"""Describes a file that is not a trace of PyTorch's profiler, in one sentence with the kind of file to give instead.

Many files end in .json, and half of the tools of this field write Chrome's trace format. Each sentence is based on the
file's content: its beginning, the keys at its top, or the categories, phases and processes of its events. The formats
were read in their writers' sources or documentation (August 2026).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import msgspec

from diag.decoding import json_decoder
from diag.errors import DiagError
from diag.traces.policy import TRACE_LIMITS

from .kineto_names import is_known
from .other_tools import tool_of
from .text_stream import damaged, file_name

_KINETO = "pass the trace that torch.profiler wrote for this run"
INSTEAD = "Pass the trace that torch.profiler writes (export_chrome_trace, tensorboard_trace_handler) for the same run."

# Beginnings of files that are not JSON.
_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself: fetch it with `git lfs pull`"),
    (b"PK\x03\x04", "a zip archive, not a trace: unpack it"),
    (b"BZh", "compressed with bzip2: decompress it"),
    (b"\xfd7zXZ", "compressed with xz: decompress it"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd: decompress it"),
    (b"PAR1", "a Parquet file, not a Kineto trace"),
    (b"\x80\x02", "a Python pickle, not a Kineto trace"),
    (b"\x80\x04", "a Python pickle, not a Kineto trace"),
    (b"\x80\x05", "a Python pickle, not a Kineto trace"),
    (b"\x7fELF", "a program, not a trace"),
)
_MARKUP = re.compile(rb"<(?:!doctype|html|\?xml|head|body|!--)", re.I)

# Keys at the top of JSON objects without traceEvents: all of them must be present. The first match counts.
_OBJECTS: tuple[tuple[frozenset[str], str], ...] = tuple(
    (frozenset(keys.split()), description)
    for keys, description in (
        # torch.profiler.ExecutionTraceObserver and Chakra's converter
        ("schema nodes", "a PyTorch execution trace (Chakra), which has operators but no device times"),
        ("rocprofiler-sdk-tool", "the output of rocprofv3 (rocprofiler-sdk)"),
        ("segments device_traces", "a CUDA memory snapshot of the caching allocator, which has no kernel times"),
        ("entries pg_config", "an NCCL Flight Recorder dump, which `diag triage` reads"),
        ("entries nccl_version", "an NCCL Flight Recorder dump, which `diag triage` reads"),
        ("profiles shared", "a speedscope profile (py-spy, torch's stacks)"),
        ("root_frame sample_count", "a pyinstrument profile"),
        ("nodes samples timeDeltas", "a V8 CPU profile"),
        ("zero_optimization", "a DeepSpeed configuration"),
        ("train_batch_size", "a DeepSpeed configuration"),
        ("train_micro_batch_size_per_gpu", "a DeepSpeed configuration"),
        ("model_type architectures", "a model configuration"),
        ("weight_map metadata", "a model weight index"),
        ("name version dependencies", "a package manifest"),
        ("name version scripts", "a package manifest"),
        ("cells nbformat", "a Jupyter notebook"),
    )
)

# Writers of Chrome's format: what is matched, a pattern, the writer. PyTorch's legacy profiler is among them.
_WRITERS = (
    ("process", r"^/device:(?:TPU|GPU|CPU)|^/host:|^#Chip", "JAX or TensorFlow's XProf"),
    ("process", r"^/job:\w+/replica:", "TensorFlow's timeline"),
    ("process", r"Ascend Hardware|^CANN$|^HCCL$|^NPU\b", "Ascend's profiler (msprof)"),
    ("process", r"^CPU functions$|^CUDA functions$", "PyTorch's legacy autograd profiler"),
    ("process", r"^(?:CPU )?HIP API$|^HSA API$|^COPY$|^Markers and Ranges$", "rocprof"),
    ("category", r"^FEE$|^viztracer$", "VizTracer"),
    ("category", r"^dynamo_timed$", "torch.compile (TORCH_TRACE, tlparse)"),
    ("category", r"^py-spy$", "py-spy"),
    ("category", r"^Session$|^Node$", "ONNX Runtime's profiler"),
    ("category", r"^devtools\.timeline|^disabled-by-default|^blink", "the Chrome browser"),
    ("category", r"^task(?:::|$)|^actor_", "Ray's timeline"),
    ("category", r"^(?:cuda_api|nvtx|osrt)$", "a converter from Nsight Systems"),
)
# These call their kernels Kernel too, as PyTorch 1.10 did.
_ONNX_RUNTIME = frozenset({"session", "node"})


def no_trace(name: str, text: bytes, whole: bool, otherwise: DiagError | None = None) -> DiagError:
    """The error for a text without a list of events. ``whole``: the text is the whole file; ``otherwise``: the
    decoder's message."""
    if (tool := tool_of(name, text)) is not None:
        reason = f"a file of {tool.name}, not a Kineto trace"
        return DiagError(f"{file_name(name)}: {reason}", hint=tool.instead, path=name)
    description = _by_beginning(text)
    if description:
        return DiagError(f"{file_name(name)}: {description}", hint=INSTEAD, path=name)
    keys = _keys(text)
    if keys and "traceEvents" not in keys:
        for known, description in _OBJECTS:
            if known <= set(keys):
                return DiagError(
                    f"{file_name(name)}: {description}, not a Kineto trace; {_KINETO}", hint=INSTEAD, path=name
                )
        if not whole:
            reason = f"no events in its first {len(text) >> 20} MB, but the keys {_listed(keys)}: not a Kineto trace"
            return damaged(name, reason)
        lines = _json_lines(text)
        if lines or (otherwise is not None and "not a Kineto trace: Object missing" in otherwise.message):
            form = "JSON Lines" if lines else "JSON"
            reason = f"{form}, but not a Kineto trace: no traceEvents, but the keys {_listed(keys)}"
            return DiagError(f"{file_name(name)}: {reason}", hint=INSTEAD, path=name)
    return otherwise or damaged(name, "not JSON: it begins with neither a brace nor a bracket")


def no_events(name: str) -> DiagError:
    """The error for a trace of the profiler in which nothing was recorded."""
    return DiagError(
        f"{file_name(name)}: the trace holds no event with a duration",
        hint="The profiler was stopped before its first active step; record a longer window.",
        path=name,
    )


def is_ours(categories: Collection[str]) -> bool:
    if _ONNX_RUNTIME & set(categories) and "cpu_op" not in categories:
        return False
    return any(map(is_known, categories))


def no_events_of_ours(
    name: str, categories: Sequence[str], phases: Collection[str], processes: Collection[str], beginning: bytes
) -> DiagError:
    """The error for a list of events, or of anything else, in which no event is from PyTorch's profiler."""
    phases = sorted(phase for phase in phases if phase and phase != "M")
    if not categories and not phases:
        keys = _keys(beginning)
        if beginning.lstrip().startswith(b"{") and keys and "ph" not in keys:
            reason = f"JSON, but not a Kineto trace: a list of objects with the keys {_listed(keys)}"
            return DiagError(f"{file_name(name)}: {reason}", hint=INSTEAD, path=name)
        return no_events(name)
    shown = [category for category in categories if category]
    writer = _writer(shown, processes)
    parts = [f"of the categories {_listed(shown)}" if shown else "without categories"]
    if phases and not categories:
        parts = [f"of the phases {_listed(phases)} (marks, counters, begins and ends), none with a duration"]
    if processes:
        parts.append(f"of the processes {_listed(sorted(processes))}")
    reason = f"a Chrome trace{f' of {writer}' if writer else ''}, not of PyTorch's profiler: its events are "
    return DiagError(f"{file_name(name)}: {reason}{', '.join(parts)}", hint=INSTEAD, path=name)


def _writer(categories: Collection[str], processes: Collection[str]) -> str:
    for source, pattern, writer in _WRITERS:
        if any(re.search(pattern, text, re.I) for text in (processes if source == "process" else categories)):
            return writer
    return ""


def _by_beginning(text: bytes) -> str:
    start = text[:4096]
    for magic, description in _MAGIC:
        if start.startswith(magic):
            return description
    if _MARKUP.match(start.lstrip()):
        return "an HTML or XML page, not a trace: possibly a server's error page saved under this name"
    return ""


def _keys(text: bytes) -> list[str]:
    """The keys at the top of an object; [] for anything else. For incomplete JSON, the keys in its beginning."""
    if not text[:256].lstrip().startswith(b"{"):
        return []
    try:
        return list(json_decoder(dict[str, msgspec.Raw]).decode(text))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    keys, depth, before = [], 0, b""
    for match in _TOKEN.finditer(text, 0, TRACE_LIMITS.foreign_bytes_searched):
        token = match[0]
        if token == b":" and depth == 1 and before[:1] == b'"':
            keys.append(before[1:-1].decode("utf-8", "replace"))
        depth += (token in b"{[") - (token in b"}]")
        if not depth:
            break
        before = token
    return list(dict.fromkeys(keys))


_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:]')


def _json_lines(text: bytes) -> bool:
    lines = [line for line in text[: TRACE_LIMITS.foreign_bytes_searched].split(b"\n", 64) if line.strip()][:2]
    try:
        return len(lines) == 2 and all(isinstance(msgspec.json.decode(line), dict) for line in lines)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _listed(words: Sequence[str]) -> str:
    """The first of them, shortened if they are long, and how many more there are."""
    shown = [
        word if len(word) <= 40 else word[:39] + "\u2026" for word in words[: TRACE_LIMITS.most_foreign_files_shown]
    ]
    more = f" and {len(words) - len(shown)} more" if len(words) > len(shown) else ""
    return " ".join(", ".join(shown).split()) + more
