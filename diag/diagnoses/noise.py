"""How unequal ranks are without anything being wrong: what schedulers and wake-ups do, by the kind of machine."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from diag.rundir.run import Tables

MS = 1_000_000


class Noise(Struct, frozen=True):
    """Nanoseconds below which a difference says nothing. ``late``: of a rank against the others, a step;
    ``tail``: between the ranks' ends of one collective."""

    late_ns: int
    tail_ns: int


class Crowd(Struct, frozen=True):
    """A host with more CPU ranks than cores."""

    host: str
    ranks: int
    cores: int


def noise_of(tables: Tables) -> Noise:
    """On a device little; on a CPU a few time slices of the scheduler. Ends of one gloo collective on one host agree to
    half a millisecond, to six where ranks share cores [measured]; by order of ranks, so that it is always the same one.
    There a loader's worker waits for a core, too: with nothing planted, a rank of four on two cores was late by 10 ms a
    step, three steps of five, in two runs of four [measured].
    """
    if tables.on_device:
        return Noise(late_ns=MS // 5, tail_ns=MS // 20)
    if crowd_of(tables):
        return Noise(late_ns=25 * MS, tail_ns=6 * MS)
    return Noise(late_ns=5 * MS, tail_ns=MS)


def crowd_of(tables: Tables) -> Crowd | None:
    """The most crowded host; None where every rank has a core or computes on a device."""
    ranks: Counter[str] = Counter()
    cores: dict[str, int] = {}
    for rank in tables.ranks.values():
        if rank.identity is not None and rank.identity.cpus and not rank.on_device:
            ranks[rank.identity.host] += 1
            cores[rank.identity.host] = rank.identity.cpus
    host = max(ranks, key=lambda name: ranks[name] / cores[name], default=None)
    if host is None or ranks[host] <= cores[host]:
        return None
    return Crowd(host, ranks[host], cores[host])
