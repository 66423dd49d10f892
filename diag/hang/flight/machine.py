"""A machine for pickles of plain containers: it knows no class, and has a limit for everything.

A pickle is a program for a stack machine. This one has no instruction that makes anything but None, bool, int, float,
str, list, dict and flat tuples. Lists may still nest without end, or hold themselves: who reads what comes out must not
walk through it, only look where a dump has something."""

from __future__ import annotations

import pickletools
import struct
from io import BytesIO

MAX_BYTES = 128 << 20  # 2,000 entries take 0.3 to 1 MB
MAX_CONTAINERS = 4_000_000  # 64 bytes each, from one byte of the file
_MAX_DEPTH = 64  # a recorder's is 6
MAX_TEXT = 1 << 20
_MAX_INT_BYTES = 16
_SCALARS = frozenset({str, int, bool, float, type(None)})
_KEYS = frozenset({str, int})
_CLASSES = frozenset({"GLOBAL", "INST", "STACK_GLOBAL"})


class RefusedError(Exception):
    """Asks for something that a dump never needs. The text ends a sentence that begins with "refused: "."""


class TruncatedError(Exception):
    """Ends before its end."""


def run(data: bytes) -> object:
    """What the pickle holds. Raises ``RefusedError`` or ``TruncatedError``."""
    try:
        return _run(data)
    except (IndexError, struct.error):
        # Past the end of the data or of the stack.
        raise TruncatedError("it ends in the middle") from None
    except KeyError:
        raise RefusedError("uses a value before it is set") from None


def wanted_class(data: bytes) -> str:
    """The first class or function that the pickle asks for, as "module.name"; empty where it asks for none."""
    texts = ["", ""]
    try:
        for count, (opcode, value, _) in enumerate(pickletools.genops(BytesIO(data[: 1 << 20]))):
            if opcode.name == "STACK_GLOBAL":
                return _printable(".".join(texts))
            if opcode.name in _CLASSES:
                return _printable(str(value).replace(" ", "."))
            if isinstance(value, str) and "STRING" in opcode.name + opcode.name.replace("UNICODE", "STRING"):
                texts = [texts[1], value]
            if count > 100_000:
                break
    except Exception:  # whatever it finds malformed: the answer is only for a message
        pass
    return ""


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:80])


def _refusal(data: bytes, opcode: int) -> RefusedError:
    if wanted := wanted_class(data):
        return RefusedError(f"asks for {wanted}")
    name = next((known.name for known in pickletools.opcodes if known.code == chr(opcode)), hex(opcode))
    return RefusedError(f"the pickle instruction {name}")


def _run(data: bytes) -> object:
    """One loop, the frequent instructions first."""
    stack: list[object] = []
    outer: list[list[object]] = []
    memo: dict[int, object] = {}
    containers = 0
    position = 0
    unpack_int = struct.Struct("<i").unpack_from
    unpack_uint = struct.Struct("<I").unpack_from
    while True:
        code = data[position]
        position += 1
        if code == 0x68:  # BINGET
            stack.append(memo[data[position]])
            position += 1
        elif code == 0x6A:  # LONG_BINGET
            stack.append(memo[unpack_uint(data, position)[0]])
            position += 4
        elif code == 0x4B:  # BININT1
            stack.append(data[position])
            position += 1
        elif code == 0x28:  # MARK
            outer.append(stack)
            if len(outer) > _MAX_DEPTH:
                raise RefusedError(f"nested more than {_MAX_DEPTH} deep")
            stack = []
        elif code == 0x5D or code == 0x7D:  # EMPTY_LIST, EMPTY_DICT
            containers += 1
            if containers > MAX_CONTAINERS:
                raise RefusedError(f"more than {MAX_CONTAINERS:,} containers")
            stack.append([] if code == 0x5D else {})
        elif code == 0x65:  # APPENDS
            items, stack = stack, outer.pop()
            _list(stack[-1]).extend(items)
        elif code == 0x75:  # SETITEMS
            items, stack = stack, outer.pop()
            _set(stack[-1], items)
        elif code == 0x4D:  # BININT2
            stack.append(data[position] | data[position + 1] << 8)
            position += 2
        elif code == 0x4A:  # BININT
            stack.append(unpack_int(data, position)[0])
            position += 4
        elif code == 0x4E:  # NONE
            stack.append(None)
        elif code == 0x89:  # NEWFALSE
            stack.append(False)
        elif code == 0x88:  # NEWTRUE
            stack.append(True)
        elif code == 0x71:  # BINPUT
            memo[data[position]] = stack[-1]
            position += 1
        elif code == 0x72:  # LONG_BINPUT
            memo[unpack_uint(data, position)[0]] = stack[-1]
            position += 4
        elif code == 0x94:  # MEMOIZE
            memo[len(memo)] = stack[-1]
        elif code == 0x58 or code == 0x8C or code == 0x8D:  # BINUNICODE, SHORT_, 8
            width = 4 if code == 0x58 else 1 if code == 0x8C else 8
            text, position = _counted(data, position, width, MAX_TEXT)
            stack.append(text.decode("utf-8", "replace"))
        elif code == 0x8A:  # LONG1
            number, position = _counted(data, position, 1, _MAX_INT_BYTES)
            stack.append(int.from_bytes(number, "little", signed=True))
        elif code == 0x47:  # BINFLOAT
            stack.append(struct.unpack_from(">d", data, position)[0])
            position += 8
        elif 0x85 <= code <= 0x87:  # TUPLE1, TUPLE2, TUPLE3
            size = code - 0x84
            if len(stack) < size:
                raise IndexError
            stack[-size:] = [_flat(stack[-size:])]
        elif code == 0x74:  # TUPLE
            items, stack = stack, outer.pop()
            stack.append(_flat(items))
        elif code == 0x29:  # EMPTY_TUPLE
            stack.append(())
        elif code == 0x61:  # APPEND
            item = stack.pop()
            _list(stack[-1]).append(item)
        elif code == 0x73:  # SETITEM
            pair = stack[-2:]
            del stack[-2:]
            _set(stack[-1], pair)
        elif code == 0x80:  # PROTO
            position += 1
        elif code == 0x95:  # FRAME
            position += 8
        elif code == 0x2E:  # STOP
            return stack.pop()
        else:
            raise _refusal(data, code)


def _counted(data: bytes, position: int, width: int, limit: int) -> tuple[bytes, int]:
    """Bytes behind their count, and where they end."""
    start = position + width
    if start > len(data):
        raise IndexError
    size = int.from_bytes(data[position:start], "little")
    if size > limit:
        raise RefusedError(f"a value of {size:,} bytes")
    if start + size > len(data):
        raise IndexError
    return data[start : start + size], start + size


def _list(target: object) -> list[object]:
    if type(target) is not list:
        raise RefusedError("appends to what is no list")
    return target


def _set(target: object, items: list[object]) -> None:
    keys = items[::2]
    if type(target) is not dict or len(items) % 2:
        raise RefusedError("sets items of what is no dict")
    if not {type(key) for key in keys} <= _KEYS:
        raise RefusedError("keys that are no text")
    target.update(zip(keys, items[1::2], strict=True))


def _flat(items: list[object]) -> tuple[object, ...]:
    if not {type(item) for item in items} <= _SCALARS:
        raise RefusedError("tuples within tuples")
    return tuple(items)
