"""One rank's Kineto trace: a header in memory and a table of stored events, of which only the selected part is read.

Five million events are a gigabyte of text, and an analysis needs few columns of some categories. So events are stored
as codes instead of text, by category, in Parquet (or in memory, for small files), and `Trace.select` reads only the
selected part.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from functools import cached_property, lru_cache
from threading import Lock
from typing import Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from diag.deferred import Schema, pl
from diag.traces.policy import TRACE_CONTENTS, TRACE_LIMITS, TRACE_READING
from diag.words.formatting import counted

from . import kineto_names as names
from .kineto_names import CommRule, is_known, operations

# Arguments of the few events whose arguments are read: communication, and operators whose shapes determine their work.
ARGUMENTS = Schema(
    coll_name="String",
    in_elems="Int64",
    out_elems="Int64",
    dtype="String",
    group_name="String",
    group_ranks="String",
    group_size="Int64",
    seq="Int64",
    input_dims="String",
    input_type="String",
    told_stream="Int64",  # the stream of a Triton operator on the host
)
ARGS_ROW = "args_row"  # an event's row in the table of arguments
ROW = "row"  # a stored event's place among those of its category in the file
STORED = Schema(
    ts_ns="Int64",
    dur_ns="Int64",
    name="UInt32",
    cat="UInt8",
    thread="UInt32",
    correlation="Int64",
    **{ARGS_ROW: "UInt32"},
)
# Allocator samples of a trace recorded with profile_memory: ``[memory]`` events, one per allocation (``bytes`` above 0)
# or release (below). ``allocated`` and ``reserved``: the device's totals after it, null before torch 1.10, as is
# ``addr``. ``thread`` is an index into Trace.threads.
COUNTERS = Schema(
    ts_ns="Int64",
    device_type="Int16",
    device="Int16",
    allocated="Int64",
    reserved="Int64",
    bytes="Int64",
    addr="Int64",
    thread="UInt32",
)


class Process(Struct):
    """The file's information on one of its processes. ``ranks``: ranks in its events' arguments; ``raw``: its id before
    the ranks' traces were merged into one file."""

    name: str = ""
    ranks: set[int] = field(default_factory=set)
    raw: str = ""


class _Vocabulary:
    """Names of all traces, and which of them match the regular expressions used so far. The ranks of a run have nearly
    all names in common, and polars takes 7 ms to compile forty expressions, on each call. An answer stands at the place
    of its name, so only one thread at a time makes it grow: the dashboard analyses runs in several."""

    def __init__(self) -> None:
        self._growing = Lock()
        self._names: list[str] = []
        self._index: dict[str, int] = {}
        self._matching: dict[str, npt.NDArray[np.bool_]] = {}

    def __len__(self) -> int:
        return len(self._names)

    def indices(self, names: Sequence[str]) -> npt.NDArray[np.int64]:
        with self._growing:
            for name in names:
                if name not in self._index:
                    self._index[name] = len(self._names)
                    self._names.append(name)
            return np.array([self._index[name] for name in names], dtype=np.int64)

    def matching(self, pattern: str, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        with self._growing:
            return self._answers(pattern, int(indices.max(initial=-1)))[indices]

    def _answers(self, pattern: str, last: int) -> npt.NDArray[np.bool_]:
        """For each name, at least up to the one at this place."""
        known = self._matching.setdefault(pattern, np.zeros(0, dtype=np.bool_))
        if len(known) <= last:
            # All traces are matched with the same expressions: one call for all expressions that lack the same names.
            behind = [text for text, answers in self._matching.items() if len(answers) == len(known)]
            new = pl.Series("name", self._names[len(known) :], dtype=pl.String).to_frame()
            matches = new.select(pl.col("name").str.contains(text).alias(text) for text in behind)
            for column in matches:
                self._matching[column.name] = np.concatenate((self._matching[column.name], column.to_numpy()))
            known = self._matching[pattern]
        return known


_VOCABULARY = _Vocabulary()


class Events(Struct, frozen=True, eq=False, dict=True):
    """Duration events as stored: codes instead of text, times without the trace's base. ``frames``: for each category,
    the columns of STORED and ROW in the order of the file; ``arguments`` has the columns of ARGUMENTS, ``counters``
    those of COUNTERS."""

    frames: tuple[pl.DataFrame | pl.LazyFrame, ...]
    names: pl.Series
    categories: tuple[str, ...]
    arguments: pl.DataFrame
    counters: pl.DataFrame

    @cached_property
    def rows(self) -> int:
        return sum(int(frame.lazy().select(pl.len()).collect().item()) for frame in self.frames)

    def matching(self, pattern: str) -> npt.NDArray[np.bool_]:
        if pattern not in self._matching:
            if self._indices is not None:
                self._matching[pattern] = _VOCABULARY.matching(pattern, self._indices)
            else:
                name = self.names.to_frame("name").select(pl.col("name").str.contains(pattern))
                self._matching[pattern] = name.to_series().to_numpy()
        return self._matching[pattern]

    def chosen(
        self, codes: Sequence[int], named: npt.NDArray[np.bool_] | None, within: tuple[int, int] | None
    ) -> pl.DataFrame:
        """The rows of these categories with such names that start in ``[begin, end)``, category by category."""
        frames = [self._chosen(code, named, within) for code in codes]
        return pl.concat(frames or [pl.DataFrame(schema=STORED).with_row_index(ROW)])

    def _chosen(self, code: int, named: npt.NDArray[np.bool_] | None, within: tuple[int, int] | None) -> pl.DataFrame:
        held = _held(self, code)
        if held is None:
            tests = [pl.col("name").is_in(np.flatnonzero(named).tolist())] if named is not None else []
            if within is not None:
                tests.append((pl.col("ts_ns") >= within[0]) & (pl.col("ts_ns") < within[1]))
            return self.frames[code].lazy().filter(*tests).collect()
        chosen = np.ones(len(held), dtype=np.bool_)
        if named is not None:
            chosen &= named[held["name"].to_numpy()]
        if within is not None:
            start = held["ts_ns"].to_numpy()
            chosen &= (start >= within[0]) & (start < within[1])
        return held if chosen.all() else held[np.flatnonzero(chosen)]

    def columns(self, codes: Sequence[int], names: Sequence[str], least_ns: int = 0) -> pl.DataFrame:
        """These columns of all rows of these categories that last at least ``least_ns``, category by category."""
        frames = [pl.DataFrame(schema=STORED).select(names)]
        for code in codes:
            held = _held(self, code)
            rows = held.lazy() if held is not None else self.frames[code].lazy()
            frames.append((rows.filter(pl.col("dur_ns") >= least_ns) if least_ns else rows).select(names).collect())
        return pl.concat(frames)

    @cached_property
    def with_nothing(self) -> pl.DataFrame:
        """The table of arguments, with a row of nulls at the end."""
        return pl.concat([self.arguments, pl.DataFrame({key: [None] for key in ARGUMENTS}, schema=ARGUMENTS)])

    @cached_property
    def _matching(self) -> dict[str, npt.NDArray[np.bool_]]:
        return {}

    @cached_property
    def _indices(self) -> npt.NDArray[np.int64] | None:
        """The names' places in the vocabulary of all traces; None if they are too many."""
        if (
            len(self.names) > TRACE_LIMITS.names_of_one_trace
            or len(_VOCABULARY) + len(self.names) > TRACE_LIMITS.most_shared_names
        ):
            return None
        return _VOCABULARY.indices(self.names.to_list())

    @cached_property
    def name_type(self) -> pl.Enum:
        return pl.Enum(self.names)

    @cached_property
    def category_type(self) -> pl.Enum:
        return pl.Enum(self.categories)


_HELD_CATEGORIES = 8


@lru_cache(maxsize=_HELD_CATEGORIES)
def _held(events: Events, code: int) -> pl.DataFrame | None:
    """The rows of a category; None if they are many, and in a file."""
    frame = events.frames[code]
    if isinstance(frame, pl.DataFrame):
        return frame
    rows = frame.select(pl.len()).collect().item()
    return frame.collect() if rows <= TRACE_READING.held_rows else None


def by_time(events: pl.DataFrame) -> npt.NDArray[np.int64]:
    """The order by (ts_ns, -dur_ns, place in the file). Sorting by start, and then only the ties, takes a third of the
    memory of sorting whole rows."""
    start, dur, row = (events[key].to_numpy() for key in ("ts_ns", "dur_ns", ROW))
    order = np.argsort(start, kind="stable")
    same = start[order][1:] == start[order][:-1]
    if same.any():
        at = np.flatnonzero(np.append(same, False) | np.append(False, same))
        ties = order[at]
        order[at] = ties[np.lexsort((row[ties], -dur[ties], start[ties]))]
    return order


# Columns that `Trace.select` returns. Times in ns since 1970 if the trace has a base time or writes absolute times.
# ``thread`` is an index into Trace.threads; ``device`` and ``stream`` are null on the host. ``correlation`` is the same
# number for a call on the host and the work that it launched on the device, or null. ``args_row``, null without stored
# arguments, is used by `Trace.with_arguments`.
COLUMNS = ("ts_ns", "dur_ns", "name", "cat", "thread", "device", "stream", "correlation", "args_row")


class Derived(Protocol):
    """Stores data that an analysis derives from a trace, next to the trace's tables."""

    def load(self, name: str) -> bytes | None: ...

    def save(self, name: str, data: bytes) -> None: ...


class Contents(Struct, frozen=True, eq=False):
    """The content of a file, independent of its name: the header's fields unchanged, and the events."""

    distributed: object
    devices: object
    base_ns: int
    host: str | None
    threads: tuple[tuple[str, str], ...]
    begin_ns: int  # without the base, like the events
    end_ns: int
    untimed_events: int  # left out: no readable start
    gaps: tuple[str, ...]
    events: Events
    places: tuple[tuple[int, int], ...] = ()  # codes of the category and the thread that occur together in an event
    processes: dict[str, Process] = {}  # by their ids in the events
    derived: Derived | None = None  # None: the file is read anew each time


class Trace(Struct, frozen=True, eq=False, dict=True, weakref=True):
    """One file. ``begin_ns`` and ``end_ns`` are the first start and the last end of its events."""

    path: str  # a file, an address, or an archive and its member
    rank: int | None
    world_size: int | None
    host: str | None
    backend: str | None
    device_names: tuple[str, ...]
    base_ns: int
    groups: dict[str, tuple[int, ...]]  # process group name: its global ranks
    threads: tuple[tuple[str, str], ...]  # process and thread as the profiler writes them; on a device: device, stream
    begin_ns: int
    end_ns: int
    stored: Events
    untimed_events: int = 0  # left out: no readable start
    gaps: tuple[str, ...] = ()  # parts of the file that were not kept, and why
    derived: Derived | None = None
    descriptions: dict[str, str] = {}  # process group name: its purpose, as set by its creator
    undivided: bool = False  # no iterations are inferred: other ranks, or other windows, show different ones
    most_steps: int = 1 << 31  # the first of its marked steps, the others are left out
    step_shift: int = 0  # added to its step numbers, which continue those of an earlier window of its rank
    host_pids: tuple[str, ...] = ()  # processes that have operators or runtime calls
    process_names: tuple[str, ...] = ()  # set if the file is not printed in Kineto's layout
    comm_kernels: tuple[CommRule, ...] = ()  # the user's rules for kernels that communicate

    @property
    def has_gpu(self) -> bool:
        return any(category in names.DEVICE_CATEGORIES for category in self.stored.categories)

    @cached_property
    def device_record(self) -> DeviceRecord:
        """Whether the work of a device was recorded and understood, and what is missing if not."""
        return record_of(self)

    @cached_property
    def step_names(self) -> frozenset[str]:
        """The names of its marks of steps."""
        all_names = self.stored.names
        return frozenset(
            all_names.filter(all_names.str.contains(f"{names.STEP_PATTERN}|{names.PROFILER_STEP_PATTERN}"))
        )

    @property
    def events(self) -> pl.DataFrame:
        """All duration events: for small traces and tests. Analyses use ``select``."""
        return self.select(arguments=True)

    @property
    def counters(self) -> pl.DataFrame:
        """Allocator samples, columns of COUNTERS, by time; empty without ``profile_memory``."""
        return self.stored.counters.with_columns(pl.col("ts_ns") + self.base_ns)

    def select(
        self, *categories: str, name: str | None = None, arguments: bool = False, within: tuple[int, int] | None = None
    ) -> pl.DataFrame:
        """Events of these categories (all, if none is given) whose name matches the regular expression, sorted by
        (ts_ns, -dur_ns): parents come before their children.

        ``within``: only events that start in this window, ``[begin, end)`` in ns. ``arguments``: with the columns of
        ARGUMENTS; otherwise the columns are those of COLUMNS. The expression is matched once per distinct name, so it
        costs no more on five million events than on five.
        """
        stored = self.stored
        wanted = stored.matching(name) if name is not None else None
        if wanted is not None and not wanted.any():
            events = self._nothing  # most traces have none of one library's names: no event needs to be read
        else:
            codes = self._codes(categories) if categories else range(len(stored.categories))
            starts = (within[0] - self.base_ns, within[1] - self.base_ns) if within is not None else None
            events = self._finished(stored.chosen(codes, wanted, starts))
        return self.with_arguments(events) if arguments else events

    def _codes(self, categories: Sequence[str]) -> list[int]:
        return [code for code, category in enumerate(self.stored.categories) if category in categories]

    @cached_property
    def _nothing(self) -> pl.DataFrame:
        return self._finished(pl.DataFrame(schema=STORED).with_row_index(ROW))

    def _finished(self, events: pl.DataFrame) -> pl.DataFrame:
        """Stored events in order of time, with the columns of COLUMNS."""
        stored = self.stored
        order = by_time(events)
        if (order[1:] < order[:-1]).any():
            events = events[order]
        # For work on a device the profiler writes the device and the stream as process and thread.
        elsewhere = ~self._on_device[events["cat"].to_numpy()]
        numbers = self._thread_numbers[:, events["thread"].to_numpy()]
        numbers[:, elsewhere] = -1
        device, stream = (pl.Series(name, row) for name, row in zip(("device", "stream"), numbers, strict=True))
        frame = pl.DataFrame(
            [
                events["ts_ns"] + self.base_ns,
                *(events[key] for key in ("dur_ns", "name", "cat", "thread")),
                device.set(device < 0, None),
                stream.set(stream < 0, None),
                *(events[key] for key in ("correlation", ARGS_ROW)),
            ]
        )
        return frame.with_columns(pl.col("name").cat.to(stored.name_type), pl.col("cat").cat.to(stored.category_type))

    @cached_property
    def _on_device(self) -> npt.NDArray[np.bool_]:
        kinds = [c in names.DEVICE_CATEGORIES or c.startswith("gpu_") for c in self.stored.categories]
        return np.array([*kinds, False])

    @cached_property
    def _thread_numbers(self) -> npt.NDArray[np.int32]:
        """Process and thread of each of ``threads`` as numbers; -1 if they are not numbers. Shape (2, threads)."""
        numbers = [[_trailing_number(label) for label in thread] for thread in self.threads]
        return np.array(numbers, dtype=np.int32).reshape(-1, 2).T

    def unsorted(self, *categories: str, columns: Sequence[str], least_ns: int = 0) -> pl.DataFrame:
        """Only these columns of all events of the categories that last at least ``least_ns``, with the stored codes and
        unsorted: a third of the time and memory of `select`."""
        frame = self.stored.columns(self._codes(categories), columns, least_ns)
        return frame.with_columns(pl.col("ts_ns") + self.base_ns) if "ts_ns" in columns else frame

    def with_arguments(self, events: pl.DataFrame) -> pl.DataFrame:
        """The events with the columns of ARGUMENTS instead of ``args_row``: many columns, so for few events."""
        table = self.stored.with_nothing
        row = np.nan_to_num(events[ARGS_ROW].to_numpy(), nan=len(table) - 1).astype(np.int64)
        shown = [column for column in events if column.name != ARGS_ROW]
        return pl.DataFrame([*shown, *table[row]])

    def named_by_user(self, events: pl.DataFrame) -> pl.Series:
        """For each of these events, whether the user's rules call it communication."""
        if not self._operations:
            return pl.repeat(False, len(events), eager=True)
        return events["name"].cast(pl.String).is_in(list(self._operations))

    def operation_named(self, name: str) -> str | None:
        """The operation of a kernel of this name by the user's rules."""
        return self._operations.get(name)

    @cached_property
    def _operations(self) -> dict[str, str]:
        return operations(self.stored.names, self.comm_kernels)

    def says(self, events: pl.DataFrame, pattern: str) -> pl.Series:
        """For each of these events of the trace, whether its name matches; one match per distinct name."""
        matching = self.stored.matching(pattern)
        code = events["name"].to_physical().to_numpy()
        return pl.Series(matching[code] if len(matching) else code.astype(np.bool_))


def _trailing_number(label: str) -> int:
    """7 of ``7`` and of ``stream 7``; -1 without one that fits."""
    match = re.search(r"(\d{1,9})$", label)
    return int(match.group(1)) if match else -1


# -- device record -----------------------------------------------------------------------------------------------------
#
# Whether a trace has the work of the device: recorded, not recorded, or recorded in a form that diag does not read.
#
# A trace without kernels looks like a run on the CPU, and its operators like computation. It is a CPU run only if
# nothing in it points to a device: no call launches work, no operator exists on a GPU only, no event is another
# accelerator's.


class DeviceWork(Enum):
    """How much of an accelerator's work a trace holds."""

    RECORDED = "recorded"
    NOT_RECORDED = "not recorded"  # launched, but without kernels in the trace
    NOT_UNDERSTOOD = "not understood"  # events of an accelerator, of unknown kinds
    CAPTURED = "captured"  # launches went into a CUDA graph and ran nothing
    NONE = "none"  # a run on the CPU


class DeviceRecord(Struct, frozen=True):
    """``holds``, ``lacks`` and ``collect``: what the trace contains, what is missing for a diagnosis, and what to
    collect; "" if nothing is missing. ``share``: fraction of the trace's time in which unknown events run."""

    work: DeviceWork
    holds: str = ""
    lacks: str = ""
    collect: str = ""
    share: float = 0.0
    launches: int = 0  # calls on the host that launch work; counted where the trace may lack device work
    device_events: int = 0

    @property
    def decides(self) -> bool:
        """Whether the trace shows the run's computation: on a device, or on the CPU alone."""
        return self.work in (DeviceWork.RECORDED, DeviceWork.NONE)

    @property
    def text(self) -> str:
        """The missing data, as a sentence; "" if nothing is missing."""
        return f"The trace holds {self.holds}, but not {self.lacks}: {self.collect}." if self.holds else ""


_OTHER_ACCELERATOR = re.compile(rf"{names.OTHER_ACCELERATOR_PATTERN}$")
_ASCEND = re.compile(names.ASCEND_PROCESS_PATTERN, re.I)
_RANGE_PROFILER = "cuda_profiler_range"


_PROFILE = "profile with ProfilerActivity.CPU and CUDA (or XPU), and check the log for CUPTI or ROCtracer errors"


def record_of(trace: Trace) -> DeviceRecord:
    unknown = _not_understood(trace)
    if unknown is not None:
        return unknown
    launches = device_events = 0
    captures = _any_name(trace, names.CAPTURE_BEGIN_PATTERN)
    if not trace.has_gpu or captures or _few_device_events(trace):
        launches, device_events = _launched(trace)
    launched_nothing = 1 - device_events / launches if launches else 0.0
    if captures and launched_nothing > TRACE_CONTENTS.captured_launches_share:
        return DeviceRecord(
            DeviceWork.CAPTURED,
            holds=f"a CUDA graph capture: {launches - device_events:,} of {launches:,} launches have no device work",
            lacks="the graph replays of the training steps",
            collect="profile steps after the warm-up in which the graphs are captured",
            launches=launches,
            device_events=device_events,
        )
    if launches and (
        not trace.has_gpu
        or (launches >= TRACE_CONTENTS.many_launches and launched_nothing > TRACE_CONTENTS.lost_launches_share)
    ):
        ranges = " (CUPTI's range profiler was enabled, which disables kernel records)"
        return DeviceRecord(
            DeviceWork.NOT_RECORDED,
            holds=f"{counted(launches, 'launch call')} and {device_events or 'no'} device event"
            f"{'' if device_events == 1 else 's'}"
            f"{ranges if _RANGE_PROFILER in trace.stored.categories else ''}",
            lacks="the kernels, copies and collectives on the device",
            collect=_PROFILE,
            launches=launches,
            device_events=device_events,
        )
    if trace.has_gpu:
        return DeviceRecord(DeviceWork.RECORDED)
    if (trace.backend and "nccl" in trace.backend) or _any_name(trace, names.GPU_OP_PATTERN):
        return DeviceRecord(
            DeviceWork.NOT_RECORDED,
            holds="the host side of operators that run on a GPU",
            lacks="their kernel launches and kernels",
            collect=_PROFILE,
        )
    return DeviceRecord(DeviceWork.NONE)


def _not_understood(trace: Trace) -> DeviceRecord | None:
    """Set if events of an accelerator, of unknown kinds, take a share of the time."""
    known = (*names.DEVICE_CATEGORIES, *names.LAUNCH_CATEGORIES)
    categories = [category for category in trace.stored.categories if category not in known]
    foreign = [category for category in categories if _OTHER_ACCELERATOR.match(category)]
    device = [category for category in foreign if not category.endswith(("_runtime", "_driver"))]
    device += [category for category in categories if not is_known(category) and _elsewhere(trace, category)]
    ascend = any(_ASCEND.match(name) for name in trace.process_names)
    share = _share(trace, device)
    if not foreign and share < TRACE_CONTENTS.least_unknown_events_share:
        return None
    if foreign and trace.has_gpu and share < TRACE_CONTENTS.least_unknown_events_share:
        return None
    families = dict.fromkeys(category.split("_")[0] for category in foreign)
    device_name = next(
        (names.OTHER_ACCELERATORS[family] for family in families if family in names.OTHER_ACCELERATORS),
        "an accelerator",
    )
    if ascend and not foreign:
        device_name = names.OTHER_ACCELERATORS["npu"]
    kinds = (
        f"category {', '.join(sorted(category for category in device if category))}" if any(device) else "no category"
    )
    events = (
        f"events of {device_name} ({kinds}) in {share:.0%} of its time" if device else f"runtime calls of {device_name}"
    )
    return DeviceRecord(
        DeviceWork.NOT_UNDERSTOOD,
        holds=events,
        lacks="device events that diag can classify as computation, communication or waiting",
        collect="use the vendor's analyser for the device, or a backend that reports kernels to Kineto as `kernel`",
        share=share,
    )


def _elsewhere(trace: Trace, category: str) -> bool:
    threads = trace.unsorted(category, columns=("thread",))["thread"].unique()
    return not {trace.threads[thread][0] for thread in threads} & set(trace.host_pids)


def _share(trace: Trace, categories: list[str]) -> float:
    """The fraction of the trace's time in which at least one event of these categories runs."""
    if not categories or trace.end_ns <= trace.begin_ns:
        return 0.0
    events = trace.unsorted(*categories, columns=("ts_ns", "dur_ns")).sort("ts_ns")
    if events.is_empty():
        return 0.0
    begin = events["ts_ns"].to_numpy()
    end = np.maximum.accumulate(begin + events["dur_ns"].to_numpy())
    before = np.concatenate((begin[:1], end[:-1]))
    covered = np.maximum(end - np.maximum(begin, before), 0).sum()
    return float(covered / (trace.end_ns - trace.begin_ns))


def _launched(trace: Trace) -> tuple[int, int]:
    """How many calls launch work, and for how many of them the device has an event."""
    calls = trace.unsorted(*names.LAUNCH_CATEGORIES, columns=("name", "correlation"))
    if calls.is_empty():
        return 0, 0
    launching = trace.stored.matching(names.LAUNCH_PATTERN)[calls["name"].to_numpy()]
    numbers = calls["correlation"].filter(pl.Series(launching))
    work = trace.unsorted(*names.DEVICE_CATEGORIES, columns=("correlation",))["correlation"].drop_nulls().unique()
    return len(numbers), int(numbers.is_in(work.implode()).sum())


def _few_device_events(trace: Trace) -> bool:
    """Whether the device has so few events that its record may be lost."""
    stored = trace.stored

    def rows(categories: tuple[str, ...]) -> int:
        frames = [f for f, category in zip(stored.frames, stored.categories, strict=True) if category in categories]
        return sum(int(frame.lazy().select(pl.len()).collect().item()) for frame in frames)

    return rows(names.DEVICE_CATEGORIES) < (1 - TRACE_CONTENTS.lost_launches_share) * rows(names.LAUNCH_CATEGORIES)


def _any_name(trace: Trace, pattern: str) -> bool:
    return bool(trace.stored.matching(pattern).any())
