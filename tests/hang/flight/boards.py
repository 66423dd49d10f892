"""Small dumps, one call a word."""

from __future__ import annotations

import json
import re
from pathlib import Path

from diag.hang.flight import FlightFindings, clues_of, read_dumps

_CALL = re.compile(
    r"(?P<group>[A-Za-z]\w*|\d+):(?P<op>\w+)(?:\[(?P<size>\d+)\])?(?:\((?P<pair>\d+>\d+)\))?(?P<pending>\?)?"
)

Groups = dict[str, tuple[int, ...]]


def dump(
    rank: int, groups: Groups, calls: str, *, backend: str = "nccl", first: int = 0, dtype: str = "Float"
) -> dict[str, object]:
    """``calls``: "0:all_reduce[8] 1:send(0>1)?"; a question mark is pending. Pairs are ranks within the group.
    ``first``: how many entries the ring has lost; the numbers go on."""
    numbers: dict[tuple[str, bool], int] = {}
    entries = []
    mine = [name for name, ranks in groups.items() if rank in ranks]
    for record, word in enumerate(calls.split()):
        call = _CALL.fullmatch(word)
        assert call, word
        name, pending = call["group"], bool(call["pending"])
        pair = call["pair"]
        numbers[name, bool(pair)] = numbers.get((name, bool(pair)), 0) + 1
        spelled = f"{backend}:{call['op']}"
        if pair:
            src, dst = pair.split(">")
            spelled += f" {src}->{dst}" if call["op"] == "send" else f" {dst}<-{src}"
        numel = int(call["size"] or 16)
        size = len(groups[name])
        ins = [[numel * size]] if "reduce_scatter" in call["op"] else [[numel]]
        outs = [[numel * size]] if "all_gather" in call["op"] else [[numel]]
        if record < first:
            continue
        entries.append(
            {
                "record_id": record,
                "pg_id": mine.index(name),
                "process_group": [name, "default_pg" if name == "0" else f"{name}_GROUP"],
                "collective_seq_id": numbers.get((name, False), 0),
                "p2p_seq_id": numbers.get((name, True), 0),
                "profiling_name": spelled,
                "time_created_ns": 10**18 + record * 1000 + rank,
                "input_sizes": ins,
                "input_dtypes": [dtype],
                "output_sizes": outs,
                "output_dtypes": [dtype],
                "state": "scheduled" if pending or backend == "gloo" else "completed",
                "time_discovered_completed_ns": None if pending or backend == "gloo" else 1,
                "retired": not pending,
                "is_p2p": bool(pair),
                "frames": [{"name": f"called_{call['op']}", "filename": "train.py", "line": record}],
            }
        )
    config = {name: {"name": name, "desc": f"{name}_GROUP", "ranks": str(list(groups[name]))} for name in mine}
    return {
        "version": "2.10",
        "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}} if backend == "gloo" else config,
        "pg_status": {},
        "entries": entries,
    }


def find(
    folder: Path, groups: Groups, calls: dict[int, str], world_size: int | None = None, backend: str = "nccl"
) -> FlightFindings:
    """What the dumps of these ranks say."""
    for rank, words in calls.items():
        content = dump(rank, groups, words, backend=backend)
        (folder / f"nccl_trace_rank_{rank}").write_text(json.dumps(content))
    return clues_of(read_dumps([folder]), world_size)


def culprits(found: FlightFindings) -> list[int | None]:
    """Of the first clue; none where there is none."""
    return [culprit.rank for culprit in found.clues[0].culprits] if found.clues else []
