"""Checks what a pickle would do before Python's own reader does it.

A pickle is a program, and ``pickle.Unpickler`` obeys it even where ``find_class`` refuses every class: a memo index of
2^31 takes gigabytes, a key made of shared tuples is hashed for ever, a deep one overflows the C stack. ``check`` runs
the program on sizes instead of values: of each value it has how deep it is, and how many values it holds where shared
ones count each time. Nothing may change once it is in use, so these figures are exact, and whoever walks through what
the pickle makes takes at most ``MAX_EXPANDED`` steps."""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from io import BytesIO
from itertools import islice

MAX_BYTES = 128 << 20  # 2,000 entries of a recorder take 0.3 to 1 MB
MAX_MEMORY = 384 << 20  # of the values; 50 MB of a recorder's frames, none shared, take 230
MAX_CONTAINERS = 1_000_000
MAX_ITEMS = 1_000_000  # of one container
MAX_EXPANDED = 100_000_000  # 20,000 stacks of 100 shared frames are 14 million
MAX_TEXT = 1 << 20
_MAX_DEPTH = 64  # a recorder's is 6
_MAX_INT_BYTES = 16
_MAX_MEMO = 2_000_000
_MEMO_GAP = 1024  # writers number what they remember from 0 on
_BETWEEN_LOOKS = 1 << 16  # instructions; after as many, the sums are compared with the limits
_LOOK_AHEAD = 1 << 16

# Memory of Python 3.11, in bytes.
_CONTAINER_BYTES, _OBJECT_BYTES, _TEXT_BYTES, _NUMBER_BYTES = 80, 320, 60, 32
_ITEM_BYTES, _PAIR_BYTES = 9, 80

_LIST, _DICT, _TUPLE, _OBJECT, _CLASS, _UNSET = range(6)
_SCALARS = {0x4E: 0, 0x88: 0, 0x89: 0, 0x4B: 1, 0x4D: 2, 0x4A: 4, 0x47: 8}  # and the bytes behind each


class RefusedError(Exception):
    """Asks for something that is never needed. The text ends a sentence that begins with "refused: "."""


class TruncatedError(Exception):
    """Ends before its end."""


class _Value:
    """A container, an object or a class. On the stack, a text is the position where it stands, and a number None."""

    __slots__ = ("depth", "kind", "sealed", "weight")

    def __init__(self, kind: int) -> None:
        self.kind, self.weight, self.depth, self.sealed = kind, 1, 1, False

    def hold(self, items: list[_Item]) -> None:
        """Takes the items in. Raises ``RefusedError`` where that makes it too deep, or changes what is in use."""
        if self.sealed:
            raise RefusedError("changes a value that is in use")
        weight, depth = len(items), 0
        for item in items:
            if type(item) is _Value:
                if item.kind == _UNSET:
                    raise RefusedError("uses a value before it is set")
                item.sealed = True
                weight += item.weight
                if item.depth > depth:
                    depth = item.depth
        self.weight += weight
        if depth >= self.depth:
            self.depth = depth + 1
            if depth >= _MAX_DEPTH:
                raise RefusedError(f"nested more than {_MAX_DEPTH} deep")


_Item = _Value | int | None
_NOT_SET = _Value(_UNSET)


def check(data: bytes, allows: Callable[[str, str], bool] | None = None, *, times: int = 1) -> None:
    """Returns where the pickle is safe to load. ``allows`` says which classes and functions, by module and name, it may
    use; without it there are none. Keys are texts, or objects of these classes. ``times``: how many times as much as
    the limits above the values may take. Raises ``RefusedError`` with what the pickle asks for, or
    ``TruncatedError``."""
    if len(data) > MAX_BYTES:
        raise RefusedError(f"{len(data) >> 20} MiB, more than {MAX_BYTES >> 20}")
    try:
        _check(data, allows, times)
    except (IndexError, struct.error):
        # Past the end of the data or of the stack.
        raise TruncatedError("it ends in the middle") from None


def _check(data: bytes, allows: Callable[[str, str], bool] | None, times: int) -> None:
    """One loop, the frequent instructions first."""
    most_memory, most_expanded, most_containers, most_items, most_memo = (
        limit * times for limit in (MAX_MEMORY, MAX_EXPANDED, MAX_CONTAINERS, MAX_ITEMS, _MAX_MEMO)
    )
    stack: list[_Item] = []
    outer: list[list[_Item]] = []
    memo: list[_Item] = []
    position = memory = expanded = containers = 0
    unpack_uint = struct.Struct("<I").unpack_from
    ended = False
    while not ended:
        for _ in range(_BETWEEN_LOOKS):
            code = data[position]
            position += 1
            if code == 0x68 or code == 0x6A:  # BINGET, LONG_BINGET
                if code == 0x68:
                    index = data[position]
                    position += 1
                else:
                    index = unpack_uint(data, position)[0]
                    position += 4
                if index >= len(memo):
                    raise RefusedError("uses a value before it is set")
                item = memo[index]
                if type(item) is _Value:
                    item.sealed = True
                    expanded += item.weight
                stack.append(item)
            elif code in _SCALARS:  # NONE, NEWTRUE, BININT1, BININT2, BININT, BINFLOAT, ...
                width = _SCALARS[code]
                position += width
                memory += _NUMBER_BYTES if width > 1 else 0
                stack.append(None)
            elif code == 0x94 or code == 0x71 or code == 0x72:  # MEMOIZE, BINPUT, LONG_BINPUT
                item = stack[-1]
                if code == 0x94:
                    index = len(memo)
                elif code == 0x71:
                    index = data[position]
                    position += 1
                else:
                    index = unpack_uint(data, position)[0]
                    position += 4
                if index == len(memo) < most_memo:
                    memo.append(item)
                elif index < min(len(memo) + _MEMO_GAP, most_memo):
                    memo += [_NOT_SET] * (index + 1 - len(memo))
                    memo[index] = item
                else:
                    raise RefusedError(f"a memo index of {index:,}")
            elif code == 0x28:  # MARK
                outer.append(stack)
                if len(outer) > _MAX_DEPTH:
                    raise RefusedError(f"nested more than {_MAX_DEPTH} deep")
                stack = []
            elif code == 0x58 or code == 0x8C or code == 0x8D:  # BINUNICODE, SHORT_, 8
                width = 4 if code == 0x58 else 1 if code == 0x8C else 8
                stack.append(position - 1)
                position, size = _behind_count(data, position, width, MAX_TEXT)
                memory += _TEXT_BYTES + size
            elif code == 0x8A:  # LONG1
                position, _size = _behind_count(data, position, 1, _MAX_INT_BYTES)
                memory += _NUMBER_BYTES
                stack.append(None)
            elif code == 0x5D or code == 0x7D or code == 0x29:  # EMPTY_LIST, EMPTY_DICT, EMPTY_TUPLE
                containers += 1
                memory += _CONTAINER_BYTES
                stack.append(_Value(_LIST if code == 0x5D else _DICT if code == 0x7D else _TUPLE))
            elif code == 0x65 or code == 0x61:  # APPENDS, APPEND
                if code == 0x65:
                    items, stack = stack, outer.pop()
                else:
                    items = [stack.pop()]
                memory += _ITEM_BYTES * len(items)
                _target(stack, _LIST, "appends to what is no list").hold(items)
            elif code == 0x75 or code == 0x73:  # SETITEMS, SETITEM
                if code == 0x75:
                    items, stack = stack, outer.pop()
                else:
                    items = [stack[-2], stack[-1]]
                    del stack[-2:]
                memory += _PAIR_BYTES * (len(items) // 2)
                _set(_target(stack, _DICT, "sets items of what is no dict"), items)
            elif 0x85 <= code <= 0x87 or code == 0x74:  # TUPLE1, TUPLE2, TUPLE3, TUPLE
                if code == 0x74:
                    items, stack = stack, outer.pop()
                else:
                    size = code - 0x84
                    if len(stack) < size:
                        raise IndexError
                    items = stack[-size:]
                    del stack[-size:]
                memory += _CONTAINER_BYTES + 8 * len(items)
                containers += 1
                value = _Value(_TUPLE)
                value.hold(items)
                stack.append(value)
            elif code == 0x93 or code == 0x63:  # STACK_GLOBAL, GLOBAL
                if code == 0x93:
                    words = [_text(data, stack[-2]), _text(data, stack[-1])]
                    del stack[-2:]
                else:
                    words = []
                    for _word in range(2):
                        end = data.find(b"\n", position, position + 200)
                        if end < 0:
                            raise TruncatedError("it ends in the middle")
                        words.append(data[position:end].decode("ascii", "replace"))
                        position = end + 1
                if allows is None or not allows(words[0], words[1]):
                    raise RefusedError(f"asks for {_printable('.'.join(words))}")
                stack.append(_Value(_CLASS))
            elif allows is not None and (code == 0x52 or code == 0x81):  # REDUCE, NEWOBJ
                arguments = stack.pop()
                _target(stack, _CLASS, "calls what is no class")
                value = _Value(_OBJECT)
                value.hold([stack.pop(), arguments])
                memory += _OBJECT_BYTES
                containers += 1
                stack.append(value)
            elif allows is not None and code == 0x62:  # BUILD
                state = stack.pop()
                _target(stack, _OBJECT, "sets the state of what is no object").hold([state])
            elif code == 0x80:  # PROTO
                position += 1
            elif code == 0x95:  # FRAME
                position += 8
            elif code == 0x2E:  # STOP
                stack.pop()
                ended = True
                break
            else:
                raise _refusal(data, position - 1)
        if memory > most_memory:
            raise RefusedError(f"values of more than {most_memory >> 20} MiB")
        if expanded > most_expanded:
            raise RefusedError(f"more than {most_expanded:,} values where shared ones count each time")
        if containers > most_containers:
            raise RefusedError(f"more than {most_containers:,} containers")
        if len(stack) + sum(map(len, outer)) > most_items:
            raise RefusedError(f"more than {most_items:,} values in one container")


def _target(stack: list[_Item], kind: int, otherwise: str) -> _Value:
    target = stack[-1]
    if type(target) is not _Value or target.kind != kind:
        raise RefusedError(otherwise)
    return target


def _set(target: _Value, items: list[_Item]) -> None:
    """Numbers and tuples of them can be chosen so that all have one hash; the hash of a text is secret."""
    if len(items) % 2:
        raise RefusedError("sets items of what is no dict")
    for key in items[::2]:
        if key is None or (type(key) is _Value and key.kind != _OBJECT):
            raise RefusedError("keys that are no text")
    target.hold(items)


def _behind_count(data: bytes, position: int, width: int, limit: int) -> tuple[int, int]:
    """Where the bytes behind their count end, and how many they are."""
    start = position + width
    if start > len(data):
        raise IndexError
    size = int.from_bytes(data[position:start], "little")
    if size > limit:
        raise RefusedError(f"a value of {size:,} bytes")
    if start + size > len(data):
        raise IndexError
    return start + size, size


def _text(data: bytes, item: _Item) -> str:
    """The text whose instruction stands there."""
    if not isinstance(item, int):
        raise RefusedError("asks for a class whose name is no text")
    width = {0x58: 4, 0x8C: 1, 0x8D: 8}[data[item]]
    start = item + 1 + width
    size = int.from_bytes(data[item + 1 : start], "little")
    return data[start : start + min(size, 200)].decode("utf-8", "replace")


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:80])


def _refusal(data: bytes, position: int) -> RefusedError:
    """What an instruction that has no place here asks for: its class where it names one, else itself."""
    try:
        for opcode, value, _ in islice(pickletools.genops(BytesIO(data[position : position + _LOOK_AHEAD])), 1000):
            if opcode.name in ("GLOBAL", "INST"):
                return RefusedError(f"asks for {_printable(str(value).replace(' ', '.'))}")
    except (ValueError, AssertionError, IndexError, struct.error):  # what genops raises where the data is malformed
        pass
    code = data[position]
    name = next((known.name for known in pickletools.opcodes if known.code == chr(code)), hex(code))
    return RefusedError(f"the pickle instruction {name}")
