"""The process in which HTA runs: jobs as JSON on standard input, one line of JSON per answer on standard output.

Started by diag.crosscheck.analyses as a script. It does not import diag, and it imports HTA only while it runs a job:
HTA logs, warns, prints, configures logging for the whole process, and keeps about five times the file in memory.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import tempfile
import warnings
from typing import Any

_LONGEST_EDGES = 20
Found = dict[str, Any]


def breakdown(job: Found) -> Found:
    """HTA's temporal breakdown and overlap with default settings, and the window of its events. Microseconds."""
    analysis = _analysis(job, last_step=False)
    times = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    overlap = float(analysis.get_comm_comp_overlap(visualize=False).iloc[0]["comp_comm_overlap_pctg"])
    trace = analysis.t.get_trace(job["rank"])
    device_events = trace[trace["stream"].ne(-1)]
    return {
        "begin_us": float(device_events["ts"].min() + analysis.t.min_ts),
        "end_us": float((device_events["ts"] + device_events["dur"]).max() + analysis.t.min_ts),
        "window_us": float(times["kernel_time(us)"]),
        "compute_us": float(times["compute_time(us)"]),
        "non_compute_us": float(times["non_compute_time(us)"]),
        "idle_us": float(times["idle_time(us)"]),
        "overlap_percent": None if math.isnan(overlap) else overlap,
    }


def ranks(job: Found) -> Found:
    """The file that HTA chooses for each rank when it gets a folder and reads the ranks from the files."""
    from hta.common.trace_file import create_rank_to_trace_dict

    return {str(rank): path for rank, path in create_rank_to_trace_dict(job["paths"])[1].items()}


def critical_path(job: Found) -> Found:
    """The edges on the critical path through one annotated range, summed by (type, category, on a stream, name), and
    the longest ones. Microseconds. Includes the last step, so that any step can be requested."""
    analysis = _analysis(job, last_step=True)
    instance = _instance(analysis, job["rank"], job["annotation"])
    graph, succeeded = analysis.critical_path_analysis(job["rank"], job["annotation"], instance)
    if not succeeded:
        raise RuntimeError("HTA's graph of the step is not valid")
    names = analysis.t.symbol_table.get_sym_table()
    sums: dict[tuple[str, str, bool, str], list[float]] = {}
    edges = []
    for edge in graph.get_critical_path_breakdown().itertuples():
        is_event = edge.event_idx is not None and edge.event_idx == edge.event_idx  # NaN: an edge between two events
        key = (
            (edge.type, names[int(edge.cat)], edge.stream >= 0, edge.s_name) if is_event else (edge.type, "", False, "")
        )
        total = sums.setdefault(key, [0.0, 0])
        total[0] += float(edge.duration)
        total[1] += 1
        edges.append((float(edge.duration), *key))
    return {
        "sums": [[*key, *total] for key, total in sums.items()],
        "longest": sorted(edges)[: -_LONGEST_EDGES - 1 : -1],
    }


def sequences(job: Found) -> Found:
    """The most frequent kernel sequences under operators whose name contains a text. Microseconds."""
    analysis = _analysis(job, last_step=True)
    with tempfile.TemporaryDirectory() as folder:  # HTA insists on writing a copy of the trace
        patterns = analysis.get_frequent_cuda_kernel_sequences(
            operator_name=job["operator"],
            output_dir=folder,
            min_pattern_len=job["length"],
            rank=job["rank"],
            top_k=1,
            visualize=False,
        )
    rows = patterns.head(job["most"]).itertuples(index=False, name=None)
    return {"found": len(patterns), "sequences": [[row[0], *map(float, row[1:])] for row in rows]}


def _analysis(job: Found, last_step: bool) -> Any:
    """HTA on one file. The rank is passed in: HTA's own search for it needs a blank after ``"rank":``."""
    from hta.trace_analysis import TraceAnalysis

    return TraceAnalysis(trace_files={job["rank"]: job["path"]}, include_last_profiler_step=last_step)


def _instance(analysis: Any, rank: int, annotation: str) -> int:
    """The index, among the events that HTA finds for an annotation, of the host range with exactly this name. HTA also
    matches every name that contains the text (#1 finds #10), and the device's copy of a range."""
    trace, names = analysis.t.get_trace(rank), analysis.t.symbol_table.get_sym_table()
    matches = trace[trace["name"].isin([code for code, name in enumerate(names) if annotation in name])]
    for position, (name, category) in enumerate(zip(matches["name"], matches["cat"], strict=True)):
        if names[name] == annotation and not names[category].startswith("gpu"):
            return position
    raise LookupError(f"HTA keeps no range {annotation}")


def _answer(job: Found) -> Found:
    jobs = {"breakdown": breakdown, "ranks": ranks, "critical_path": critical_path, "sequences": sequences}
    try:
        return {"found": jobs[job["job"]](job)}
    except Exception as error:  # any exception of HTA is an answer, shown as a line of the report
        return {"error": f"{type(error).__name__}: {error}".strip().rstrip(":")}


def main() -> None:
    """Answers every job, in order."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # discards what HTA prints
    for job in json.load(sys.stdin):
        answers.write(json.dumps(_answer(job)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
