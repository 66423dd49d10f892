"""Arrays that are kept come back as they were, and take no more bytes than their values need."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from diag.model import UNKNOWN
from diag.rundir.arrays import Array

AT = 1_700_000_000 * 10**9  # nanoseconds since 1970
ENDS = np.iinfo(np.int64)


def kept(values: npt.NDArray[Any]) -> Array:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(Array.of(values)), type=Array)


@pytest.mark.parametrize(
    ("values", "bytes_each"),
    [
        (np.full(5, UNKNOWN), 1),
        (np.array([4_000_000, 4_000_255]), 1),
        (np.array([[0, 65_535], [1, 2]]), 2),
        (AT + np.array([0, 4 * 10**9, 10**9]), 4),
        (np.array([ENDS.max, ENDS.min]), 8),
        (np.array([ENDS.min, ENDS.min + 255]), 1),
        (np.array([UNKNOWN, 5, AT]), 8),
        (np.array([[5, AT, 0], [9, 0, AT]]), 8),
        (np.array([-(2**31), 2**31 - 1], dtype=np.int32), 4),
        (np.array([7, 7, 9], dtype=np.int32), 1),
        (np.arange(10)[::3], 1),
        (np.zeros((0, 3), dtype=np.int64), 0),
        (np.array([1.5, np.nan]), 8),
        (np.array([True, False]), 1),
    ],
)
def test_arrays_come_back_as_they_were(values: npt.NDArray[Any], bytes_each: int) -> None:
    array = kept(values)
    np.testing.assert_array_equal(array.read(), values, strict=True)
    assert len(array.data) == bytes_each * values.size


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": (4,)},
        {"kept": "float64"},
        {"kept": "object"},
        {"type": "object"},
        {"data": memoryview(b"1234")},
    ],
)
def test_what_does_not_fit_together_is_no_array(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"reshape|fit|int64|object"):
        msgspec.structs.replace(kept(np.array([1, 2, 3])), **changes).read()


def test_a_number_beyond_64_bits_is_no_array() -> None:
    beyond = msgspec.structs.replace(kept(np.array([1, 2, 3])), least=1 << 63)
    with pytest.raises(msgspec.ValidationError, match="int"):
        msgspec.msgpack.decode(msgspec.msgpack.encode(beyond), type=Array)


def test_values_that_are_kept_as_they_are_cannot_be_moved() -> None:
    with pytest.raises(ValueError, match="float64"):
        msgspec.structs.replace(kept(np.array([1.5, np.nan])), least=3).read()
