"""Writes pickles as PyTorch's own pickler does: 19 instructions, texts and stack frames once each."""

from __future__ import annotations

import struct


class _Writer:
    def __init__(self) -> None:
        self.out = bytearray(b"\x80\x02")
        self.memo: dict[object, int] = {}

    def get(self, index: int) -> None:
        self.out += b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index)

    def put(self, key: object) -> None:
        index = self.memo[key] = len(self.memo)
        self.out += b"q" + bytes([index]) if index < 256 else b"r" + struct.pack("<I", index)

    def write(self, value: object) -> None:
        out = self.out
        if value is None:
            out += b"N"
        elif value is True or value is False:
            out += b"\x88" if value else b"\x89"
        elif isinstance(value, int):
            self.write_int(value)
        elif isinstance(value, float):
            out += b"G" + struct.pack(">d", value)
        elif isinstance(value, str):
            if value in self.memo:
                return self.get(self.memo[value])
            data = value.encode()
            out += b"X" + struct.pack("<I", len(data)) + data
            self.put(value)
        elif isinstance(value, tuple):
            assert len(value) == 2
            self.write(value[0])
            self.write(value[1])
            out += b"\x86"
        elif isinstance(value, list):
            out += b"]("
            for item in value:
                self.write(item)
            out += b"e"
        elif isinstance(value, dict):
            shared = ("dict", id(value))
            if "filename" in value and shared in self.memo:
                return self.get(self.memo[shared])
            out += b"}("
            for key, item in value.items():
                self.write(key)
                self.write(item)
            out += b"u"
            if "filename" in value:
                self.put(shared)
        return None

    def write_int(self, value: int) -> None:
        if 0 <= value < 256:
            self.out += b"K" + bytes([value])
        elif 0 <= value < 65536:
            self.out += b"M" + struct.pack("<H", value)
        elif -(1 << 31) <= value < 1 << 31:
            self.out += b"J" + struct.pack("<i", value)
        else:
            self.out += b"\x8a\x08" + struct.pack("<q", value)


def dumps(value: object) -> bytes:
    writer = _Writer()
    writer.write(value)
    return bytes(writer.out + b".")
