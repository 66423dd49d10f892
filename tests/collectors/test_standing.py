"""Where a training's thread is while it stalls: in threads of this process that really wait."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from diag.collectors.standing import Place, Standing, call_of

pytestmark = pytest.mark.skipif(not Path("/proc/self/syscall").exists(), reason="the system does not say calls")


@contextmanager
def waiting(call: Callable[[], object], end: Callable[[], object]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    assert thread.native_id is not None
    syscall = Path(f"/proc/self/task/{thread.native_id}/syscall")
    while syscall.read_text().startswith("running"):
        time.sleep(0.01)
    try:
        yield thread
    finally:
        end()
        thread.join(5)


def seen(thread: threading.Thread) -> Place:
    """Of two looks, as of two heartbeats."""
    standing = Standing()
    assert thread.ident is not None
    assert thread.native_id is not None
    for _ in range(100):
        place = standing.look(thread.ident, thread.native_id)
        if place.since_ns:
            break
        time.sleep(0.02)
    return place


def test_a_file_lock_that_another_holds(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = path.open("w")
    fcntl.flock(holder, fcntl.LOCK_EX)

    def take_the_lock() -> None:
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)

    with waiting(take_the_lock, holder.close) as thread:
        place = seen(thread)
    assert (place.call, place.missing) == (f"flock {path}", True)
    assert place.line.startswith("test_standing.py:")
    assert place.line.endswith(" in take_the_lock")
    assert 0 < place.since_ns <= time.monotonic_ns()


def test_a_pipe_with_a_name_whose_other_end_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    both = os.open(path, os.O_RDWR)
    with waiting(lambda: os.read(both, 1), lambda: os.write(both, b"x")) as thread:
        place = seen(thread)
    os.close(both)
    assert (place.call, place.missing) == (f"read {path}", True)


def test_a_pipe_of_a_child_may_take_its_time() -> None:
    ours, theirs = os.pipe()
    with waiting(lambda: os.read(ours, 1), lambda: os.write(theirs, b"x")) as thread:
        place = seen(thread)
    assert place.call.startswith("read pipe:")
    assert not place.missing


@pytest.mark.parametrize(("host", "of_store"), [("127.0.0.1", True), ("127.0.0.1", False), ("::1", True)])
def test_only_the_jobs_store_counts_as_missing(host: str, of_store: bool) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if family == socket.AF_INET6 and not _has(host):
        pytest.skip("this machine has no IPv6")
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        ours = socket.create_connection((host, port))
        theirs, _ = server.accept()
        with waiting(lambda: ours.recv(1), theirs.close) as thread:
            assert thread.native_id is not None
            call, missing = call_of(thread.native_id, store_port=str(port) if of_store else "1")
        ours.close()
    assert (call, missing) == (f"receive from {'the store at ' if of_store else ''}{host}:{port}", of_store)


def test_a_pair_of_sockets_has_no_address() -> None:
    ours, theirs = socket.socketpair()
    with waiting(lambda: ours.recv(1), theirs.close) as thread:
        assert thread.native_id is not None
        assert call_of(thread.native_id) == ("receive", False)
    ours.close()


def _has(host: str) -> bool:
    with contextlib.suppress(OSError), socket.create_server((host, 0), family=socket.AF_INET6):
        return True
    return False


def test_a_thread_that_runs_is_idle_since_never() -> None:
    over = threading.Event()

    def spin() -> None:
        while not over.is_set():
            pass

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    assert thread.ident is not None
    assert thread.native_id is not None
    standing = Standing()
    places = []
    for _ in range(3):
        places.append(standing.look(thread.ident, thread.native_id))
        time.sleep(0.1)
    over.set()
    thread.join()
    assert [place.since_ns for place in places] == [0, 0, 0]
    assert places[-1].line.endswith(" in spin")
