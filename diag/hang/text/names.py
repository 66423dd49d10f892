"""What the name of a file tells: whose log it is."""

from __future__ import annotations

import re
from dataclasses import dataclass

_RUN = re.compile(r"(?:^|/)ranks/(\d{5,})/[^/]+$")  # a run directory of this project
_LOCAL = re.compile(r"(?:^|/)attempt_\d+/(\d+)/std(?:out|err)\.log(?:\.gz|\.zst)?$|local_?rank[_.-]?(\d+)(?!\d)")
_GLOBAL = re.compile(r"(?:^|[/._-])(?:rank[_.-]?|log_)(\d+)(?=[/._-]|$)", re.IGNORECASE)
_NODE = re.compile(r"(?:node|local|group|machine)[_.-]?rank", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Named:
    rank: int | None = None  # global
    local_rank: int | None = None


def named(path: str) -> Named:
    """rank3.log, log_3, rank_3/err.txt and ranks/00003/log.txt: global; torchrun's attempt_0/3/stderr.log: local."""
    if match := _RUN.search(path):
        return Named(rank=int(match[1]))
    if match := _LOCAL.search(path):
        return Named(local_rank=int(match[1] or match[2]))
    name = "/".join(path.rsplit("/", 2)[-2:])  # a folder further up names the job, if anything
    found = [int(match[1]) for match in _GLOBAL.finditer(name)]
    if not found or _NODE.search(name) or found[-1] >= 10_000_000:
        return Named()
    return Named(rank=found[-1])
