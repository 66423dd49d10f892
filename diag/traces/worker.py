"""A process that reads trace files into the cache: paths on its standard input, what became of them on its output.

Not multiprocessing: its children begin by running the caller's script again, and a notebook or a script without a main
guard has no use for that. ``python -m diag.traces.worker FOLDER``; a JSON line each way for each file.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue

import msgspec
from msgspec import Struct, field

from .outcome import Found

_DECODE = msgspec.json.Decoder(list[Found]).decode


class Workers(Struct):
    """Up to ``count`` processes that write to one cache folder. A process that dies costs the file it was reading."""

    count: int
    folder: str
    _idle: SimpleQueue[subprocess.Popen[bytes]] = field(default_factory=SimpleQueue)

    def read(self, paths: list[str]) -> dict[Future[list[Found]], str]:
        """A future for each path, in order of their beginning; `as_completed` waits for them."""
        pool = ThreadPoolExecutor(self.count)
        futures = {pool.submit(self._read, path): path for path in paths}
        pool.shutdown(wait=False)
        return futures

    def close(self) -> None:
        while not self._idle.empty():
            process = self._idle.get()
            process.communicate()  # closes its input, on which it ends

    def _read(self, path: str) -> list[Found]:
        process = self._idle.get() if not self._idle.empty() else self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(path) + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            answer = b""
        if not answer:
            code = process.wait()
            return [Found(path, reason=f"the process that read it was killed (exit code {code}): out of memory?")]
        self._idle.put(process)
        return _DECODE(answer)

    def _start(self) -> subprocess.Popen[bytes]:
        command = (sys.executable, "-m", "diag.traces.worker", self.folder)
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def main() -> None:
    from .reading import read_file

    for line in sys.stdin.buffer:
        found = read_file(msgspec.json.decode(line, type=str), sys.argv[1], keep_small=True)
        # What did not fit the cache is read again by whoever asked: contents do not travel.
        told = [Found(item.path, item.key, None, item.reason) for item in found]
        sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
