"""Reads many trace files: from the cache if possible, else here, in several processes, or on a Dask cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct, field

from diag import processes
from diag.collectors.layout import RankLayout
from diag.decoding import json_decoder
from diag.deferred import by_name
from diag.errors import DiagError, not_installed
from diag.model import Gap
from diag.traces.policy import TRACE_READING

from . import text_stream
from .cache import Cache, UnwritableError
from .kineto_names import CommRule
from .text_stream import file_name, members
from .trace import Trace


class ReadResult(msgspec.Struct):
    """For one trace: its key in the cache, its contents, or the reason why it cannot be read; none of them if it is to
    be read again."""

    path: str
    key: str = ""
    contents: Any = None
    reason: str = ""


# Kineto's format: of a file that is in no cache, and of any trace.
_read_contents: Callable[..., Any] = by_name("diag.traces.kineto:read_contents")
_as_traces: Callable[..., list[Trace]] = by_name("diag.traces.kineto:as_traces")
# A trace that is to be kept.
_writing: Callable[[Cache, str], Any] = by_name("diag.traces.writing:writing")
_prune: Callable[[Path | None], None] = by_name("diag.traces.pruning:prune")
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # options of mallopt, see malloc.h


class Reading(Struct, frozen=True):
    """How to read. ``ranks``: rank by path, if the header and the name lack it or are wrong; ``progress`` is called
    with (files done, number of files, the file). ``comm_kernels``: the user's own names of communication kernels;
    `diag.rundir.run` adds those of diag.toml."""

    cache: Cache = field(default_factory=Cache.of_user)
    jobs: int | None = None  # processes; None: as many as speed it up
    cluster: str | None = None  # address of a Dask scheduler
    ranks: dict[str, int] = field(default_factory=dict)
    progress: Callable[[int, int, str], None] | None = None
    comm_kernels: tuple[CommRule, ...] = ()


def read_traces(paths: Sequence[str], reading: Reading) -> Iterator[Trace | Gap]:
    """The trace or the traces (of an archive, of several ranks in one file) at each path, in order; a Gap for each one
    that cannot be read."""
    for outcomes in _run(paths, reading):
        for item in outcomes:
            yield from _traces(item, reading)


def _traces(item: ReadResult, reading: Reading) -> Sequence[Trace | Gap]:
    """One trace, unless a tool merged the traces of several ranks into the file."""
    contents = item.contents if item.contents is not None else reading.cache.load(item.key) if item.key else None
    if contents is None and item.key and not text_stream.is_archive(item.path.partition("!")[0]):
        (item,) = read_file(item.path, None)  # the entry was removed, or it may not be read
        contents = item.contents
    if contents is None:
        return [Gap(item.path, item.reason or "its cache entry was removed while diag was reading it; run again")]
    try:
        traces = _as_traces(contents, item.path, rank=reading.ranks.get(item.path))
    except DiagError as error:
        return [Gap(item.path, _reason(error, item.path))]
    return [msgspec.structs.replace(trace, comm_kernels=reading.comm_kernels) for trace in traces]


def _reason(error: DiagError, path: str) -> str:
    _let_go(error)
    return error.message.removeprefix(f"{file_name(error.path or path)}: ")


def _let_go(error: BaseException) -> None:
    """Drops the tracebacks of an error and its causes. Their frames hold the file's text. An error that is its own
    cause, or that one of these frames holds, stays in memory until the rare runs of the garbage collector."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        if (current := waiting.pop()) is not None and id(current) not in seen:
            seen.add(id(current))
            waiting += [current.__cause__, current.__context__]
            current.__traceback__ = current.__cause__ = current.__context__ = None


def _run(paths: Sequence[str], reading: Reading) -> Iterator[list[ReadResult]]:
    say = reading.progress or _say_nothing
    folder = str(reading.cache.folder.absolute()) if reading.cache.folder is not None else None
    if reading.cluster is not None:
        yield from _on_cluster(paths, reading.cluster, folder, say)
        return
    known = {path: outcomes for path in paths if (outcomes := _in_cache(path, reading.cache)) is not None}
    rest = [path for path in paths if path not in known]
    jobs = reading.jobs if reading.jobs is not None else _paying_jobs(rest)
    if folder is not None and min(jobs, len(rest)) > 1:
        known |= _in_processes(rest, min(jobs, len(rest)), folder, say)
    for number, path in enumerate(paths):
        say(number, len(paths), path)
        outcomes = known.get(path)
        again = outcomes is None or any(not item.key and not item.reason for item in outcomes)
        yield read_file(path, folder) if again or outcomes is None else outcomes


def _in_cache(path: str, cache: Cache) -> list[ReadResult] | None:
    if cache.folder is None or text_stream.is_archive(path) or not _is_large(path):
        return None
    try:
        key = _key(path, cache)
    except (DiagError, OSError):
        return None
    result = _loaded(path, cache, key)
    return [result] if result is not None else None


def _in_processes(
    paths: Sequence[str], jobs: int, folder: str, say: Callable[[int, int, str], None]
) -> dict[str, list[ReadResult]]:
    workers = Workers(jobs, folder)
    # The largest first, so that none of them is left for the end.
    waiting = workers.read(sorted(paths, key=text_stream.size_of, reverse=True))
    done: dict[str, list[ReadResult]] = {}
    try:
        for number, future in enumerate(as_completed(waiting)):
            done[waiting[future]] = future.result()
            say(number + 1, len(paths), waiting[future])
    except BaseException:  # Ctrl-C: nothing waits for files that are being read
        for future in waiting:
            future.cancel()
        workers.kill()
        raise
    workers.close()
    return done


def _say_nothing(*_: object) -> None:
    return


def _on_cluster(
    paths: Sequence[str], address: str, folder: str | None, say: Callable[[int, int, str], None]
) -> Iterator[list[ReadResult]]:
    """Only paths are sent to the workers and only cache keys come back: all of them see the traces and the cache
    folder."""
    try:
        from distributed import Client
        from distributed import as_completed as done_in_order
    except ImportError as error:
        raise not_installed("dask.distributed, which --cluster needs,", "cluster") from error
    if folder is None:
        raise DiagError(
            "a cluster needs a cache folder that its workers share", hint="Set DIAG_CACHE to a shared folder."
        )
    try:
        client = Client(address, timeout=TRACE_READING.cluster_timeout_s)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TypeError) as error:
        raise DiagError(f"no Dask scheduler answers at {address}", hint="Start a scheduler: dask scheduler") from error
    with client:
        # Workers have their own working directories.
        places = [path if text_stream.is_remote(path) else str(Path(path).absolute()) for path in paths]
        futures = client.map(read_file, places, folder=folder, keep_small=True, pure=False, retries=2)
        for number, future in enumerate(done_in_order(futures)):  # type: ignore[no-untyped-call]
            say(number + 1, len(paths), paths[futures.index(future)])
        for path, place, future in zip(paths, places, futures, strict=True):
            if future.status == "finished":
                yield [msgspec.structs.replace(f, path=path + f.path.removeprefix(place)) for f in future.result()]
            else:
                yield [ReadResult(path, reason=f"a Dask worker failed to read it: {future.exception()}")]  # type: ignore[no-untyped-call]


def read_file(path: str, folder: str | None, keep_small: bool = False) -> list[ReadResult]:
    """Reads one file, through the cache in ``folder`` if it is large, or always (``keep_small``). Never raises for a
    bad file."""
    cache = Cache(Path(folder) if folder is not None else None)
    try:
        with kept_memory():
            return _read_file(path, cache, keep_small)
    except (DiagError, OSError) as error:
        reason = _reason(error, path) if isinstance(error, DiagError) else f"cannot be read: {error.strerror or error}"
        return [ReadResult(path, reason=reason)]


def _read_file(path: str, cache: Cache, keep_small: bool) -> list[ReadResult]:
    if text_stream.is_archive(path):
        try:
            return _of_archive(path, cache)
        except UnwritableError:
            return _of_archive(path, Cache(None))
    if cache.folder is None or not (keep_small or _is_large(path)):
        with text_stream.opened(path) as file:
            return [ReadResult(path, contents=_read_contents(file, path))]
    key = _key(path, cache)
    result = _loaded(path, cache, key) or _ingest(path, cache, key)
    if keep_small:  # the caller is another process, and loads it itself
        result.contents = None if result.key else result.contents
    return [result]


def _loaded(path: str, cache: Cache, key: str) -> ReadResult | None:
    contents = cache.load(key)
    return ReadResult(path, key, contents) if contents is not None else None


def _is_large(path: str) -> bool:
    return text_stream.size_of(path) >= (
        TRACE_READING.cached_from_gzip_bytes if path.endswith(".gz") else TRACE_READING.cached_from_bytes
    )


def _key(path: str, cache: Cache) -> str:
    return text_stream.remote_key(path) if text_stream.is_remote(path) else cache.key_of(Path(path))


def _ingest(path: str, cache: Cache, key: str) -> ReadResult:
    """Reads the file into the cache, or into memory if the cache cannot be written (a full disk)."""
    with _writing(cache, key) as writer:
        if writer is not None:
            try:
                with text_stream.opened(path) as file:
                    writer.finish(_read_contents(file, path, writer.write))
                _prune(cache.folder)
                result = _loaded(path, cache, key)
                if result is not None:  # else another user's entry is in its place, which may not be readable
                    return result
            except UnwritableError:
                pass
    with text_stream.opened(path) as file:
        return ReadResult(path, contents=_read_contents(file, path))


_STEPS = RankLayout(Path()).steps.name
PACKED_RUN, UNPACK = "is a packed run directory", "unpack it, and give its folder"


def _of_archive(path: str, cache: Cache) -> list[ReadResult]:
    results = list(_read_archive(path, cache))
    return [result for result in results if result.reason.startswith(PACKED_RUN)] or results


def _read_archive(path: str, cache: Cache) -> Iterator[ReadResult]:
    """One pass over the archive: every member with a trace's ending. A packed run directory is refused, because its
    traces alone give another verdict. UnwritableError refers to the cache."""
    archive_key = ""
    if cache.folder is not None:
        archive_key = _key(path, cache)
    count = 0
    try:
        with text_stream.opened(path) as file:
            for name, content in members(file, path):
                if name.rpartition("/")[2] == _STEPS:
                    yield ReadResult(path, reason=f"{PACKED_RUN}: {UNPACK}")
                    return
                if not name.endswith(text_stream.TRACE_ENDINGS):
                    continue
                count += 1
                inner = f"{path}!{name}"
                if content is None:
                    yield ReadResult(
                        inner, reason="is a link, a device or a sparse file in the archive, not a plain file"
                    )
                    continue
                key = f"{archive_key}-{sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"
                try:
                    yield _read_member(inner, content, cache, key)
                except DiagError as error:
                    yield ReadResult(inner, reason=_reason(error, inner))
    except DiagError as error:
        # Members read so far are kept: the archive was truncated or damaged.
        yield ReadResult(path, reason=_reason(error, path))
        return
    if not count:
        yield ReadResult(path, reason="holds no file that ends in .json or .json.gz")


def _read_member(path: str, content: BinaryIO, cache: Cache, key: str) -> ReadResult:
    if cache.load(key) is not None:
        return ReadResult(path, key)
    with _writing(cache, key) as writer:
        if writer is None:
            return ReadResult(path, contents=_read_contents(content, path))
        writer.finish(_read_contents(content, path, writer.write))
    if cache.load(key) is None:
        raise UnwritableError("the entry cannot be read")
    return ReadResult(path, key)


def _paying_jobs(paths: Sequence[str]) -> int:
    """Number of processes that save more time than their start takes, and that fit into memory."""
    text = sum(text_stream.size_of(p) * (TRACE_READING.gzip_ratio if p.endswith(("gz",)) else 1) for p in paths)
    if text < TRACE_READING.processes_from_bytes:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(
        1,
        min(
            cores,
            len(paths),
            text // (TRACE_READING.processes_from_bytes // 4),
            _free_bytes() // TRACE_READING.bytes_a_process,
        ),
    )


def _free_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


@contextmanager
def kept_memory() -> Iterator[None]:
    """While it is open, the C library keeps freed memory. Reading allocates and frees arrays of a few hundred kilobytes
    a thousand times; getting them from the system each time doubles its time. On exit, all of it is released."""
    import ctypes

    try:
        libc = ctypes.CDLL(None)
        tune, trim = libc.mallopt, libc.malloc_trim
    except (OSError, AttributeError):  # not glibc
        yield
        return
    for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
        tune(option, 256 << 20)
    try:
        yield
    finally:
        tune(_TRIM_THRESHOLD, 16 << 20)
        tune(_MMAP_THRESHOLD, 4 << 20)
        trim(0)


# -- worker ------------------------------------------------------------------------------------------------------------
#
# A process that reads trace files into the cache: paths on its standard input, outcomes on its standard output.
#
# Not multiprocessing: its children begin by running the caller's script again, and a notebook or a script without a
# main guard has no use for that. ``python -m diag.traces.reading FOLDER``; a JSON line each way for each file.

_DECODE = json_decoder(list[ReadResult]).decode


class Workers(Struct):
    """Up to ``count`` processes that write to one cache folder. A process that dies loses the file it was reading."""

    count: int
    folder: str
    _idle: SimpleQueue[subprocess.Popen[bytes]] = field(default_factory=SimpleQueue)
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def read(self, paths: list[str]) -> dict[Future[list[ReadResult]], str]:
        """A future for each path, in order of their start; `as_completed` waits for them."""
        pool = ThreadPoolExecutor(self.count)
        futures = {pool.submit(self._read, path): path for path in paths}
        pool.shutdown(wait=False)
        return futures

    def close(self) -> None:
        while not self._idle.empty():
            process = self._idle.get()
            process.communicate()  # closes its input, at which it exits

    def kill(self) -> None:
        for process in self._started:
            process.kill()

    def _read(self, path: str) -> list[ReadResult]:
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
            return [
                ReadResult(path, reason=f"the reader process was killed (exit code {code}), possibly out of memory")
            ]
        self._idle.put(process)
        return _DECODE(answer)

    def _start(self) -> subprocess.Popen[bytes]:
        command = processes.python("-m", "diag.traces.reading", self.folder)
        process = processes.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._started.append(process)
        return process


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches every process: only the first one reports it
    for line in sys.stdin.buffer:
        outcomes = read_file(msgspec.json.decode(line, type=str), sys.argv[1], keep_small=True)
        # A file that did not fit the cache is read again by the caller: contents are not sent.
        answers = [ReadResult(item.path, item.key, None, item.reason) for item in outcomes]
        sys.stdout.buffer.write(msgspec.json.encode(answers) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
