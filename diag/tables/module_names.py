"""Names of modules as the model's author wrote them, without what wrappers put around them."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from diag.traces.range_names import FSDP_CLASS_PREFIX, WRAPPER_CLASSES, WRAPPER_PARTS, WRAPPER_ROOT

from . import nesting

ROOT = "(root)"  # of a model: the module that has no name
_NUMBERED = re.compile(r"(.*)_\d+")
_SHARDED_CLASS = re.compile(rf"{FSDP_CLASS_PREFIX}(?=[A-Z])")


def own_paths(names: pl.Series) -> pl.Series:
    """Paths of modules ("blocks.0.attention"), each without the parts that wrappers add."""
    found = names.cast(pl.String).unique().to_list()
    return names.cast(pl.String).replace({name: own_path(name) for name in found})


def own_path(name: str) -> str:
    """Of a unit of several modules, which torch lists with commas, each. What only a wrapper has is the root."""
    return ", ".join(_own_path(part) for part in name.split(", "))


def _own_path(name: str) -> str:
    parts = name.split(".")
    kept = [part for part in parts if part not in WRAPPER_PARTS]
    if len(kept) > 1 and kept[0] == WRAPPER_ROOT:
        kept = kept[1:]
    return ".".join(kept) or ROOT


def own_classes(calls: pl.DataFrame) -> pl.DataFrame:
    """The calls that a profiler with stacks saw ("Block_3": a class and a number), those of wrappers under the name of
    the module that is called in them, which then has what the wrapper does for it: gathers its parameters, above all.

    ``calls``: ts_ns, dur_ns, thread and name, sorted like Trace.select does. A wrapper in which no module is called, as
    around compiled code, keeps its name: there is no other.
    """
    given = calls["name"].cast(pl.String).to_list()
    classes = {name: _class_of(name) for name in set(given)}
    named = [_SHARDED_CLASS.sub("", name) for name in given]
    if WRAPPER_CLASSES.isdisjoint(classes.values()):
        return calls.with_columns(pl.Series("name", named, dtype=pl.String))
    wraps = [classes[name] in WRAPPER_CLASSES for name in given]
    parent = nesting.parents(calls).tolist()
    first: dict[int, int] = {}  # of a wrapper's row: the first call in it
    for row, around in enumerate(parent):
        if around >= 0 and wraps[around]:
            first.setdefault(around, row)
    for wrapper in sorted(first, reverse=True):  # the innermost first: rows are in order of start
        named[wrapper] = named[first[wrapper]]
    kept = np.ones(len(named), dtype=np.bool_)
    kept[list(first.values())] = False
    return calls.with_columns(pl.Series("name", named, dtype=pl.String)).filter(pl.Series(kept))


def _class_of(name: str) -> str:
    found = _NUMBERED.fullmatch(name)
    return found[1] if found else name
