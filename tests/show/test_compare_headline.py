"""What the headline of a comparison says of the difference."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from diag.account.scheduling import Load
from diag.diagnoses.compare import Comparison, Difference, Setting
from diag.diagnoses.costs import Cost
from diag.diagnoses.shares import StepPart
from diag.model.steps import Kind
from diag.show.compare import headline
from tests.simulate import MS


def compared(*parts: tuple[StepPart, int]) -> Comparison:
    """A step of 100 ms became longer by these parts, in milliseconds."""
    more = sum(ms for _, ms in parts) * MS
    differences = tuple(
        Difference(part, 50 * MS, (50 + ms) * MS, ((ms - 1) * MS, ms * MS, (ms + 1) * MS)) for part, ms in parts
    )
    ns = (more - MS, more, more + MS)
    return Comparison(100 * MS, 100 * MS + more, ns, (40, 40), differences, (), (), ())


@pytest.mark.parametrize(
    ("parts", "by_others"),
    [
        ([(Cost.CONTENTION, 40), (Kind.COMPUTE, 10)], True),
        ([(Kind.COMPUTE, 40), (Cost.CONTENTION, 10)], False),
        ([(Kind.COMPUTE, 40)], False),
    ],
)
def test_a_busier_host_is_not_laid_to_a_setting(parts: list[tuple[StepPart, int]], by_others: bool) -> None:
    text = headline(compared(*parts))
    assert "The difference is in" in text
    assert ("Other programs on the host may be the reason" in text) is by_others


def test_a_busier_host_is_said_with_its_numbers_and_the_settings() -> None:
    prefetch, bucket = Setting("prefetch", "0", "1"), Setting("bucket mb", "25", "1")
    of_one = Setting("timeout", "3", None)
    busy, calm = Load(15, 2), Load(8, 2)
    longer = replace(compared((Kind.COMPUTE, 40)), settings=(prefetch, of_one), loads=(calm, busy))
    said = headline(longer).replace("\u00a0", " ")
    assert "The host was busier after (15 threads were ready to run on 2 cores, 8 before)" in said
    assert "so the difference cannot be laid to prefetch: repeat both runs" in said
    assert "laid to prefetch and bucket mb:" in headline(replace(longer, settings=(prefetch, bucket)))
    assert "laid to the run itself:" in headline(replace(longer, settings=()))
    shorter = replace(longer, ns=(-41 * MS, -40 * MS, -39 * MS), loads=(busy, calm))
    assert "The host was busier before (15" in headline(shorter)
    for other in (
        replace(longer, loads=(busy, calm)),  # the longer one was the calm one
        replace(longer, loads=(Load(12, 2), busy)),  # hardly busier
        replace(longer, loads=(Load(1, 16), Load(2, 16))),  # there were cores enough
        replace(longer, loads=(None, busy)),
        replace(longer, settings=(Setting("num workers", "0", "4"),)),  # they are the run's own
    ):
        assert "busier" not in headline(other)
