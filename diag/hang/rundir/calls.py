"""Which rank called another collective than it should have: against the other ranks, and against its own step before.

A training calls the same collectives step after step. Where two ranks differ, nobody can tell from that call alone
which of them is wrong; the one that also differs from its own step before is. So this names one rank of two, which a
single dump or log line cannot. Ranks that ended in C++ (gloo aborts when it receives more than it expects) leave no
record of their last step: gloo's message tells what they expected.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diag.hang.model import Clue, Evidence, Role
from diag.hang.rundir.read import Call, Rank, Rundir
from diag.words.formatting import listing, spaced

Calls = tuple[Call, ...]

# gloo's transport: received more bytes than the buffer of this rank's call.
_TOO_LONG = re.compile(r"op\.preamble\.length <= op\.nbytes\. (?P<received>\d+) vs (?P<expected>\d+)")
_BY_VOTE = 0.9
_BY_HISTORY = 0.85
_BY_MESSAGE = 0.85
_EITHER = 0.7  # two ranks, no step before to compare with: both are named


@dataclass(frozen=True)
class _Odd:
    """Ranks that called ``did`` where the others called ``should``, as their ``place``-th collective of a step."""

    fault_class: str
    ranks: tuple[int, ...]
    step: int
    place: int
    did: Call | None
    should: Call | None
    confidence: float
    because: str
    aborted: tuple[int, ...] = ()  # those that gloo ended: what they did is not recorded


def clues(run: Rundir) -> list[Clue]:
    """One clue where calls differ; none of a run without trouble."""
    opened = [one.open_step for one in run.ranks.values() if one.open_step is not None]
    if not opened or (run.asked is None and not any(one.exit for one in run.ranks.values())):
        return []
    odd = _different(run, max(opened)) or _aborted(run, max(opened))
    return [_clue(run, odd)] if odd is not None else []


def _different(run: Rundir, last: int) -> _Odd | None:
    """The first place at which the calls of living records differ, in the step before the last or in the last."""
    for step in (last - 1, last):
        of_step = {rank: one.steps[step] for rank, one in run.ranks.items() if step in one.steps}
        for group in sorted({call.group for calls in of_step.values() for call in calls}):
            members = {rank: _of_group(calls, group) for rank, calls in of_step.items() if _is_member(run, rank, group)}
            before = {rank: _of_group(run.ranks[rank].steps.get(step - 1, ()), group) for rank in members}
            odd = _first_difference(step, members, before) or _alone(run, step, members, before)
            if odd is not None:
                return odd
    return None


def _is_member(run: Rundir, rank: int, group: str) -> bool:
    named = [one.groups[group] for one in run.ranks.values() if group in one.groups]
    return rank in named[0] if named else True


def _first_difference(step: int, calls: Mapping[int, Calls], before: Mapping[int, Calls]) -> _Odd | None:
    for place in range(max(map(len, calls.values()), default=0)):
        here = {rank: of_rank[place] for rank, of_rank in calls.items() if len(of_rank) > place}
        votes = Counter(call.what for call in here.values())
        if len(votes) < 2:
            continue
        usual, count = votes.most_common(1)[0]
        if 2 * count > len(here):
            odd = tuple(rank for rank, call in here.items() if call.what != usual)
            sure, because = _BY_VOTE, "the others agree"
        else:
            steady = {rank for rank in here if _continues(calls[rank][: place + 1], before[rank])}
            odd = tuple(rank for rank in here if rank not in steady)
            sure, because = _BY_HISTORY, f"in step {step - 1} it did not"
            if not steady or not odd:
                odd, sure, because = tuple(here), _EITHER, "nothing tells which of them is wrong"
        model = next((rank for rank in here if rank not in odd), odd[-1])
        should, did = here[model], here[odd[0]]
        expected = max((calls[model], before[odd[0]], before[model]), key=len)
        return _Odd(_class(calls[odd[0]], expected, place), odd, step, place, did, should, sure, because)
    return None


def _alone(run: Rundir, step: int, calls: Mapping[int, Calls], before: Mapping[int, Calls]) -> _Odd | None:
    """A single record of the step, of two ranks: it is held against its own step before."""
    if len(calls) != 1 or run.world_size != 2:
        return None
    rank, own = next(iter(calls.items()))
    earlier = before[rank]
    for place, (did, should) in enumerate(zip(own, earlier, strict=False)):
        if did.what != should.what:
            because = f"in step {step - 1} it did"
            return _Odd(_class(own, earlier, place), (rank,), step, place, did, should, _BY_HISTORY, because)
    return None


def _class(own: Calls, expected: Calls, place: int) -> str:
    """A call left out: what follows is what should have followed."""
    rest, following = own[place:], expected[place + 1 :]
    if rest and _continues(rest, following):
        return "desync"
    if place < len(expected) and own[place].what[0] == expected[place].what[0]:
        return "mismatch_shape"
    return "mismatch_op"


def _continues(calls: Sequence[Call], expected: Sequence[Call]) -> bool:
    return len(calls) <= len(expected) and all(a.what == b.what for a, b in zip(calls, expected, strict=False))


def _of_group(calls: Calls, group: str) -> Calls:
    return tuple(call for call in calls if call.group == group)


def _aborted(run: Rundir, step: int) -> _Odd | None:
    """Ranks that gloo aborted, while all records of the last step agree with each other."""
    found = {rank: match for rank, one in run.ranks.items() if (match := _TOO_LONG.search(one.log)) is not None}
    found = {rank: match for rank, match in found.items() if step not in run.ranks[rank].steps}
    alive = [one for one in run.ranks.values() if step in one.steps]
    if not found or not alive:
        return None
    pending = next((call for one in alive for call in one.steps[step] if not call.ended), None)
    sizes = {call.bytes for one in run.ranks.values() for calls in one.steps.values() for call in calls}
    steady = [one for one in alive if step - 1 in one.steps and _continues(one.steps[step], one.steps[step - 1])]
    guilty, classes = [], []
    for rank, match in found.items():
        received, expected = int(match["received"]), int(match["expected"])
        # gloo cuts a tensor into segments: as many as the one that arrived was cut into.
        waits = {call.bytes for one in alive for call in one.steps[step][-2:]}
        cuts = {size // received for size in waits if received and size % received == 0} | {1}
        own = {expected * cut for cut in cuts}
        if pending is not None and pending.bytes in own:
            continue  # it was in the call of the others: what arrived was wrong
        guilty.append(rank)
        classes.append("desync" if own & sizes else "mismatch_shape")
    if not guilty:
        return None
    if len(run.ranks) == 2 and not steady:
        everybody = tuple(run.ranks)
        because = "nothing tells which of them is wrong"
        return _Odd(classes[0], everybody, step, -1, None, pending, _EITHER, because, tuple(guilty))
    because = (
        "what it expected is no part of any call of the others"
        if classes[0] == "mismatch_shape"
        else ("what it expected belongs to another call of the step")
    )
    return _Odd(classes[0], tuple(guilty), step, -1, None, pending, _BY_MESSAGE, because, tuple(guilty))


def _clue(run: Rundir, odd: _Odd) -> Clue:
    ranks = [run.ranks[rank] for rank in odd.ranks]
    others = [one for rank, one in run.ranks.items() if rank not in odd.ranks]
    return Clue(
        fault_class=odd.fault_class,
        role=Role.ROOT,
        culprits=tuple(one.culprit for one in ranks),
        evidence=tuple(_evidence(one, odd) for one in (*ranks[:4], *others[:1])),
        confidence=odd.confidence,
        note=_note(odd),
        victims=tuple(rank for rank in run.ranks if rank not in odd.ranks),
    )


def _note(odd: _Odd) -> str:
    who = spaced(listing(odd.aborted or odd.ranks))
    who = who[0].upper() + who[1:]
    if odd.did is None:
        where = f", where the others call {odd.should}" if odd.should is not None else ""
        return f"{who} received more than expected in step {odd.step}{where}; {odd.because}"
    where = f"as collective {odd.place + 1} of step {odd.step}"
    if odd.fault_class == "desync":
        return f"{who} left out {odd.should} {where} and went on with {odd.did}; {odd.because}"
    return f"{who} called {odd.did} {where}, others {odd.should}; {odd.because}"


def _evidence(one: Rank, odd: _Odd) -> Evidence:
    calls = one.steps.get(odd.step)
    if calls is None:
        match = _TOO_LONG.search(one.log)
        text = match[0] if match else "left no record of that step"
        return Evidence(str(one.folder / "log.txt"), 0, f"rank {one.culprit.rank}: {text}")
    shown = calls[max(0, odd.place - 1) : odd.place + 2] if odd.place >= 0 else calls[-2:]
    words = ", ".join(f"#{call.seq} {call}{'' if call.ended else ' (waits)'}" for call in shown)
    return Evidence(str(one.folder / "collectives.jsonl"), 0, f"rank {one.culprit.rank}, step {odd.step}: … {words}")
