"""Ranges of the host in which a module of the model ran, from whatever a trace has of them."""

from __future__ import annotations

import polars as pl
from msgspec import Struct

from diag.account import trace_ranges as ranges
from diag.traces import kineto_names as names
from diag.traces.trace import Trace

from .module_names import own_classes, own_paths

PYTHON_FUNCTION = "python_function"
_PYTHON_MODULE = r"^nn\.Module: "

# FSDP2's hooks are short ranges before and after a unit's forward and backward (science.md 3.1).
_FSDP = (
    r"^FSDP::(pre_forward|post_forward|pre_backward|post_backward_accumulate|post_backward_reshard|"
    r"post_backward_reduce|root_post_backward_callback)(?: \((.*?)\))?(?: \[pg=.*\])?$"
)
# Ranges that the profiler, torch, a library or our own collectors put there; the others are a person's.
_NOT_A_PERSONS = (
    r"^(?:ProfilerStep#|diag\.|enumerate\(DataLoader\)|Optimizer\.|[A-Za-z]*DataParallel\.|FSDP::|nccl:|gloo:|"
    r"c10d|_?c10d_functional|record_param_comms|Python GC|torch\.distributed\.)"
)
_COLUMNS = ("ts_ns", "dur_ns", "thread", "name")


class ModuleRanges(Struct, frozen=True, eq=False):
    """Calls of modules as one source shows them: ts_ns, dur_ns, thread and name, sorted like Trace.select does."""

    source: str
    calls: pl.DataFrame


def module_ranges(trace: Trace) -> list[ModuleRanges]:
    """Every source that the trace has, the most detailed first."""
    sources = (
        ModuleRanges("nn.Module", _python_modules(trace)),
        ModuleRanges("FSDP unit", pl.concat([fsdp_forwards(trace), _fsdp_backwards(trace)])),
        ModuleRanges("annotation", _annotations(trace)),
    )
    return [ModuleRanges(found.source, _sorted(found.calls)) for found in sources if len(found.calls)]


def fsdp_forwards(trace: Trace) -> pl.DataFrame:
    """From a unit's pre-forward to the end of its post-forward."""
    hooks = _fsdp_hooks(trace)
    return _from_to(hooks, hooks.filter(pl.col("hook") == "pre_forward"), ("post_forward",))


def _fsdp_backwards(trace: Trace) -> pl.DataFrame:
    """From a unit's pre-backward to the end of its last post-backward; the root's ends in the engine's callback."""
    hooks = _fsdp_hooks(trace)
    after = ("post_backward_accumulate", "post_backward_reshard", "post_backward_reduce", "root_post_backward_callback")
    # With several outputs the hook runs once an output: the first one begins.
    before = hooks.filter(pl.col("hook").is_in(["pre_backward", "post_forward"])).sort("ts_ns")
    again = pl.col("hook").shift(1).over("name") == pl.col("hook")
    first = before.filter(~again.fill_null(False)).filter(pl.col("hook") == "pre_backward")
    return _from_to(hooks, first, after)


def _fsdp_hooks(trace: Trace) -> pl.DataFrame:
    parts = pl.col("name").cast(pl.String).str.extract_groups(_FSDP)
    found = ranges.named(trace, _FSDP).select(
        "ts_ns",
        "dur_ns",
        "thread",
        parts.struct.field("1").alias("hook"),
        parts.struct.field("2").fill_null("").alias("name"),
    )
    return found.with_columns(own_paths(found["name"]))


def _from_to(hooks: pl.DataFrame, begins: pl.DataFrame, ends: tuple[str, ...]) -> pl.DataFrame:
    """One range for each begin, to the last end of the same unit before its next begin. Hooks of one unit may run on
    different threads: the callback at the end of a backward is the caller's."""
    opened = begins.select("ts_ns", "thread", "name", begin="ts_ns").sort("ts_ns")
    closed = hooks.filter(pl.col("hook").is_in(ends)).select(
        "ts_ns", "name", (pl.col("ts_ns") + pl.col("dur_ns")).alias("end")
    )
    last = (
        closed.sort("ts_ns")
        .join_asof(opened.select("ts_ns", "name", "begin"), on="ts_ns", by="name", check_sortedness=False)
        .drop_nulls("begin")
        .group_by("name", "begin")
        .agg(pl.col("end").max())
    )
    whole = opened.join(last, on=["name", "begin"], how="inner")
    return _sorted(whole.with_columns((pl.col("end") - pl.col("ts_ns")).alias("dur_ns")).select(_COLUMNS))


def _python_modules(trace: Trace) -> pl.DataFrame:
    name = pl.col("name").cast(pl.String)
    found = trace.select(PYTHON_FUNCTION, name=_PYTHON_MODULE)
    return own_classes(found.with_columns(name.str.replace(_PYTHON_MODULE, "")).select(_COLUMNS))


def _annotations(trace: Trace) -> pl.DataFrame:
    found = trace.select(names.ANNOTATION).with_columns(pl.col("name").cast(pl.String))
    own = found.filter(~pl.col("name").str.contains(_NOT_A_PERSONS)).select(_COLUMNS)
    return own.with_columns(own_paths(own["name"]))


def _sorted(calls: pl.DataFrame) -> pl.DataFrame:
    return calls.sort(["ts_ns", "dur_ns"], descending=[False, True], maintain_order=True)
