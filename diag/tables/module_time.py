"""Time of modules: device time by the module that launched it.

Communication is left out of the table: how long an NCCL kernel lasts depends on the other ranks. Work of the backward
counts if a range names its module, which only FSDP's hooks and recomputed forwards do: Kineto links a backward to its
forward by autograd's sequence numbers, which our tables do not contain. The rest is "unattributed".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from diag.account import intervals as iv
from diag.account.intervals import Window, covers
from diag.deferred import pl
from diag.model.breakdown import ModuleStat, ModuleTable
from diag.model.steps import Detail

from . import nesting
from .module_ranges import UNATTRIBUTED, ModuleRanges
from .recompute import Recomputed
from .work import WorkTable

_COMM = "comm"
_TIMES = ("forward", "backward", "recompute")


def partial(work: WorkTable, modules: ModuleRanges, recomputed: Recomputed, host: Sequence[Window]) -> pl.DataFrame:
    """One row per module of one trace, "" for work outside of all; these add up over traces.

    Columns: name, parent, calls, host_ns, forward, backward, recompute and their ``own_`` twins (ns). ``host``: the
    host's windows of the counted steps, whose calls are counted; the device may be whole steps behind the host.
    """
    calls, frame = modules.calls, work.frame
    time = np.where((frame["class"] == _COMM).to_numpy(), 0, frame["dur_ns"].to_numpy())
    in_backward = (frame["phase"] == int(Detail.BACKWARD)).to_numpy()
    at = nesting.enclosing(calls, *work.launches)
    passes = (~in_backward, in_backward, in_backward & recomputed.mask)  # in the order of _TIMES
    own_ns = np.stack([_sums(at, np.where(chosen, time, 0), len(calls)) for chosen in passes], axis=1)
    parent = nesting.parents(calls)
    steps = iv.make((begin, end) for _, begin, end in host)
    rows = _rows(calls, parent, own_ns[:-1], covers(steps, calls["ts_ns"].to_numpy()))
    outside = {"name": [UNATTRIBUTED], "parent": [""], "calls": [0], "host_ns": [0]}
    for i, key in enumerate(_TIMES):
        outside[key] = outside[f"own_{key}"] = [int(own_ns[-1, i])]
    return pl.concat([rows, pl.DataFrame(outside, schema=rows.schema)])


def module_table(source: str, parts: Sequence[pl.DataFrame], rank_steps: int) -> ModuleTable:
    """The table of all traces' parts, rows by decreasing time."""
    rows = (
        pl.concat(parts)
        .group_by("name", maintain_order=True)
        .agg(
            pl.col("parent").first(), *(pl.col(key).sum() for key in parts[0].columns if key not in ("name", "parent"))
        )
        .with_columns(
            (pl.col("forward") + pl.col("backward")).alias("total"),
            (pl.col("own_forward") + pl.col("own_backward")).alias("own"),
        )
        .sort(["total", "host_ns", "name"], descending=[True, True, False])
    )
    busy = int(rows["own"].sum())
    outside = rows.filter(pl.col("name") == UNATTRIBUTED)
    return ModuleTable(
        source=source,
        rows=tuple(
            ModuleStat(
                name=row["name"],
                parent=row["parent"],
                calls=row["calls"],
                host_ns=row["host_ns"],
                forward_ns=row["forward"],
                backward_ns=row["backward"],
                recompute_ns=row["recompute"],
                self_ns=row["own"],
                share=row["total"] / busy if busy else 0.0,
            )
            for row in rows.filter(
                pl.col("name") != UNATTRIBUTED, (pl.col("calls") > 0) | (pl.col("total") > 0)
            ).to_dicts()
        ),
        busy_ns=busy,
        rank_steps=rank_steps,
        unattributed_ns=int(outside["own"].sum()),
        unattributed_backward_ns=int(outside["own_backward"].sum()),
    )


def _sums(at: nesting.Rows, time: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """Nanoseconds of each range's own pieces; the last value is for pieces outside of all ranges."""
    sums = np.zeros(count + 1, dtype=np.int64)
    np.add.at(sums, at, time)  # -1, outside of all, is the last place
    return sums


def _rows(
    calls: pl.DataFrame, parent: nesting.Rows, own_ns: npt.NDArray[np.int64], counted: npt.NDArray[np.bool_]
) -> pl.DataFrame:
    whole = own_ns.copy()
    for depth, inner in reversed(list(nesting.by_value(nesting.depths(parent)))):
        if depth:
            np.add.at(whole, parent[inner], whole[inner])
    name = calls["name"].cast(pl.String)
    around = name.gather(pl.Series(parent, dtype=pl.Int64).replace(nesting.NONE, None)).fill_null("")
    outermost = (name != around).to_numpy()  # a module inside itself is in the outer one's time already
    times = {key: whole[:, i] * outermost for i, key in enumerate(_TIMES)}
    owns = {f"own_{key}": own_ns[:, i] for i, key in enumerate(_TIMES)}
    host = calls["dur_ns"].to_numpy() * (outermost & counted)
    return (
        pl.DataFrame(
            {"name": name, "parent": around, "calls": counted.astype(np.int64), "host_ns": host, **times, **owns}
        )
        .group_by("name", maintain_order=True)
        .agg(pl.col("parent").first(), pl.exclude("name", "parent").sum())
    )
