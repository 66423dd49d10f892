"""NVIDIA Resiliency Extension, Flight Recorder analyser without a language model, for the benchmark.

The culprits are the ranks that it calls hanging. With a language model it chooses among the groups of its table;
without one it takes the missing ranks of all of them.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from pathlib import Path

from nvidia_resiliency_ext.attribution.trace_analyzer.fr_attribution import CollectiveAnalyzer

DUMP = re.compile(r"trace_rank_\d+$")


def answer(folder: Path) -> dict[str, object]:
    """The answer for one folder."""
    dumps = sorted({path.parent for path in folder.rglob("*") if DUMP.search(path.name)})
    if not dumps:
        return {"not_applicable": "no dumps of the Flight Recorder"}
    arguments = {"fr_path": str(dumps[0]), "pattern": "*trace_rank_*", "llm_analyze": False, "verbose": False}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            result = CollectiveAnalyzer(arguments).run_sync(arguments)
        except Exception as error:
            return {"class": "", "why": f"{type(error).__name__}: {error}"}
    payload = result[0] if isinstance(result, tuple) else result
    said = payload.get("hanging_ranks", "") if isinstance(payload, dict) else ""
    ranks = [int(text) for text in re.findall(r"\d+", said)]
    return {"class": "hanging ranks" if ranks else "", "culprits": [{"rank": rank} for rank in ranks], "why": said}


if __name__ == "__main__":
    for given in sys.stdin:
        print(json.dumps(answer(Path(given.strip()))), flush=True)
