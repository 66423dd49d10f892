"""How packed files begin."""

from __future__ import annotations

GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
