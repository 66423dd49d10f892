"""The least that any reader must do: unpack the bytes with isal and parse them with simdjson, keeping nothing.

pysimdjson is a requirement of this benchmark only: ``pip install pysimdjson``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import simdjson
from isal import igzip

for name in sys.argv[1:]:
    data = Path(name).read_bytes()
    if data.startswith(b"\x1f\x8b"):
        data = igzip.decompress(data)
    simdjson.Parser().parse(data)
