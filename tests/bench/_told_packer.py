"""A packer that packs when it is told to, and counts what it asks of its store: for ``tests.bench.emulated_nodes``."""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from pathlib import Path

from diag.collectors.packing import Packing
from diag.store.packer import Node
from diag.store.stores import Store

INTERVAL_S = 30


class CountedStore(Store):
    """What is asked of the store, and the bytes that are written."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.asked: Counter[str] = Counter()
        self.written = 0

    def write(self, name: str, data: bytes) -> None:
        self.asked["write"] += 1
        self.written += len(data)
        super().write(name, data)

    def read(self, name: str, start: int = 0) -> bytes:
        self.asked["read"] += 1
        return super().read(name, start)

    def read_if_there(self, name: str) -> bytes | None:
        self.asked["read"] += 1
        return super().read_if_there(name)

    def remove(self, names: list[str]) -> None:
        self.asked["remove"] += len(names)
        super().remove(names)


def most_resident_mb() -> float:
    """Of this program alone; ``getrusage`` has the peak of the process that started it as well."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1e3 if found is not None else 0.0


def pack_when_told(folder: Path, address: str) -> None:
    """A packer that packs at each line of its standard input, and prints at the end what it cost."""
    store = CountedStore(address)
    node = Node(folder, Packing(address, INTERVAL_S), store)
    began_s, most_s = time.process_time(), 0.0
    for _ in sys.stdin:
        since_s = time.process_time()
        node.interval()
        most_s = max(most_s, time.process_time() - since_s)
        print("packed", flush=True)
    print(
        json.dumps(
            {
                "cpu_s": time.process_time() - began_s,
                "most_s": most_s,
                "rss_mb": most_resident_mb(),
                "written": store.written,
                "asked": store.asked,
            }
        )
    )


if __name__ == "__main__":
    pack_when_told(Path(sys.argv[1]), sys.argv[2])
