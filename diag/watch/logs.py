"""Reads each rank's output through a pipe, shows it, and writes it into the run directory while that is possible.

torchrun would redirect the ranks into files. Then a full disk raises in the training when it prints."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self, TextIO

from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs

from diag.collectors.files import open_private
from diag.collectors.layout import RunLayout
from diag.watch.policy import WATCHING

if TYPE_CHECKING:
    pass


class RunLogs(LogsSpecs):
    """Writes logs into the run directory, from entering the context to leaving it. The first rank's standard output,
    which has the progress, is also shown; ``everything``: all output of all ranks is shown. ``say`` is called once if a
    log can no longer be written."""

    def __init__(self, layout: RunLayout, say: Callable[[str], None], everything: bool = False) -> None:
        super().__init__(log_dir=str(layout.root))
        self._everything = everything
        self._layout = layout
        self._say = say
        self._streams: list[_Stream] = []
        self._refused = False

    @property
    def root_log_dir(self) -> str:
        return str(self._layout.root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams:
            stream.close()
        deadline = time.monotonic() + WATCHING.linger_s
        for stream in self._streams:
            stream.drain(deadline)
        for files in self._layout.ranks().values():
            with contextlib.suppress(OSError):  # torch creates it readable for all users
                files.error.chmod(0o600)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        destinations = LogsDest()
        for local_rank, environment in envs.items():
            rank = int(environment["RANK"])
            files = self._layout.rank(rank)
            with contextlib.suppress(OSError):  # then its logs cannot be written either, which is reported
                files.folder.mkdir(parents=True, exist_ok=True)
            out = sys.stdout if rank == 0 or self._everything else None
            errors = sys.stderr if self._everything else None
            destinations.stdouts[local_rank] = self._stream(files.stdout, out, rank)
            destinations.stderrs[local_rank] = self._stream(files.log, errors, rank)
            # The file into which ``record`` writes the exception that ended the process, with its time.
            destinations.error_files[local_rank] = environment["TORCHELASTIC_ERROR_FILE"] = str(files.error)
        return destinations

    def _stream(self, log_path: Path, terminal: TextIO | None, rank: int) -> str:
        """The path that torchrun opens for the stream."""
        stream = _Stream(log_path, terminal, f"[rank{rank}] ", self._complain)
        self._streams.append(stream)
        return stream.path

    def _complain(self, error: OSError) -> None:
        if not self._refused:
            self._refused = True
            self._say(f"the output of the ranks is no longer recorded: {error}; the training goes on without it")


class _Stream:
    """One output stream of one rank."""

    def __init__(
        self, log_path: Path, terminal: TextIO | None, prefix: str, complain: Callable[[OSError], None]
    ) -> None:
        self._log_path = log_path
        self._shown = terminal
        self._prefix = prefix
        self._complain = complain
        self._reading, self._writing = os.pipe()
        self.path = f"/dev/fd/{self._writing}"  # opening it opens the pipe once more
        self._thread = threading.Thread(target=self._run, name=f"diag-{log_path.name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Closes our end; the stream ends when the last process that can print has exited."""
        os.close(self._writing)

    def drain(self, deadline: float) -> None:
        """Waits until all output of the rank has been read, or until the deadline."""
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
        file, begun = self._open(), ""
        while chunk := os.read(self._reading, WATCHING.log_chunk_bytes):
            file = self._write(file, chunk)
            *lines, begun = (begun + decoder.decode(chunk)).split("\n")
            self._show(lines)
        if begun:
            self._show([begun])
        if file is not None:
            file.close()
        os.close(self._reading)

    def _open(self) -> IO[bytes] | None:
        try:
            return open_private(self._log_path)
        except OSError as error:
            self._complain(error)
            return None

    def _write(self, file: IO[bytes] | None, chunk: bytes) -> IO[bytes] | None:
        """Writes to the file, and returns it; None from the first error on."""
        if file is None:
            return None
        try:
            while chunk:
                chunk = chunk[file.write(chunk) :]
        except OSError as error:
            self._complain(error)
            file.close()
            return None
        return file

    def _show(self, lines: list[str]) -> None:
        if self._shown is None or not lines:
            return
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone
            self._shown.write("".join(f"{self._prefix}{line}\n" for line in lines))
            self._shown.flush()
