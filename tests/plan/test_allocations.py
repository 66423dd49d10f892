"""The peak of a window, from allocations of which the profiler did not see all end."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from diag.errors import DiagError
from diag.planning.measured import Allocations, MemoryChange, host_allocations, peak_of


def changes(*rows: tuple[int, int]) -> list[MemoryChange]:
    """(address, bytes), a microsecond apart."""
    return [MemoryChange(float(at), address, size) for at, (address, size) in enumerate(rows)]


def test_what_is_taken_and_given_back() -> None:
    assert peak_of(changes((1, 10), (2, 20), (1, -10), (3, 5)), []) == Allocations(30, 0)


def test_an_address_that_is_taken_again_was_free() -> None:
    assert peak_of(changes((1, 10), (1, 10), (2, 5)), []) == Allocations(15, 10)


def test_what_a_collective_took_is_gone_after_it() -> None:
    """The second one's copy is freed unseen; what is taken next does not lie on top of it."""
    rows = changes((1, 10), (2, 50), (2, -50), (3, 50), (4, 5))
    assert peak_of(rows, [(0.5, 2.5), (2.7, 3.5)]) == Allocations(60, 50)
    assert peak_of(rows, []) == Allocations(65, 0)  # outside of collectives what is not freed stays
    again = changes((3, 50), (4, 5), (3, 50), (3, -50))
    assert peak_of(again, [(0.0, 0.5)]) == Allocations(55, 50)


def test_what_was_gathered_into_is_gone_when_the_next_is() -> None:
    """They are freed in turn; only one of another size says nothing."""
    rows = changes((1, 50), (2, 50), (2, -50), (3, 5), (4, 50), (4, -50))
    gathers = [(0.0, 0.5), (0.8, 1.5)]
    assert peak_of(rows, [], gathers) == Allocations(100, 50)
    assert peak_of(rows, []) == Allocations(105, 0)
    other = changes((1, 50), (2, 40), (2, -40), (3, 5))
    assert peak_of(other, [], gathers) == Allocations(90, 0)
    again = changes((1, 50), (2, 50), (2, -50), (3, 5), (1, 10))  # its address is taken again, which is later
    assert peak_of(again, [], gathers) == Allocations(100, 50)


def test_of_a_trace(tmp_path: Path) -> None:
    def memory(at: float, address: int, size: int, device: int = 0) -> dict[str, object]:
        arguments = {"Bytes": size, "Addr": address, "Device Type": device, "Total Allocated": 1}
        return {"ph": "i", "name": "[memory]", "ts": at, "args": arguments}

    events: list[dict[str, object]] = [
        memory(3, 2, 30),
        memory(1, 1, 100),
        memory(2, 1, -100),
        memory(2.5, 9, 1000, device=1),
        {"ph": "X", "name": "c10d::_reduce_scatter_base_", "ts": 2.9, "dur": 1, "args": {"Bytes": "x"}},
        memory(5, 3, 80),
    ]
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    assert host_allocations(str(path)) == Allocations(100, 30)
    path.write_bytes(gzip.compress(b'{"traceEvents": []}'))
    assert host_allocations(str(path)) is None
    path.write_bytes(gzip.compress(b'{"traceEvents": 3}'))
    with pytest.raises(DiagError):
        host_allocations(str(path))
