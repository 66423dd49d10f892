"""Completions with errors: a link has two ends, and the end that most failing links share is the suspect."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from diag.hang.case import Case
from diag.hang.model import Clue, Culprit, Role
from diag.hang.rules.direct import clue_of
from diag.hang.signatures.base import NAMES_AN_EFFECT, SUGGESTS, Hit

_RETRIES_USED_UP = "12"
_FATAL = ("ib_device_fatal", "ib_link_down")
_CLEAR = 0.85


@dataclass(frozen=True)
class _Pair:
    """One end that reports, and the other end. A host, or an address that nothing ties to one."""

    here: str
    there: str
    hca: str
    hit: Hit

    @property
    def ends(self) -> frozenset[str]:
        return frozenset((self.here, self.there))


def clues(case: Case) -> list[Clue]:
    hits, events = case.named("completion-with-error"), case.named("queue-event")
    failed = {(case.culprit(hit.line).host, hit.groups.get("hca", "")) for hit in events}
    worse = [hit for hit in case.of_class(*_FATAL) if hit.signature.role == Role.ROOT]
    if len(failed) == 1 and not worse:
        # The side whose queue reports the error is the one that refused or damaged the transfer.
        statuses = "".join(f" A peer got status {_status(hit)}." for hit in hits[:1])
        culprits = [replace(case.culprit(events[0].line), nic=events[0].groups.get("hca", ""))]
        note = f"{events[0].sentence}{statuses}"
        sure = NAMES_AN_EFFECT if hits else SUGGESTS
        return [clue_of("ib_completion_error", events, culprits, note, hits, confidence=sure)]
    if not hits:
        return []
    pairs = [_pair(case, hit) for hit in hits]
    links = {pair.ends for pair in pairs if len(pair.ends - {""}) == 2}
    counts = Counter(end for link in links for end in link if end)
    ranked = counts.most_common()
    status = _status(hits[0])
    seen = f"status {status}{' (retries used up)' if status == _RETRIES_USED_UP else ''}"
    flushed = case.named("completion-flushed")[:2]
    if len(links) > 1 and len(ranked) > 1 and ranked[0][1] > ranked[1][1]:
        end = ranked[0][0]
        adapters = Counter(pair.hca for pair in pairs if pair.here == end and pair.hca)
        peer = adapters.most_common(1)[0][0] if len(adapters) == 1 else ""
        note = f"{end} is an end of {ranked[0][1]} of {len(links)} links with {seen}."
        return [clue_of("ib_completion_error", hits, [_end(case, end, peer)], note, flushed, confidence=_CLEAR)]
    culprits = []
    for pair in pairs:
        if pair.here:
            culprits.append(_end(case, pair.here, pair.there, pair.hca))
        if pair.there not in ("", pair.here):
            culprits.append(_end(case, pair.there, pair.here))
    ends = " and ".join(sorted(end for end in counts))
    gids = [hits[0].groups[name] for name in ("local_gid", "remote_gid") if name in hits[0].groups]
    note = f"{seen.capitalize()} between {ends}: the link, not one of its hosts." if ends else f"{seen.capitalize()}."
    note += f" GIDs: {' and '.join(gids)}." if gids else ""
    sure = NAMES_AN_EFFECT if len(links) == 1 else SUGGESTS
    return [clue_of("ib_completion_error", hits, culprits, note, flushed, confidence=sure)]


def _status(hit: Hit) -> str:
    return next(hit.groups[name] for name in ("error", "named_status", "status") if name in hit.groups)


def _pair(case: Case, hit: Hit) -> _Pair:
    here = case.culprit(hit.line)
    name = case.resolve(here.host) or here.host or (f"rank {here.rank}" if here.rank is not None else "")
    peer = hit.groups.get("peer", "")
    return _Pair(name, case.resolve(peer) or peer.partition("<")[0], hit.groups.get("hca", ""), hit)


def _end(case: Case, end: str, peer: str, nic: str = "") -> Culprit:
    if end.startswith("rank "):
        found = case.of_rank(int(end.removeprefix("rank ")))
        return Culprit(found.rank, found.host, found.gpu, peer=peer, nic=nic)
    return replace(case.of_host(end, peer=peer), nic=nic)
