"""PyTorch's Flight Recorder analyser (``torchfrtrace``) for the benchmark.

It reads a folder of dumps, one file a rank. Its answer is what it prints first of a collective that not all ranks
joined or that differs: missing ranks are the culprits, otherwise the ranks that it calls culprits. Where it refuses
because dumps are missing, the ranks that it misses are the answer: nobody else left none.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from torch.distributed.flight_recorder import fr_trace

DUMP = re.compile(r"trace_rank_\d+$")
MISSING = re.compile(r"missing ranks: \{([\d, ]+)\}")
CULPRIT = re.compile(r"Culprit rank (\d+); Error type: (?:MatchState\.)?(\w+)")
NO_DUMP = re.compile(r"Missing dump files from ranks \{([\d, ]+)\}")


def answer(folder: Path) -> dict[str, object]:
    """The answer for one folder."""
    dumps = sorted({path.parent for path in folder.rglob("*") if DUMP.search(path.name)})
    if not dumps:
        return {"not_applicable": "no dumps of the Flight Recorder"}
    printed, failure = _printed([str(dumps[0])])
    no_dump = NO_DUMP.search(failure)
    if no_dump:
        return {"class": "missing dump files", "culprits": _ranks(no_dump[1].split(","))}
    missing, culprit = MISSING.search(printed), CULPRIT.search(printed)
    if missing and (not culprit or missing.start() < culprit.start()):
        return {"class": "not all ranks joined", "culprits": _ranks(missing[1].split(","))}
    if culprit:
        until = printed.find("Collective sequence number", culprit.end())
        here = CULPRIT.findall(printed, culprit.start(), until if until > 0 else len(printed))
        return {"class": culprit[2], "culprits": _ranks(rank for rank, _ in here)}
    return {"class": "", "culprits": [], "why": failure or printed[-300:]}


def _ranks(texts: Iterable[str]) -> list[dict[str, int]]:
    return [{"rank": rank} for rank in sorted({int(text) for text in texts})]


def _printed(arguments: list[str]) -> tuple[str, str]:
    """What it prints and logs, and the exception that ended it."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("Flight Recorder")
    logger.handlers = [handler]
    try:
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            fr_trace.main(arguments)
    except (Exception, SystemExit) as error:
        return text.getvalue(), f"{type(error).__name__}: {error}"
    return text.getvalue(), ""


if __name__ == "__main__":
    for given in sys.stdin:
        print(json.dumps(answer(Path(given.strip()))), flush=True)
