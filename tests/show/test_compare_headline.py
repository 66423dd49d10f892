"""What the headline of a comparison says of the difference."""

from __future__ import annotations

import pytest

from diag.diagnoses.compare import Comparison, Difference
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
