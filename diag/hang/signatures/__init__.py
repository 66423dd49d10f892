"""The registry of fault classes: what each looks like in logs, and what to do about it.

One file a family. The texts and their priority are facts of NCCL, PyTorch, the kernel and the launchers; what a rule
concludes from several lines is in ``diag.hang.rules``.
"""

from __future__ import annotations

from functools import cache

from diag.hang.model import Line
from diag.hang.signatures import cascade, collectives, hardware, infiniband, killed, memory, network, versions, waiting
from diag.hang.signatures.base import FaultClass, Hit, Signature

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
    whole = line.raw if line.raw.endswith(line.text) else f"{line.raw}\n{line.text}"
    # filter over a bound method: 0.8 s for 100,000 lines, where a loop over the signatures takes 3.2 s.
    anchored = list(filter(whole.__contains__, _BY_ANCHOR))
    if not anchored:
        return []
    found = []
    for number in sorted({number for anchor in anchored for number in _BY_ANCHOR[anchor]}):
        fault_class, signature = SIGNATURES[number]
        match = signature.match(line)
        if match is not None:
            groups = {name: text for name, text in match.groupdict().items() if text is not None}
            found.append(Hit(fault_class, signature, line, groups))
    return found
