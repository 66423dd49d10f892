"""Columns out of text by arithmetic on its bytes: equal words, numbers and fingerprints at many places at once.

Making a million small strings costs more than reading them. `Text` holds a text as arrays of bytes and of words, and
looks at all given positions in a few passes. Positions count from the beginning of the padding, so they may reach
`PAD` bytes beyond the text.
"""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt

from diag.traces.policy import TRACE_READING

Words = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

PAD = 64
WORD = 8
FAR_US = (1 << 62) // 1000  # later times do not fit into nanoseconds
_ZEROS = np.uint64(0x3030303030303030)  # the text "00000000"
_BLOCK_WORDS = 8  # words that are hashed into a fingerprint at once
_BLOCK_BYTES = WORD * _BLOCK_WORDS
# Masks for the first, or the last, k bytes in memory of a little-endian word; for the last k bytes of a block of words.
_KEEP_FIRST = np.array([(1 << (8 * k)) - 1 for k in range(9)], dtype=np.uint64)
_KEEP_LAST = np.array([((1 << (8 * k)) - 1) << (64 - 8 * k) for k in range(9)], dtype=np.uint64)
_KEEP_LAST_OF_BLOCK = _KEEP_LAST[
    np.clip(np.arange(_BLOCK_BYTES + 1)[:, None] - WORD * np.arange(_BLOCK_WORDS)[::-1], 0, WORD)
]
_BASE = np.uint64(secrets.randbits(64) | 1)
_KEYS = np.array([secrets.randbits(64) | 1 for _ in range(_BLOCK_WORDS)], dtype=np.uint64)
_LONGEST_NUMBER = 24


class Text:
    """A text between two pads of PAD bytes. The pads are newlines next to the text and spaces otherwise, so
    that each line of the text lies between two newlines."""

    def __init__(self, *pieces: bytes) -> None:
        self.raw = b"".join((b" " * (PAD - 1), b"\n", *pieces, b"\n", b" " * (PAD - 1)))
        self.begin, self.end = PAD, len(self.raw) - PAD
        self.at = np.frombuffer(self.raw, dtype=np.uint8)

    def newlines(self) -> Positions:
        """Position of every newline, from the one before the text to the one after it."""
        return np.flatnonzero(self.at == ord("\n"))

    def windows(self, begin: Positions, words: int) -> Words:
        """The ``8 * words`` bytes from each position on, as little-endian words: shape (positions, words)."""
        size = WORD * words
        # Overlapping elements, one at every byte: numpy copies only the selected ones.
        every = np.ndarray(shape=(len(self.raw) - size + 1,), dtype=f"V{size}", buffer=self.raw, strides=(1,))
        elements = np.empty(len(begin), dtype=every.dtype)
        for first in range(0, len(begin), TRACE_READING.elements_at_once):
            rows = begin[first : first + TRACE_READING.elements_at_once]
            # Copying waits for memory element by element, 35 ns each. Reading their first and last bytes before that
            # waits for many at once, and brings them into the core's cache: 9 ns for all of it.
            self.at.take(rows)
            if size > WORD:
                self.at.take(rows + (size - 1))
            elements[first : first + TRACE_READING.elements_at_once] = every[rows]
        return elements.view("<u8").reshape(-1, words)

    def equal(self, begin: Positions, expected: bytes) -> Mask:
        """Whether the expected bytes are at each position."""
        return starts_with(self.windows(begin, -(-len(expected) // WORD)), expected)

    def slices(self, begin: Positions, end: Positions) -> list[bytes]:
        return [self.raw[a:b] for a, b in zip(begin.tolist(), end.tolist(), strict=True)]

    def places(self, key: bytes, rare: int) -> Positions:
        """All positions of ``key``, in order. ``rare``: index in it of the byte to look for first, or of the first of
        two equal bytes."""
        hit = self.at == key[rare]
        if key[rare + 1] == key[rare]:
            hit[:-1] &= hit[1:]
        places = np.flatnonzero(hit) - rare
        return places[self.equal(places, key)]

    def last_space(self, end: Positions) -> Positions:
        """Position of the last space before each position, looking back 24 bytes; -1 if there is none."""
        back = (self._bytes(end - _LONGEST_NUMBER)[:, ::-1] == ord(" ")).argmax(axis=1) + 1
        place: Positions = np.where(self.at.take(end - back) == ord(" "), end - back, -1)
        return place

    def number_end(self, begin: Positions) -> Positions:
        """Where the decimal digits and points that begin at each position end, at most 24 further on."""
        inside = goes_on(self._bytes(begin))
        length = inside.argmin(axis=1)
        end: Positions = begin + np.where(inside[:, 0] & (length == 0), _LONGEST_NUMBER, length)
        return end

    def _bytes(self, begin: Positions) -> npt.NDArray[np.uint8]:
        """The bytes from each position on, as many as the longest number has: shape (positions, _LONGEST_NUMBER)."""
        return self.windows(begin, _LONGEST_NUMBER // WORD).view(np.uint8)

    def integers(self, begin: Positions, end: Positions) -> tuple[Positions, Mask]:
        """(values, valid) of the decimal digits in ``[begin, end)``: valid if there are 1 to 18 digits and nothing
        else."""
        length = end - begin
        valid: Mask = (length > 0) & (length <= 18)
        value = np.zeros(len(end), dtype=np.int64)
        longest = int(length[valid].max()) if valid.any() else 0
        for word in range(-(-longest // WORD)):  # from the last eight digits to the first
            text = self.windows(end - WORD * (word + 1), 1)[:, 0]
            value += 10 ** (WORD * word) * digits(text, np.clip(length - WORD * word, 0, WORD), valid)
        return value, valid

    def microseconds(self, begin: Positions, end: Positions) -> tuple[Positions, Mask]:
        """(nanoseconds, valid) of numbers printed as whole microseconds or with three decimals; others are not
        valid."""
        decimal: Mask = (self.at.take(end - 4) == ord(".")) & (end - begin > 4)
        value, valid = self.integers(begin, np.where(decimal, end - 4, end))
        valid &= value < FAR_US
        value *= 1000
        if decimal.any():
            part, part_valid = self.integers(np.where(decimal, end - 3, end - 1), end)
            value += np.where(decimal, part, 0)
            valid &= part_valid
        return value, valid

    def fingerprints(self, begin: Positions, end: Positions) -> Words:
        """A 64-bit hash of the bytes in each ``[begin, end)``, with keys of this process: equal texts have equal
        hashes; two different texts collide with a probability of 2^-48 at most, mostly 2^-60."""
        length = end - begin
        blocks = np.maximum(-(-length // _BLOCK_BYTES), 1)
        first = np.cumsum(blocks) - blocks
        line = np.repeat(np.arange(len(blocks)), blocks)
        number = np.arange(len(line)) - first[line]  # the block's number, from the end
        at = end[line] - _BLOCK_BYTES * (number + 1)
        # The block at the beginning may overlap the next; that of a shorter text reaches back and is masked.
        at = np.where(number > 0, np.maximum(at, begin[line]), at)
        sums = np.empty(len(at), dtype=np.uint64)
        for row in range(0, len(at), TRACE_READING.blocks_at_once):
            sums[row : row + TRACE_READING.blocks_at_once] = _sums(
                self.windows(at[row : row + TRACE_READING.blocks_at_once], _BLOCK_WORDS)
            )
        short = np.flatnonzero(length < _BLOCK_BYTES)
        if len(short):
            masked = self.windows(at[first[short]], _BLOCK_WORDS) & _KEEP_LAST_OF_BLOCK[length[short]]
            sums[first[short]] = _sums(masked)
        sums ^= sums >> np.uint64(31)
        powers = np.full(int(blocks.max(initial=1)), _BASE).cumprod()
        sums *= powers.take(number)
        return np.add.reduceat(sums, first) + length.astype(np.uint64) * _BASE if len(first) else sums


def starts_with(windows: Words, expected: bytes) -> Mask:
    same: Mask = np.ones(len(windows), dtype=np.bool_)
    for word, column in enumerate(windows.T[: -(-len(expected) // WORD)]):
        part = expected[word * WORD : (word + 1) * WORD]
        if len(part) < WORD:
            column = column & _KEEP_FIRST[len(part)]
        same &= column == np.uint64(int.from_bytes(part, "little"))
    return same


def ends_with(windows: Words, expected: bytes) -> Mask:
    same: Mask = np.ones(len(windows), dtype=np.bool_)
    for word, column in enumerate(windows.T[::-1][: -(-len(expected) // WORD)]):
        part = expected[max(len(expected) - WORD * (word + 1), 0) : len(expected) - WORD * word]
        if len(part) < WORD:
            column = column & _KEEP_LAST[len(part)]
        same &= column == np.uint64(int.from_bytes(part.rjust(WORD, b"\0"), "little"))
    return same


def word_at(windows: Words, byte: int, words: int = 1) -> Words:
    """The words that begin at this byte, which may be any, of each window: a view, shape (windows, words)."""
    return np.ndarray((len(windows), words), "<u8", windows, byte, (windows.strides[0], WORD))


def number_at(windows: Words, end: int, length: int, valid: Mask) -> Positions:
    """The number whose ``length`` digits, at most 16, end before this byte of each window. Windows with other bytes
    there are no longer ``valid``."""
    value = digits(word_at(windows, end - WORD)[:, 0], min(length, WORD), valid)
    if length > WORD:
        value = value + 10**WORD * digits(word_at(windows, end - 2 * WORD)[:, 0], length - WORD, valid)
    return value


def digits(words: Words, length: int | Positions, valid: Mask) -> Positions:
    """The number in the last ``length`` bytes of each word. Words with other bytes than digits there are no longer
    ``valid``."""
    if not isinstance(length, int) or length < WORD:
        keep = _KEEP_LAST[length]
        words = (words & keep) | (_ZEROS & ~keep)
    if len(words) and (words == words[0]).all():  # usual for the first digits of a trace's times
        words = words[:1]
    valid &= _all_digits(words)
    return np.broadcast_to(_eight_digits(words).astype(np.int64), len(valid))


def goes_on(byte: npt.NDArray[np.uint8]) -> Mask:
    """Whether a number continues with these bytes: digits and points."""
    continues: Mask = ((byte - np.uint8(ord("0"))) <= 9) | (byte == ord("."))
    return continues


def _sums(blocks: Words) -> Words:
    """A hash of each block of words: the sum of their products with random keys. Only the lowest bits in which two
    blocks differ could cancel out, so the higher bits of each word are first mixed into its lower ones."""
    blocks ^= blocks >> np.uint64(32)
    blocks ^= blocks >> np.uint64(16)
    sums: Words = blocks @ _KEYS
    return sums


def _all_digits(words: Words) -> Mask:
    high = np.uint64(0xF0F0F0F0F0F0F0F0)
    six = np.uint64(0x0606060606060606)
    are_digits: Mask = ((words & high) | (((words + six) & high) >> np.uint64(4))) == np.uint64(0x3333333333333333)
    return are_digits


def _eight_digits(words: Words) -> Words:
    """The value of eight digits, the first one in the lowest byte (Lemire's three multiplications)."""
    digits = words & np.uint64(0x0F0F0F0F0F0F0F0F)
    pairs = (digits * np.uint64(2561)) >> np.uint64(8) & np.uint64(0x00FF00FF00FF00FF)
    fours = (pairs * np.uint64(6553601)) >> np.uint64(16) & np.uint64(0x0000FFFF0000FFFF)
    value: Words = (fours * np.uint64(42949672960001)) >> np.uint64(32)
    return value
