"""Clocks of ranks, from collectives whose true times are known: offsets, rates, and when neither can be told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from diag.account.calls import Key, Matched
from diag.account.match import Alignment, align, by_key
from diag.model.steps import CollectiveCall

US, MS, S = 1_000, 1_000_000, 1_000_000_000
DAY = 86_400 * S


def collectives(
    ranks: int, every_ns: int, count: int, late: Sequence[int] = (), seed: int = 0, groups: Sequence[Sequence[int]] = ()
) -> dict[Key, dict[int, tuple[int, int]]]:
    """True starts and ends: ranks arrive up to 2 ms apart, those in ``late`` another 5 ms; the end is everybody's, give
    or take 50 us."""
    rng = Random(seed)
    met = {}
    for number in range(count):
        for group in groups or [range(ranks)]:
            begin = DAY + number * every_ns
            starts = {rank: begin + rng.randrange(2 * MS) + 5 * MS * (rank in late) for rank in group}
            done = max(starts.values()) + MS
            met[str(list(group)), number, "all_reduce"] = {
                rank: (start, done + rng.randrange(50 * US)) for rank, start in starts.items()
            }
    return met


def seen(met: dict[Key, dict[int, tuple[int, int]]], offset: Sequence[int], ppm: Sequence[float] = ()) -> Matched:
    """What the ranks record of it: their clocks show ``offset`` more at the start, and gain ``ppm``."""

    def shown(rank: int, time_ns: int) -> int:
        return time_ns + offset[rank] + (round((time_ns - DAY) * ppm[rank] / 1e6) if ppm else 0)

    calls: dict[int, list[CollectiveCall]] = defaultdict(list)
    for key, members in met.items():
        for rank, (start, end) in members.items():
            calls[rank].append(CollectiveCall(key, key[2], key[0], (), 0, shown(rank, start), shown(rank, end)))
    return by_key(calls)


def hosts(count: int) -> dict[int, str]:
    return {rank: f"node-{rank}" for rank in range(count)}


def worst_error(found: Alignment, met: dict[Key, dict[int, tuple[int, int]]], calls: Matched) -> int:
    """The largest mistake about how far two ranks' starts are apart, over all collectives."""
    worst = 0
    for key, members in met.items():
        placed = {
            rank: int(found.on_common_clock(rank, np.array([calls[key][rank].start_ns]))[0]) for rank in found.offset_ns
        }
        errors = [placed[rank] - start for rank, (start, _) in members.items() if rank in placed]
        worst = max(worst, max(errors) - min(errors))
    return worst


def test_clocks_that_run_alike_get_no_rate() -> None:
    met = collectives(4, S, 200)
    calls = seen(met, offset=(0, 70 * MS, -40 * MS, 3 * S))
    found = align(calls, hosts(4))
    assert not found.rate
    assert found.uncertainty_ns is not None
    assert worst_error(found, met, calls) <= 2 * found.uncertainty_ns <= 4 * MS


@pytest.mark.parametrize("ppm", [(0, 20), (0, -20), (3, 100), (20, -60)])
def test_a_clock_that_drifts_for_an_hour(ppm: tuple[float, float]) -> None:
    met = collectives(2, S, 3600)
    calls = seen(met, (0, 50 * MS), ppm)
    found = align(calls, hosts(2))
    assert found.rate[0] - found.rate[1] == pytest.approx((ppm[1] - ppm[0]) * 1e-6, abs=0.5e-6)
    assert found.uncertainty_ns is not None
    assert worst_error(found, met, calls) <= 2 * found.uncertainty_ns <= 6 * MS


def test_a_rate_is_not_invented_where_a_rank_is_late_in_half_of_the_run() -> None:
    """The middle of the bounds moves by milliseconds then; no bound contradicts another."""
    early, late = collectives(2, S, 600, late=[0]), collectives(2, S, 1200, late=[1])
    met = {**early, **{key: value for key, value in late.items() if key[1] >= 600}}
    found = align(seen(met, (0, 30 * MS)), hosts(2))
    assert not found.rate


def test_a_rank_that_is_always_late_hides_no_drift() -> None:
    met = collectives(4, S, 1800, late=[3])
    calls = seen(met, (0, 0, 0, 0), ppm=(0, 0, 40, 0))
    found = align(calls, hosts(4))
    assert found.uncertainty_ns is not None
    assert worst_error(found, met, calls) <= 2 * found.uncertainty_ns <= 20 * MS


def test_ranks_that_meet_only_through_others() -> None:
    met = collectives(4, S, 3600, groups=[(0, 1), (1, 2), (2, 3)])
    calls = seen(met, (0, 5 * MS, 9 * MS, -7 * MS), ppm=(0, 30, -10, 55))
    found = align(calls, hosts(4))
    assert set(found.offset_ns) == {0, 1, 2, 3}
    rates = [-found.rate[rank] * 1e6 for rank in range(4)]
    assert [rate - rates[0] for rate in rates] == pytest.approx([0, 30, -10, 55], abs=1.0)


def test_ranks_that_meet_nobody_stay_on_their_own_clock() -> None:
    met = collectives(3, S, 3600, groups=[(0, 1)])
    found = align(seen(met, (0, 5 * MS, 0), ppm=(0, 40, 0)), hosts(3))
    assert set(found.offset_ns) == set(found.rate) == {0, 1}


def test_ranks_of_one_host_have_one_rate() -> None:
    met = collectives(4, S, 3600)
    calls = seen(met, (0, 0, 90 * MS, 90 * MS), ppm=(0, 0, 50, 50))
    found = align(calls, {0: "a", 1: "a", 2: "b", 3: "b"})
    assert found.rate[0] == found.rate[1]
    assert found.rate[2] == found.rate[3]
    assert (found.rate[0] - found.rate[2]) * 1e6 == pytest.approx(50, abs=0.5)


def test_the_ranks_numbers_and_the_clocks_settings_change_no_rate() -> None:
    met = collectives(3, S, 1200)
    before = align(seen(met, (0, 0, 0), ppm=(0, 45, -20)), hosts(3))
    order = [2, 0, 1]
    turned = {key: {order[rank]: times for rank, times in members.items()} for key, members in met.items()}
    after = align(seen(turned, (0, 2 * DAY, 0), ppm=(45, -20, 0)), hosts(3))
    for rank in range(3):
        for other in range(3):
            difference = after.rate[order[rank]] - after.rate[order[other]]
            assert difference == pytest.approx(
                before.rate[rank] - before.rate[other], abs=1e-8
            )  # of a clock that is itself 45 ppm off


def test_a_clock_that_was_set_during_the_run_is_no_drift() -> None:
    """Neither an offset nor a rate fits: the uncertainty says so, and nothing is told about waiting."""
    met = collectives(2, S, 600)
    calls = seen(met, (0, 0))
    later = np.where(calls.calls[1].seq >= 300, 10 * S, 0)
    calls = Matched({0: calls.calls[0], 1: calls.calls[1].on_clock(lambda times_ns: times_ns + later)})
    found = align(calls, hosts(2))
    assert not found.rate
    assert found.uncertainty_ns is not None
    assert found.uncertainty_ns > 4 * S


def test_kernels_that_end_together_say_more_than_the_bounds() -> None:
    """Rank 3 always comes last, by 5 ms or more, and the bounds leave half of that open."""
    met = collectives(4, S, 60, late=[3])
    calls = seen(met, offset=(0, 70 * MS, -40 * MS, 3 * S))
    bounds, ends = align(calls, hosts(4)), align(calls, hosts(4), on_device=True)
    assert bounds.uncertainty_ns is not None
    assert ends.uncertainty_ns is not None
    assert bounds.uncertainty_ns > 2 * MS
    assert ends.uncertainty_ns <= 50 * US  # the ends are up to 50 us apart
    assert worst_error(ends, met, calls) <= 50 * US < worst_error(bounds, met, calls)


@pytest.mark.parametrize("count", [60, 3], ids=["ends that are far apart", "too few"])
def test_kernels_that_do_not_end_together_leave_the_bounds(count: int) -> None:
    met = collectives(3, S, count, late=[1])
    for number, members in enumerate(met.values()):
        start, end = members[1]
        members[1] = start, end + (40 * MS if number % 3 and count > 3 else 0)  # it shares its device
    calls = seen(met, offset=(0, 70 * MS, -40 * MS))
    assert align(calls, hosts(3), on_device=True) == align(calls, hosts(3))


def test_kernels_that_end_together_on_ranks_that_meet_only_through_others() -> None:
    met = collectives(4, S, 30, groups=[(0, 1), (1, 2), (2, 3)], late=[2])
    set_to = (0, 70 * MS, -40 * MS, 3 * S)
    found = align(seen(met, set_to), hosts(4), on_device=True)
    left = [found.offset_ns[rank] + set_to[rank] for rank in range(4)]
    assert max(left) - min(left) <= 50 * US
