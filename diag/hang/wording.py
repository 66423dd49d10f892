"""Culprits, headlines and next steps in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from diag.collectors.reading import is_no_file
from diag.ended.model import Culprit, Source, culprit_words, host_list
from diag.hang.policy import HANG_ANSWER
from diag.words.formatting import listing, spaced

from .model import DoneByRecorder, ForStacks, Guess, Known, WhileItHangs

if TYPE_CHECKING:
    from diag.hang.classes.base import FaultClass

# Next steps where every rank of a group launched a call that does not end
NOBODY_IS_MISSING = (
    "Look at what carries the collective, on the hosts of the ranks that timed out: "
    "`dmesg -T | grep -iE 'xid|mlx5|nvlink'`, `nvidia-smi -q -d "
    "ECC`, `ibstat`; NCCL_IB_DISABLE=1 in a test rules the fast network out."
)
STARTED_WHERE = (
    "Next run: TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1: a rank whose dump has the call as scheduled, "
    "where others have it as started, has a GPU that is busy with earlier work, or stands still."
)

_NAMES_AN_EXCEPTION = re.compile(r"\brais(?:ed|ing) (?:[A-Z]|[a-z_]\w*\.)")


def steps(
    fault_class: FaultClass,
    culprits: Sequence[Culprit],
    note: str = "",
    evidence: Sequence[Source] = (),
    victims: Sequence[int] = (),
    facts: Known = Known(),  # noqa: B008 -- frozen
) -> tuple[str, ...]:
    """What to do next, with names filled in. ``note``: a sentence on what was seen; it decides whether the exception is
    still to be found. ``evidence``: its lines, for steps that fit one message of the class alone.
    ``victims``: ranks that are known to have waited. ``facts``: steps that these make impossible or needless are left
    out; where the stacks of the ranks at fault were read, the first step says where they are."""
    ranks = sorted({c.rank for c in culprits if c.rank is not None})
    hosts = list(dict.fromkeys(c.host for c in culprits if c.host))
    known = {
        "who": culprit_words(culprits) or "the rank that differs",
        "where": culprit_words(culprits) or "the host of the process that printed it",
        "host": host_list(hosts) or "the host of the process that printed it",
        "there": host_list(hosts) or "its host",
        "rank_words": spaced(listing(ranks)) if ranks else "the rank at fault",
        "waited": f"; {spaced(listing(victims))} only waited for it" if ranks and victims else "",
        "py_spy": _py_spy(culprits, facts.pids),
        "py_spy_native": _py_spy(culprits, facts.pids, "--native "),
        "mlxlink": _mlxlink(culprits),
        "ssh": _ssh(culprits),
        "ss": _ss([note, *(line.text for line in evidence)]),
        "nc": _nc([*(c.peer for c in culprits), *(line.text for line in evidence)]),
    }
    usual = fault_class.next_steps if _NAMES_AN_EXCEPTION.search(note) else fault_class.if_unnamed
    read = "\n".join(line.text for line in evidence)
    special = (own for literals, own in fault_class.if_read.items() if any(literal in read for literal in literals))
    chosen = next(special, usual or fault_class.next_steps)
    stacked = {rank: facts.stacked[rank] for rank in ranks if facts.stacked.get(rank)}
    where = (
        f"See what {'it' if len(stacked) == 1 else 'they'} did when the stacks were taken: "
        + ", ".join(f"rank {rank} in {frame}" for rank, frame in list(stacked.items())[: HANG_ANSWER.most_commands])
        + "."
    )
    read_stacks = bool(ranks) and len(stacked) == len(ranks)
    about_stacks = any(isinstance(step, ForStacks) for step in chosen)
    return (
        *((where,) if read_stacks and about_stacks else ()),
        *(
            step.format_map(known)
            for step in chosen
            if not (facts.ended and isinstance(step, WhileItHangs))
            and not ((read_stacks or facts.recorded) and isinstance(step, ForStacks))
            and not (facts.recorded and isinstance(step, DoneByRecorder))
        ),
    )


_ENDPOINT = re.compile(r"(?<![\w.:])(?P<host>\w[\w.:-]{0,254})<(?P<port>[1-9]\d{0,4})>")


def _py_spy(culprits: Sequence[Culprit], pids: Mapping[int, int], options: str = "") -> str:
    """The commands for each process that is known, and where to type them."""
    commands = [
        f"`py-spy dump {options}--pid {pids[c.rank]}`{f' on {c.host}' if c.host else f' (rank {c.rank})'}"
        for c in culprits
        if c.rank is not None and c.rank in pids
    ]
    if commands and len(commands) == len(culprits):
        return ", ".join(commands[: HANG_ANSWER.most_commands])
    hosts = list(dict.fromkeys(c.host for c in culprits if c.host))
    process = "its process" if len(culprits) <= 1 else "their processes"
    return f"py-spy dump {options}on {process}{f', on {host_list(hosts)}' if hosts else ''}"


def _mlxlink(culprits: Sequence[Culprit]) -> str:
    adapters = [c.nic for c in culprits if c.nic.startswith("mlx")]
    return f"`mlxlink -d {adapters[0]} -m`" if adapters else "`mlxlink -m` for the adapter"


def _ssh(culprits: Sequence[Culprit]) -> str:
    """The command that logs in to the host that was not reached, without a password."""
    host = next((c.peer for c in culprits if re.fullmatch(r"\w[\w.-]*", c.peer)), "")
    return f"`ssh -o PasswordAuthentication=no {host} hostname`" if host else "ssh without a password,"


def _nc(texts: Sequence[str]) -> str:
    """The command that tries the first endpoint that is named."""
    endpoint = next((match for text in texts if (match := _ENDPOINT.search(text))), None)
    return f"`nc -vz {endpoint['host']} {endpoint['port']}`" if endpoint else "`nc -vz` to its address and port"


_PORT = re.compile(
    r"(?:\[[0-9a-fA-F:.]*\]|(?:\d{1,3}\.){3}\d{1,3}):(?P<port>[1-9]\d{1,4})\b|\bport:? (?P<named>[1-9]\d{1,4})\b"
)


def _ss(texts: Sequence[str]) -> str:
    """The command that shows who listens on the first port that is named."""
    port = next((match for text in texts if (match := _PORT.search(text))), None)
    return f"`ss -ltnp 'sport = :{port['port'] or port['named']}'`" if port else "`ss -ltnp`"


def guess_words(guess: Guess) -> str:
    """``missing_rank, rank 3 on node1, 30%: It did not ..``"""
    name = culprit_words(guess.culprits)
    return f"{guess.fault_class}{f', {name}' if name else ''}, {guess.confidence:.0%}: {guess.note}"


# -- Gaps: which ones mean that a file was not read completely ---------------------------------------------------------

# How reasons begin for files that were read to the end. Any other reason that names a file means lost data.
EMPTY = "is empty"
SHARES = "the first and last lines of each process are kept"
NO_RANK = "collective calls of "

_READ_WHOLLY = (EMPTY, SHARES, NO_RANK)


def is_incomplete(reason: str) -> bool:
    """Whether a file was not read completely, by a gap's reason. Pipes, through which PyTorch is asked for a dump, and
    devices hold nothing to read."""
    return not reason.startswith(_READ_WHOLLY) and not is_no_file(reason)


def by_reason(gaps: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The files ("" for a gap of no file) by reason, in order."""
    files: dict[str, list[str]] = {}
    for path, reason in gaps:
        files.setdefault(reason, []).append(path)
    return files
