"""How a file of NCCL Inspector or RCCL Inspector begins; ``inspector`` reads them."""

from __future__ import annotations

import re
from typing import Final

_MARKS: Final = (b'"coll_perf"', b'"p2p_perf"', b'"dump_stats"', b'"inspector_output_format_version"')
_METRIC: Final = re.compile(
    rb"^(?:# (?:HELP|TYPE) )?nccl_(?:p2p_)?(?:bus_bandwidth_gbs|\w+_exec_time_microseconds)\b", re.MULTILINE
)


def begins_inspector(head: bytes) -> bool:
    """Whether this is the beginning of a file of NCCL Inspector or RCCL Inspector."""
    is_json = head.lstrip()[:1] == b"{" and any(mark in head for mark in _MARKS)
    return is_json or _METRIC.search(head) is not None
