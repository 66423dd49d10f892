"""Data types of the analysis: steps, accounts, findings, verdicts and tables. They have no behaviour."""

from functools import lru_cache
from typing import Final

import msgspec

from diag.collectors.masking import masked

# In a column of integers, in place of None: the smallest of 64 bits. The readers refuse numbers of this size.
UNKNOWN: Final = -(1 << 63)

# msgspec raises these for data that is not JSON of the expected type, such as text that is not UTF-8, or 100,000 "[".
DAMAGED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class HugeError(Exception):
    """A number of which sums of a few would not fit into 64 bits."""


class Gap(msgspec.Struct, frozen=True):
    """Something that could not be read, and why: a stated result, never silence."""

    path: str
    reason: str

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "reason", _masked(self.reason))  # it may quote an exception


@lru_cache(maxsize=16)  # a thousand ranks lack the same
def _masked(reason: str) -> str:
    return masked(reason)


class Doubt(msgspec.Struct, frozen=True):
    """What lowers a confidence: a feature of its model with its value, or a rule with its bound. ``by``: how much
    higher the confidence would be without it."""

    name: str
    value: float
    by: float
