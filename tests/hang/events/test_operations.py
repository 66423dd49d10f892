"""What the sizes of a collective say of its group."""

from __future__ import annotations

import pytest

from diag.events.operations import members_of


@pytest.mark.parametrize(
    ("op", "elements_in", "elements_out", "members"),
    [
        ("_ALLGATHER_BASE", 75264, 602112, 8),
        ("reduce_scatter_tensor", 64, 16, 4),
        ("_ALLGATHER_BASE", 3, 10, None),  # its ranks give different numbers of elements
        ("_ALLGATHER_BASE", 0, 10, None),
        ("ALLREDUCE", 8, 8, None),
    ],
)
def test_the_members_that_input_and_output_fit(
    op: str, elements_in: int, elements_out: int, members: int | None
) -> None:
    assert members_of(op, elements_in, elements_out) == members
