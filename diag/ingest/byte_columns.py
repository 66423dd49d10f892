"""Columns out of text by arithmetic on its bytes: equal words, numbers and fingerprints at many places at once.

A million small strings cost more to make than to read. `Text` holds a text as arrays of bytes and of words, and looks
at all the given positions in a few passes. Positions count from the beginning of the padding, which lets them reach
`PAD` bytes beyond the text.
"""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

PAD = 64
_WORD = 8
_ONE = np.uint64(1)
_ZEROS = np.uint64(0x3030303030303030)  # the text "00000000"
# Keeps the first, or the last, k bytes in memory of a little-endian word.
_KEEP_FIRST = np.array([(1 << (8 * k)) - 1 for k in range(9)], dtype=np.uint64)
_KEEP_LAST = np.array([((1 << (8 * k)) - 1) << (64 - 8 * k) for k in range(9)], dtype=np.uint64)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SEED = np.uint64(secrets.randbits(64) | 1)
_LONGEST_NUMBER = 24


class Text:
    """A text with PAD spaces around it."""

    def __init__(self, text: bytes) -> None:
        tail = b" " * (PAD + -len(text) % _WORD)
        self.raw = b"".join((b" " * PAD, text, tail))
        self.end = PAD + len(text)
        self.at = np.frombuffer(self.raw, dtype=np.uint8)
        self._words = np.frombuffer(self.raw, dtype="<u8")

    def lines(self) -> tuple[Positions, Positions]:
        """(begin, end) of each line; the end is the newline's place, or the text's."""
        end = np.append(np.flatnonzero(self.at == ord("\n")), self.end)
        begin = np.empty_like(end)
        begin[0] = PAD
        begin[1:] = end[:-1] + 1
        return begin, end

    def windows(self, begin: Positions, words: int) -> list[Words]:
        """The ``8 * words`` bytes from each position on, as little-endian words."""
        index = begin >> 3
        shift = (begin & 7).astype(np.uint64) << np.uint64(3)
        rest = np.uint64(63) - shift
        low = self._words.take(index)
        found = []
        for word in range(1, words + 1):
            high = self._words.take(index + word, mode="clip")
            found.append((low >> shift) | ((high << _ONE) << rest))
            low = high
        return found

    def equal(self, begin: Positions, expected: bytes) -> Mask:
        """Whether the expected bytes stand at each position."""
        count = -(-len(expected) // _WORD)
        same: Mask = np.ones(len(begin), dtype=np.bool_)
        for word, found in enumerate(self.windows(begin, count)):
            part = expected[word * _WORD : (word + 1) * _WORD]
            same &= (found & _KEEP_FIRST[len(part)]) == np.uint64(int.from_bytes(part, "little"))
        return same

    def slices(self, begin: Positions, end: Positions) -> list[bytes]:
        """The text of each ``[begin, end)``: for a few."""
        return [self.raw[a:b] for a, b in zip(begin.tolist(), end.tolist(), strict=True)]

    def places(self, key: bytes, rare: int) -> Positions:
        """Everywhere that ``key`` stands, in order. ``rare``: index in it of the byte to look for first, or of the
        first of two equal ones."""
        hit = self.at == key[rare]
        if key[rare + 1] == key[rare]:
            hit[:-1] &= hit[1:]
        found = np.flatnonzero(hit) - rare
        return found[self.equal(found, key)]

    def last_space(self, end: Positions) -> Positions:
        """Where the last space before each position is, looking back 24 bytes; -1 where there is none."""
        found = np.full(len(end), -1, dtype=np.int64)
        open_ = np.arange(len(end))
        for back in range(1, _LONGEST_NUMBER + 1):
            hit = self.at.take(end[open_] - back) == ord(" ")
            found[open_[hit]] = end[open_[hit]] - back
            open_ = open_[~hit]
            if not len(open_):
                break
        return found

    def number_end(self, begin: Positions) -> Positions:
        """Where the decimal digits and points that begin at each position end, at most 24 further on."""
        end = begin + _LONGEST_NUMBER
        open_ = np.arange(len(begin))
        for ahead in range(_LONGEST_NUMBER):
            byte = self.at.take(begin[open_] + ahead)
            goes_on = ((byte - np.uint8(ord("0"))) <= 9) | (byte == ord("."))
            end[open_[~goes_on]] = begin[open_[~goes_on]] + ahead
            open_ = open_[goes_on]
            if not len(open_):
                break
        return end

    def integers(self, begin: Positions, end: Positions) -> tuple[Positions, Mask]:
        """(values, valid) of the decimal digits in ``[begin, end)``: at most 18, nothing else among them."""
        length = end - begin
        valid: Mask = (length > 0) & (length <= 18)
        value = np.zeros(len(end), dtype=np.int64)
        longest = int(length[valid].max()) if valid.any() else 0
        for word in range(-(-longest // _WORD)):  # from the last eight digits to the first
            (digits,) = self.windows(end - _WORD * (word + 1), 1)
            keep = _KEEP_LAST.take(np.clip(length - _WORD * word, 0, _WORD))
            digits = (digits & keep) | (_ZEROS & ~keep)
            valid &= _all_digits(digits)
            value += _eight_digits(digits).astype(np.int64) * 10 ** (_WORD * word)
        return value, valid

    def microseconds(self, begin: Positions, end: Positions) -> tuple[Positions, Mask]:
        """(nanoseconds, valid) of numbers printed as whole microseconds or with three decimals; no others."""
        decimal: Mask = (self.at.take(end - 4) == ord(".")) & (end - begin > 4)
        value, valid = self.integers(begin, np.where(decimal, end - 4, end))
        valid &= value < (1 << 62) // 1000
        value *= 1000
        if decimal.any():
            part, part_valid = self.integers(np.where(decimal, end - 3, end - 1), end)
            value += np.where(decimal, part, 0)
            valid &= part_valid
        return value, valid

    def fingerprints(self, begin: Positions, end: Positions) -> Words:
        """A 64-bit hash of the bytes in each ``[begin, end)``: equal texts have equal ones; the chance that any two of
        a million different texts share one is 3e-8. (Whoever crafts a collision mislabels events of his own trace.)"""
        length = end - begin
        order = np.argsort(length, kind="stable")
        length, at = length[order], begin[order]
        mixed = length.astype(np.uint64) ^ _SEED
        first, offset, words = 0, 0, 8
        while first < len(order):
            # All texts that go on here; the shorter ones are done.
            goes_on, left = mixed[first:], length[first:] - offset
            for word, block in enumerate(self.windows(at[first:] + offset, words)):
                if left[0] < _WORD * (word + 1):
                    block = block & _KEEP_FIRST.take(np.clip(left - _WORD * word, 0, _WORD))
                goes_on ^= block
                goes_on *= _MIX
                goes_on ^= goes_on >> np.uint64(29)
            offset += _WORD * words
            first = int(np.searchsorted(length, offset, side="right"))
        found = np.empty_like(mixed)
        found[order] = mixed
        return found


def _all_digits(words: Words) -> Mask:
    high = np.uint64(0xF0F0F0F0F0F0F0F0)
    six = np.uint64(0x0606060606060606)
    found: Mask = ((words & high) | (((words + six) & high) >> np.uint64(4))) == np.uint64(0x3333333333333333)
    return found


def _eight_digits(words: Words) -> Words:
    """The value of eight digits, the first one in the lowest byte (Lemire's three multiplications)."""
    digits = words & np.uint64(0x0F0F0F0F0F0F0F0F)
    pairs = (digits * np.uint64(2561)) >> np.uint64(8) & np.uint64(0x00FF00FF00FF00FF)
    fours = (pairs * np.uint64(6553601)) >> np.uint64(16) & np.uint64(0x0000FFFF0000FFFF)
    found: Words = (fours * np.uint64(42949672960001)) >> np.uint64(32)
    return found
