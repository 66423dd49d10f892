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
_ZEROS = np.uint64(0x3030303030303030)  # the text "00000000"
_BLOCK_WORDS = 8  # of which fingerprints are made at once
# Keeps the first, or the last, k bytes in memory of a little-endian word; the first k bytes of a block of words.
_KEEP_FIRST = np.array([(1 << (8 * k)) - 1 for k in range(9)], dtype=np.uint64)
_KEEP_LAST = np.array([((1 << (8 * k)) - 1) << (64 - 8 * k) for k in range(9)], dtype=np.uint64)
_KEEP_OF_BLOCK = _KEEP_FIRST[
    np.clip(np.arange(_WORD * _BLOCK_WORDS + 1)[:, None] - _WORD * np.arange(_BLOCK_WORDS), 0, _WORD)
]
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SEED = np.uint64(secrets.randbits(64) | 1)
_LONGEST_NUMBER = 24


class Text:
    """A text with PAD spaces around it."""

    def __init__(self, text: bytes) -> None:
        tail = b" " * (PAD + -len(text) % _WORD)
        self.raw = b"".join((b" " * PAD, text, tail))
        self.begin, self.end = PAD, PAD + len(text)
        self.at = np.frombuffer(self.raw, dtype=np.uint8)

    def lines(self) -> tuple[Positions, Positions]:
        """(begin, end) of each line; the end is the newline's place, or the text's."""
        end = np.append(np.flatnonzero(self.at == ord("\n")), self.end)
        begin = np.empty_like(end)
        begin[0] = PAD
        begin[1:] = end[:-1] + 1
        return begin, end

    def windows(self, begin: Positions, words: int) -> Words:
        """The ``8 * words`` bytes from each position on, as little-endian words: shape (positions, words)."""
        size = _WORD * words
        # Overlapping elements, one at every byte: numpy copies those that are asked for, eight times as fast as words
        # put together from aligned ones.
        every = np.ndarray(shape=(len(self.raw) - size + 1,), dtype=f"V{size}", buffer=self.raw, strides=(1,))
        found: Words = every[begin].view("<u8").reshape(-1, words)
        return found

    def equal(self, begin: Positions, expected: bytes) -> Mask:
        """Whether the expected bytes stand at each position."""
        count = -(-len(expected) // _WORD)
        same: Mask = np.ones(len(begin), dtype=np.bool_)
        for word, found in enumerate(self.windows(begin, count).T):
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
        back = (self._bytes(end - _LONGEST_NUMBER)[:, ::-1] == ord(" ")).argmax(axis=1) + 1
        found: Positions = np.where(self.at.take(end - back) == ord(" "), end - back, -1)
        return found

    def number_end(self, begin: Positions) -> Positions:
        """Where the decimal digits and points that begin at each position end, at most 24 further on."""
        number = self._bytes(begin)
        goes_on = ((number - np.uint8(ord("0"))) <= 9) | (number == ord("."))
        length = goes_on.argmin(axis=1)
        end: Positions = begin + np.where(goes_on[:, 0] & (length == 0), _LONGEST_NUMBER, length)
        return end

    def _bytes(self, begin: Positions) -> npt.NDArray[np.uint8]:
        """As many bytes from each position on as the longest number has: shape (positions, _LONGEST_NUMBER)."""
        return self.windows(begin, _LONGEST_NUMBER // _WORD).view(np.uint8)

    def integers(self, begin: Positions, end: Positions) -> tuple[Positions, Mask]:
        """(values, valid) of the decimal digits in ``[begin, end)``: at most 18, nothing else among them."""
        length = end - begin
        valid: Mask = (length > 0) & (length <= 18)
        value = np.zeros(len(end), dtype=np.int64)
        longest = int(length[valid].max()) if valid.any() else 0
        for word in range(-(-longest // _WORD)):  # from the last eight digits to the first
            digits = self.windows(end - _WORD * (word + 1), 1)[:, 0]
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
        left, at = end - begin, begin
        found = mixed = left.astype(np.uint64) ^ _SEED
        open_ = np.arange(len(begin))
        while len(open_):
            blocks = self.windows(at, _BLOCK_WORDS) & _KEEP_OF_BLOCK[np.minimum(left, _WORD * _BLOCK_WORDS)]
            for block in blocks.T:
                mixed ^= block
                mixed *= _MIX
                mixed ^= mixed >> np.uint64(29)
            found[open_] = mixed
            # Those that go on behind this block; most lines end in their second.
            goes_on = left > _WORD * _BLOCK_WORDS
            open_, mixed = open_[goes_on], mixed[goes_on]
            left, at = left[goes_on] - _WORD * _BLOCK_WORDS, at[goes_on] + _WORD * _BLOCK_WORDS
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
