"""Ranges of the host in which a module of the model ran, from any kind of range in a trace."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from diag.account import trace_ranges as ranges
from diag.deferred import pl
from diag.traces import kineto_names as names
from diag.traces.kineto_names import FSDP_CLASS_PREFIX, WRAPPER_CLASSES, WRAPPER_PARTS, WRAPPER_ROOT
from diag.traces.trace import Trace

from . import nesting

# -- module names ------------------------------------------------------------------------------------------------------
#
# Names of modules as in the model's source, without the parts that wrappers add.

UNATTRIBUTED = ""  # time in no module
ROOT = "(root)"  # the model's module without a name
_NUMBERED = re.compile(r"(.*)_\d+")
_SHARDED_CLASS = re.compile(rf"{FSDP_CLASS_PREFIX}(?=[A-Z])")


def own_paths(names: pl.Series) -> pl.Series:
    """Paths of modules ("blocks.0.attention"), each without the parts that wrappers add."""
    distinct = names.cast(pl.String).unique().to_list()
    return names.cast(pl.String).replace({name: own_path(name) for name in distinct})


def own_path(name: str) -> str:
    """For a unit of several modules, which torch lists with commas, each path. A path with nothing but wrapper parts is
    the root's."""
    return ", ".join(_own_path(part) for part in name.split(", "))


def _own_path(name: str) -> str:
    parts = name.split(".")
    path = [part for part in parts if part not in WRAPPER_PARTS]
    if len(path) > 1 and path[0] == WRAPPER_ROOT:
        path = path[1:]
    return ".".join(path) or ROOT


def own_classes(calls: pl.DataFrame) -> pl.DataFrame:
    """The calls that a profiler with stacks recorded ("Block_3": a class and a number). Calls of a wrapper get the name
    of the module that is called in them, so the wrapper's work for it (above all, gathering its parameters) counts
    there.

    ``calls``: ts_ns, dur_ns, thread and name, sorted as by Trace.select. A wrapper in which no module is called, as
    around compiled code, keeps its name.
    """
    call_names = calls["name"].cast(pl.String).to_list()
    classes = {name: class_of(name) for name in set(call_names)}
    named = [_SHARDED_CLASS.sub("", name) for name in call_names]
    if WRAPPER_CLASSES.isdisjoint(classes.values()):
        return calls.with_columns(pl.Series("name", named, dtype=pl.String))
    wraps = [classes[name] in WRAPPER_CLASSES for name in call_names]
    parent = nesting.parents(calls).tolist()
    first: dict[int, int] = {}  # by a wrapper's row: the first call in it
    for row, around in enumerate(parent):
        if around >= 0 and wraps[around]:
            first.setdefault(around, row)
    for wrapper in sorted(first, reverse=True):  # the innermost first: rows are in order of start
        named[wrapper] = named[first[wrapper]]
    remaining = np.ones(len(named), dtype=np.bool_)
    remaining[list(first.values())] = False
    return calls.with_columns(pl.Series("name", named, dtype=pl.String)).filter(pl.Series(remaining))


def class_of(name: str) -> str:
    """The class in the name of a call that a profiler with stacks recorded: "Block" of "Block_3"."""
    match = _NUMBERED.fullmatch(name)
    return match[1] if match else name


PYTHON_FUNCTION = "python_function"
PYTHON_MODULES = "nn.Module"  # the source of ranges that a profiler with stacks recorded
_PYTHON_MODULE = r"^nn\.Module: "

# FSDP2's hooks are short ranges before and after a unit's forward and backward (docs/concepts/sharding.md).
_FSDP = (
    r"^FSDP::(pre_forward|post_forward|pre_backward|post_backward_accumulate|post_backward_reshard|"
    r"post_backward_reduce|root_post_backward_callback)(?: \((.*?)\))?(?: \[pg=.*\])?$"
)
# Ranges of the profiler, torch, a library or our own collectors; all others are the user's.
_NOT_A_PERSONS = (
    r"^(?:ProfilerStep#|diag\.|enumerate\(DataLoader\)|Optimizer\.|[A-Za-z]*DataParallel\.|FSDP::|nccl:|gloo:|"
    r"c10d|_?c10d_functional|record_param_comms|Python GC|torch\.distributed\.)"
)
_COLUMNS = ("ts_ns", "dur_ns", "thread", "name")


class ModuleRanges(Struct, frozen=True, eq=False):
    """Calls of modules from one source: ts_ns, dur_ns, thread and name, sorted as by Trace.select."""

    source: str
    calls: pl.DataFrame


def module_ranges(trace: Trace) -> list[ModuleRanges]:
    """Every source that the trace has, the most detailed first."""
    sources = (
        ModuleRanges(PYTHON_MODULES, _python_modules(trace)),
        ModuleRanges("FSDP unit", pl.concat([fsdp_forwards(trace), _fsdp_backwards(trace)])),
        ModuleRanges("annotation", _annotations(trace)),
    )
    return [ModuleRanges(source.source, _sorted(source.calls)) for source in sources if len(source.calls)]


def fsdp_forwards(trace: Trace) -> pl.DataFrame:
    """From a unit's pre-forward to the end of its post-forward."""
    hooks = _fsdp_hooks(trace)
    return _from_to(hooks, hooks.filter(pl.col("hook") == "pre_forward"), ("post_forward",))


def _fsdp_backwards(trace: Trace) -> pl.DataFrame:
    """From a unit's pre-backward to the end of its last post-backward; the root's ends in the engine's callback."""
    hooks = _fsdp_hooks(trace)
    after = ("post_backward_accumulate", "post_backward_reshard", "post_backward_reduce", "root_post_backward_callback")
    # With several outputs the hook runs once per output: the first run is the begin.
    before = hooks.filter(pl.col("hook").is_in(["pre_backward", "post_forward"])).sort("ts_ns")
    again = pl.col("hook").shift(1).over("name") == pl.col("hook")
    first = before.filter(~again.fill_null(False)).filter(pl.col("hook") == "pre_backward")
    return _from_to(hooks, first, after)


def _fsdp_hooks(trace: Trace) -> pl.DataFrame:
    parts = pl.col("name").cast(pl.String).str.extract_groups(_FSDP)
    hooks = ranges.named(trace, _FSDP).select(
        "ts_ns",
        "dur_ns",
        "thread",
        parts.struct.field("1").alias("hook"),
        parts.struct.field("2").fill_null("").alias("name"),
    )
    return hooks.with_columns(own_paths(hooks["name"]))


def _from_to(hooks: pl.DataFrame, begins: pl.DataFrame, ends: tuple[str, ...]) -> pl.DataFrame:
    """One range for each begin, to the last end of the same unit before its next begin. Hooks of one unit may run on
    different threads: the callback at the end of a backward runs on the caller's thread."""
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
    modules = trace.select(PYTHON_FUNCTION, name=_PYTHON_MODULE)
    return own_classes(modules.with_columns(name.str.replace(_PYTHON_MODULE, "")).select(_COLUMNS))


def _annotations(trace: Trace) -> pl.DataFrame:
    annotations = trace.select(names.ANNOTATION).with_columns(pl.col("name").cast(pl.String))
    by_user = annotations.filter(~pl.col("name").str.contains(_NOT_A_PERSONS)).select(_COLUMNS)
    return by_user.with_columns(own_paths(by_user["name"]))


def _sorted(calls: pl.DataFrame) -> pl.DataFrame:
    return calls.sort(["ts_ns", "dur_ns"], descending=[False, True], maintain_order=True)
