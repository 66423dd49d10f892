"""The registry of fault classes: what each looks like in logs, and what to do about it.

One file a family. The texts and their priority are facts of NCCL, PyTorch, the kernel and the launchers; what a rule
concludes from several lines is in ``diag.hang.rules``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from diag.hang.model import Line
from diag.hang.signatures import cascade, collectives, hardware, infiniband, killed, memory, network, versions, waiting
from diag.hang.signatures.base import FaultClass, Hit, Signature
from diag.hang.text.blocks import Search, block_of

_FAMILIES = (hardware, killed, memory, network, infiniband, versions, collectives, waiting)

CLASSES: dict[str, FaultClass] = {found.id: found for family in _FAMILIES for found in family.CLASSES}
NEVER_ROOTS: tuple[FaultClass, ...] = (cascade.CASCADE, cascade.HARMLESS)
SIGNATURES: tuple[tuple[FaultClass, Signature], ...] = tuple(
    (found, signature) for found in (*CLASSES.values(), *NEVER_ROOTS) for signature in found.signatures
)

# Lines that no class asks for by itself, and rules do: the launcher's last block, what a process did last.
_CONTEXT = (
    "Root Cause (first observed failure)",
    "  time      : ",
    "  host      : ",
    "  rank      : ",
    "  exitcode  : ",
    "Init START",
    "Init COMPLETE",
    "Destroy COMPLETE",
    "Abort COMPLETE",
    "set by environment to",
)


@cache
def anchors() -> tuple[str, ...]:
    """Every literal that a signature or a rule looks for, without repetitions: what a reader must keep."""
    found = [anchor.strip("\n") for _, signature in SIGNATURES for anchor in signature.anchors]
    return tuple(dict.fromkeys((*found, *_CONTEXT)))


_BY_ANCHOR: dict[str, list[int]] = {}
for _number, (_, _signature) in enumerate(SIGNATURES):
    for _anchor in _signature.anchors:
        _BY_ANCHOR.setdefault(_anchor, []).append(_number)


def hits_in(line: Line) -> list[Hit]:
    """What the registry says about a line, in the registry's order."""
    return hits_of([line])


def hits_of(lines: Sequence[Line]) -> list[Hit]:
    """What the registry says about lines, in their order and then the registry's.

    One pass over their joined texts finds the anchors: 0.3 s for 30,000 lines, where 350 searches in each take 2 s."""
    search, wholes = _search(), [_whole(line) for line in lines]
    _, anchored = search.hits(block_of("\n".join(wholes).encode("utf-8", "replace")))
    found = []
    for index, _, words in anchored:
        line = lines[index]
        for number in sorted({number for word in words for number in _BY_ANCHOR[search.wanted[word]]}):
            fault_class, signature = SIGNATURES[number]
            match = signature.match(line)
            if match is not None:
                groups = {name: text for name, text in match.groupdict().items() if text is not None}
                found.append(Hit(fault_class, signature, line, groups))
    return found


@cache
def _search() -> Search:
    return Search(list(_BY_ANCHOR))


def _whole(line: Line) -> str:
    """As one line: its text may hold what was wrapped."""
    whole = line.raw if line.raw.endswith(line.text) else f"{line.raw} {line.text}"
    return whole.replace("\n", " ") if "\n" in whole else whole
