"""Checks what a pickle would do before Python's own unpickler does it.

A pickle is a program, and ``pickle.Unpickler`` obeys it even where ``find_class`` refuses every class: a memo index of
2^31 takes gigabytes, a key made of shared tuples is hashed for ever, a deep one overflows the C stack. Limits on size
and on the instructions of ``pickletools.genops`` do not help: of the hostile dumps of the tests, 2 MB of integer keys
with one hash, and a key of 40 shared tuples (300 bytes), still ran for more than 60 s of CPU time.

So ``check`` runs the program on sizes instead of values: each value has a depth and the number of values it holds,
where shared ones count each time. No value may change once another one holds it, so these figures are exact, and a walk
through the unpickled values takes at most ``most_pickle_expanded`` steps."""

from __future__ import annotations

import pickle
import pickletools
import struct
from collections.abc import Callable
from io import BytesIO
from itertools import islice
from typing import NoReturn

from .policy import RECORDED_FILES

# Memory of Python 3.11, in bytes.
_CONTAINER_BYTES, _OBJECT_BYTES, _TEXT_BYTES, _NUMBER_BYTES = 80, 320, 60, 32
_ITEM_BYTES, _PAIR_BYTES = 9, 80

_LIST, _DICT, _TUPLE, _OBJECT, _CLASS, _UNSET = range(6)
_SCALARS = {0x4E: 0, 0x88: 0, 0x89: 0, 0x4B: 1, 0x4D: 2, 0x4A: 4, 0x47: 8}  # opcode: bytes of its argument


class RefusedError(Exception):
    """The pickle asks for something that is never needed. The text completes a sentence that begins "refused: "."""


class TruncatedError(Exception):
    """The pickle is truncated."""


class _Value:
    """A container, an object or a class. On the stack, a text is the position of its instruction, and a number None."""

    __slots__ = ("depth", "kind", "sealed", "weight")

    def __init__(self, kind: int) -> None:
        self.kind, self.weight, self.depth, self.sealed = kind, 1, 1, False

    def hold(self, items: list[_Item]) -> None:
        """Adds the items. Raises ``RefusedError`` if the value is in use already, or becomes too deep."""
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
            if depth >= RECORDED_FILES.most_pickle_depth:
                raise RefusedError(f"nested more than {RECORDED_FILES.most_pickle_depth} deep")


_Item = _Value | int | None
_NOT_SET = _Value(_UNSET)


def load(data: bytes, *, times: int = 1, most_bytes: int = RECORDED_FILES.most_pickle_bytes) -> object:
    """The containers, texts and numbers that a pickle holds; it may name no class. ``times`` and ``most_bytes`` are
    those of ``check``. Raises ``RefusedError`` or ``TruncatedError``."""
    check(data, times=times, most_bytes=most_bytes)
    return load_checked(data)


def load_checked(data: bytes) -> object:
    """Loads a pickle without classes that has passed ``check``. Raises ``RefusedError``."""
    try:
        return _Plain(BytesIO(data)).load()
    except (pickle.UnpicklingError, TypeError, IndexError, ValueError, EOFError, KeyError, AttributeError) as problem:
        raise RefusedError(f"malformed ({type(problem).__name__})") from None


class _Plain(pickle.Unpickler):
    """An unpickler without classes: the checks refuse them, and so does this."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise RefusedError(f"asks for {module}.{name}")

    def persistent_load(self, pid: object) -> NoReturn:  # noqa: ARG002
        raise RefusedError("asks for a persistent object")


def check(
    data: bytes,
    allows: Callable[[str, str], bool] | None = None,
    *,
    times: int = 1,
    most_bytes: int = RECORDED_FILES.most_pickle_bytes,
) -> None:
    """Returns if the pickle is safe to load. ``allows`` returns whether it may use a class or function, by module and
    name; without it none is allowed. Keys are texts, or objects of these classes. ``times`` multiplies the limits above
    on the values; ``most_bytes`` limits the size of the pickle. Raises ``RefusedError`` with what the pickle asks for,
    or ``TruncatedError``."""
    if len(data) > most_bytes:
        raise RefusedError(f"{len(data) >> 20} MiB, more than {most_bytes >> 20}")
    walk = _Walk(data, allows, times)
    try:
        while not walk.ended:
            walk.instructions()
            walk.compare()
    except (IndexError, struct.error):
        # Past the end of the data or of the stack.
        raise TruncatedError("it ends in the middle") from None


class _Walk:
    """Runs a pickle's program on sizes: its stack, and what the values would take so far."""

    def __init__(self, data: bytes, allows: Callable[[str, str], bool] | None, times: int) -> None:
        self.data, self.position, self.ended = data, 0, False
        self.allows = allows
        self.most_memory, self.most_expanded = (
            RECORDED_FILES.most_pickle_memory_bytes * times,
            RECORDED_FILES.most_pickle_expanded * times,
        )
        self.most_containers, self.most_items, self.most_memo = (
            limit * times
            for limit in (
                RECORDED_FILES.most_pickle_containers,
                RECORDED_FILES.most_pickle_items,
                RECORDED_FILES.most_pickle_memo,
            )
        )
        self.stack: list[_Item] = []
        self.outer: list[list[_Item]] = []  # the stacks below each mark
        self.memo: list[_Item] = []
        self.memory = self.expanded = self.containers = 0

    def instructions(self) -> None:
        """Runs ``pickle_instructions_between_looks`` instructions, trying the frequent ones first; then ``compare`` is
        due."""
        data = self.data
        for _ in range(RECORDED_FILES.pickle_instructions_between_looks):
            code = data[self.position]
            self.position += 1
            if code in _SCALARS:
                width = _SCALARS[code]
                self.position += width
                self.memory += _NUMBER_BYTES if width > 1 else 0
                self.stack.append(None)
                continue
            instruction = _INSTRUCTIONS.get(code)
            if instruction is None or (code in _OF_CLASSES and self.allows is None):
                raise _refusal(data, self.position - 1)
            instruction(self, code)
            if self.ended:
                return

    def compare(self) -> None:
        """Raises ``RefusedError`` where the values take more than they may."""
        if self.memory > self.most_memory:
            raise RefusedError(f"values of more than {self.most_memory >> 20} MiB")
        if self.expanded > self.most_expanded:
            raise RefusedError(f"more than {self.most_expanded:,} values, counting shared ones each time")
        if self.containers > self.most_containers:
            raise RefusedError(f"more than {self.most_containers:,} containers")
        if len(self.stack) + sum(map(len, self.outer)) > self.most_items:
            raise RefusedError(f"more than {self.most_items:,} values in one container")

    def _index(self, width: int) -> int:
        start, self.position = self.position, self.position + width
        return self.data[start] if width == 1 else int(_UINT.unpack_from(self.data, start)[0])

    def _marked(self) -> list[_Item]:
        """The items above the last mark."""
        items, self.stack = self.stack, self.outer.pop()
        return items

    def get(self, code: int) -> None:
        index = self._index(1 if code == 0x68 else 4)
        if index >= len(self.memo):
            raise RefusedError("uses a value before it is set")
        item = self.memo[index]
        if type(item) is _Value:
            item.sealed = True
            self.expanded += item.weight
        self.stack.append(item)

    def put(self, code: int) -> None:
        item, memo = self.stack[-1], self.memo
        index = len(memo) if code == 0x94 else self._index(1 if code == 0x71 else 4)
        if index == len(memo) < self.most_memo:
            memo.append(item)
        elif index < min(len(memo) + RECORDED_FILES.pickle_memo_gap, self.most_memo):
            memo += [_NOT_SET] * (index + 1 - len(memo))
            memo[index] = item
        else:
            raise RefusedError(f"a memo index of {index:,}")

    def mark(self, _code: int) -> None:
        self.outer.append(self.stack)
        if len(self.outer) > RECORDED_FILES.most_pickle_depth:
            raise RefusedError(f"nested more than {RECORDED_FILES.most_pickle_depth} deep")
        self.stack = []

    def text(self, code: int) -> None:
        self.stack.append(self.position - 1)
        self.position, size = _behind_count(
            self.data, self.position, _TEXTS[code], RECORDED_FILES.most_pickle_text_bytes
        )
        self.memory += _TEXT_BYTES + size

    def long_integer(self, _code: int) -> None:
        self.position, _ = _behind_count(self.data, self.position, 1, RECORDED_FILES.most_pickle_int_bytes)
        self.memory += _NUMBER_BYTES
        self.stack.append(None)

    def empty(self, code: int) -> None:
        self.containers += 1
        self.memory += _CONTAINER_BYTES
        self.stack.append(_Value(_EMPTY[code]))

    def append(self, code: int) -> None:
        items = self._marked() if code == 0x65 else [self.stack.pop()]
        self.memory += _ITEM_BYTES * len(items)
        _target(self.stack, _LIST, "appends to a value that is not a list").hold(items)

    def set_items(self, code: int) -> None:
        items = self._marked() if code == 0x75 else self._last(2)
        self.memory += _PAIR_BYTES * (len(items) // 2)
        _set(_target(self.stack, _DICT, "sets items of a value that is not a dict"), items)

    def make_tuple(self, code: int) -> None:
        items = self._marked() if code == 0x74 else self._last(code - 0x84)
        self.memory += _CONTAINER_BYTES + 8 * len(items)
        self.containers += 1
        value = _Value(_TUPLE)
        value.hold(items)
        self.stack.append(value)

    def _last(self, count: int) -> list[_Item]:
        if len(self.stack) < count:
            raise IndexError
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def name_class(self, code: int) -> None:
        if code == 0x93:
            words = [_text(self.data, item) for item in self._last(2)]
        else:
            words = []
            for _ in range(2):
                end = self.data.find(b"\n", self.position, self.position + 200)
                if end < 0:
                    raise TruncatedError("it ends in the middle")
                words.append(self.data[self.position : end].decode("ascii", "replace"))
                self.position = end + 1
        if self.allows is None or not self.allows(words[0], words[1]):
            raise RefusedError(f"asks for {_printable('.'.join(words))}")
        self.stack.append(_Value(_CLASS))

    def call(self, _code: int) -> None:
        arguments = self.stack.pop()
        _target(self.stack, _CLASS, "calls a value that is not a class")
        value = _Value(_OBJECT)
        value.hold([self.stack.pop(), arguments])
        self.memory += _OBJECT_BYTES
        self.containers += 1
        self.stack.append(value)

    def set_state(self, _code: int) -> None:
        state = self.stack.pop()
        _target(self.stack, _OBJECT, "sets the state of a value that is not an object").hold([state])

    def skip(self, code: int) -> None:
        self.position += 1 if code == 0x80 else 8

    def stop(self, _code: int) -> None:
        self.stack.pop()
        self.ended = True


_UINT = struct.Struct("<I")
_TEXTS = {0x58: 4, 0x8C: 1, 0x8D: 8}  # BINUNICODE, SHORT_, 8: the width of the count
_EMPTY = {0x5D: _LIST, 0x7D: _DICT, 0x29: _TUPLE}
_OF_CLASSES = frozenset({0x52, 0x81, 0x62})
_INSTRUCTIONS: dict[int, Callable[[_Walk, int], None]] = {
    **dict.fromkeys((0x68, 0x6A), _Walk.get),  # BINGET, LONG_BINGET
    **dict.fromkeys((0x94, 0x71, 0x72), _Walk.put),  # MEMOIZE, BINPUT, LONG_BINPUT
    0x28: _Walk.mark,
    **dict.fromkeys(_TEXTS, _Walk.text),
    0x8A: _Walk.long_integer,  # LONG1
    **dict.fromkeys(_EMPTY, _Walk.empty),
    **dict.fromkeys((0x65, 0x61), _Walk.append),  # APPENDS, APPEND
    **dict.fromkeys((0x75, 0x73), _Walk.set_items),  # SETITEMS, SETITEM
    **dict.fromkeys((0x85, 0x86, 0x87, 0x74), _Walk.make_tuple),  # TUPLE1, TUPLE2, TUPLE3, TUPLE
    **dict.fromkeys((0x93, 0x63), _Walk.name_class),  # STACK_GLOBAL, GLOBAL
    **dict.fromkeys((0x52, 0x81), _Walk.call),  # REDUCE, NEWOBJ
    0x62: _Walk.set_state,  # BUILD
    **dict.fromkeys((0x80, 0x95), _Walk.skip),  # PROTO, FRAME
    0x2E: _Walk.stop,
}


def _target(stack: list[_Item], kind: int, otherwise: str) -> _Value:
    target = stack[-1]
    if type(target) is not _Value or target.kind != kind:
        raise RefusedError(otherwise)
    return target


def _set(target: _Value, items: list[_Item]) -> None:
    """Adds keys and values. Keys must not be numbers or tuples, which can be chosen so that all have one hash; the hash
    of a text is randomized."""
    if len(items) % 2:
        raise RefusedError("sets items of a value that is not a dict")
    for key in items[::2]:
        if key is None or (type(key) is _Value and key.kind != _OBJECT):
            raise RefusedError("keys that are not strings")
    target.hold(items)


def _behind_count(data: bytes, position: int, width: int, limit: int) -> tuple[int, int]:
    """The end of a length-prefixed run of bytes, and its length."""
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
    """The text that the instruction at this position pushes."""
    if not isinstance(item, int):
        raise RefusedError("asks for a class whose name is not a string")
    width = _TEXTS[data[item]]
    start = item + 1 + width
    size = int.from_bytes(data[item + 1 : start], "little")
    return data[start : start + min(size, 200)].decode("utf-8", "replace")


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:80])


def _refusal(data: bytes, position: int) -> RefusedError:
    """The error for an unexpected instruction: names the class that it asks for, else the instruction."""
    try:
        for opcode, value, _ in islice(
            pickletools.genops(BytesIO(data[position : position + RECORDED_FILES.pickle_look_ahead_bytes])), 1000
        ):
            if opcode.name in ("GLOBAL", "INST"):
                return RefusedError(f"asks for {_printable(str(value).replace(' ', '.'))}")
    except (ValueError, AssertionError, IndexError, struct.error):  # raised by genops for malformed data
        pass
    code = data[position]
    name = next(
        (known_opcode.name for known_opcode in pickletools.opcodes if known_opcode.code == chr(code)), hex(code)
    )
    return RefusedError(f"the pickle instruction {name}")
