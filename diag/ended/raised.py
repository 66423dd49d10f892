"""Python exceptions as tracebacks print them: type and first line of the message, with the chain behind them, and
whether they only report the death of a peer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from diag.ended.frames import frame_of, innermost_of_program, place_of_frame
from diag.ended.policy import ENDED

# Messages of torch, gloo, NCCL and the launchers in a rank whose peers are gone or late, or that has to stop.
_OF_THE_GROUP = (
    "DistBackendError", "DistNetworkError", "DistStoreError", "ChildFailedError", "CalledProcessError",
    "ProcessExitedException", "ProcessRaisedException", "ncclUnhandled", "ncclSystemError", "ncclInternalError",
    "ncclRemoteError", "SignalException", "RendezvousTimeoutError", "RendezvousConnectionError",
    "RendezvousClosedError", "CCL error", "CCL Error", "CNCL error", "unhandled system error",
    "RPC ran for more than set timeout",
    "NCCL communicator was aborted", "Watchdog caught", "collective operation timeout", "timed out in blocking wait",
    "Connection closed by peer", "Connection was likely closed", "Application timeout", "Socket Timeout",
    "Timed out waiting", "Timed out initializing process group", "wait timeout", "recvValue failed", "sendBytes failed",
    "remote process exited", "store->get", "monitoredBarrier", "Detected mismatch between collectives",
    "failed to synchronize", "Gloo connectFullMesh failed", "gloo/transport", "Horovod has been shut down",
    "HorovodInternalError", "Horovod detected that one or more processes", "Collective ops is aborted by",
    "DEADLINE_EXCEEDED", "heartbeat timeout", "stopped sending heartbeats", "ActorDiedError", "The actor died",
    "RPC call to ", "call hccl api failed", "Poll timeout", "SUSPECT REMOTE ERROR", "HCCL OP RETRY FAILED",
    "UnexpectedStatusException",  # of SageMaker's client, about the job
    "Failed to meet rendezvous", "failed to connect to all addresses", "See root cause above",
    "`Termination signal` is detected by the operating system",  # Paddle's handler of SIGTERM
    "See stack trace for root cause", "for the root cause", "WorkerProc initialization failed",
)  # fmt: skip
# Of these classes, and about the settings of the process that raises: torch/distributed/rendezvous.py
_OF_SETTINGS = ("use_libuv was requested",)
# These messages also come from other connections of the rank: to a data server, or to its DataLoader's workers.
_OF_ANY_CONNECTION = (
    "ConnectionResetError", "ConnectionAbortedError", "ConnectionRefusedError", "BrokenPipeError",
    "Connection reset by peer", "Connection refused", "Broken pipe", "KeyboardInterrupt", "Socket closed",
    "ECONNREFUSED", "ECONNRESET", "ECONNABORTED", "EPIPE", "ETIMEDOUT", "EHOSTUNREACH", "ENETUNREACH", "EHOSTDOWN",
)  # fmt: skip

_PREFIX = re.compile(r"^\[rank\d{1,7}\]: ?")
TRACEBACK = "Traceback (most recent call last)"
_GROUP = re.compile(r"^  (?:\+ Exception Group (?=Traceback \()|\| )")
_ERROR = re.compile(r"^(?P<name>[A-Za-z_][\w.<>]{0,200})(?:(?P<colon>:) ?(?P<message>.*))?$")
_JOINS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
OF_A_WORKER = re.compile(
    r"^Caught (?P<name>\w+) in "
)  # torch's ExceptionWrapper: a DataLoader's worker, DataParallel's replica
_NOT_FATAL = ("Exception ignored in", "Error in atexit._run_exitfuncs")


def about_others(text: str) -> bool:
    """Whether an exception is about other ranks. For a chain the first exception decides: a rank that loses a peer
    raises more while it handles that, and a rank that fails loses its peers while it cleans up."""
    return about_the_group(text) or any(words in text for words in _OF_ANY_CONNECTION)


def about_the_group(text: str) -> bool:
    """As ``about_others``, but only by messages that no other connection of the rank prints."""
    of_group = any(words in text for words in _OF_THE_GROUP)
    return of_group and not any(words in text for words in _OF_SETTINGS)


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception. ``message``: first line. ``original``: the worker's exception that it passes on. ``line``: its line
    in the text, from 1. ``frames``: where it was raised, ``name (file:line)``, innermost first; of a worker's exception
    where the worker was."""

    name: str
    message: str
    original: str = ""
    line: int = 0
    frames: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = f"{self.name}: {self.message}" if self.name and self.message else self.name or self.message
        return f"{words.rstrip('.')}: {self.original}" if self.original else words


@dataclass(frozen=True, slots=True)
class Chain:
    """Exceptions that led to one another, in order; the last ended the process."""

    errors: tuple[Raised, ...]

    @property
    def about_others(self) -> bool:
        """Judged by the first exception: what a rank raises while it handles a lost peer is a consequence, and a rank
        that fails loses its peers while it cleans up."""
        return about_others(str(self.errors[0]))

    @property
    def words(self) -> str:
        """``KeyError: 'lr', which led to RuntimeError: cannot build the model``, without a full stop."""
        return self._worded("")

    @property
    def words_with_place(self) -> str:
        """``KeyError: 'lr' (train.py:34 in build), which led to RuntimeError: cannot build the model``: with the line
        of the program that raised first, where the traceback names one."""
        return self._worded(f" ({shortened(place_of_frame(self.frame))})" if self.frame else "")

    @property
    def frame(self) -> str:
        """The innermost frame of the program in which the first exception was raised; "" where it is not known."""
        return innermost_of_program(self.errors[0].frames)

    def _worded(self, place: str) -> str:
        first, last = self.errors[0], self.errors[-1]
        words = f"{shortened(str(first)).rstrip('.')}{place}"
        return words if last is first else f"{words}, which led to {shortened(str(last)).rstrip('.')}"


_WORKER = re.compile(
    # torch's, and Paddle's: "DataLoader process (pid 1104) exited is killed by signal: Killed."
    r"DataLoader (?:worker|process) \(pid\(?s?\)? *(?P<pids>[^)\n]{1,200})\) (?:(?:exited )?is killed by signal: "
    r"(?P<signal>[A-Z][\w ]*)|exited)"
)
_ENDS_OF_WORKERS = {
    "Killed": (
        "rank_killed_sigkill",
        "which was killed (SIGKILL), as happens when the host's memory or a limit is used up",
    ),
    "Bus error": ("rank_killed_sigbus", "which died of a bus error, as happens when shared memory (/dev/shm) is full"),
    "Segmentation fault": ("rank_killed_sigsegv", "which crashed (SIGSEGV)"),
}


def lost_worker(text: str) -> tuple[str, str] | None:
    """The class of the end of a DataLoader worker that an exception reports, and it in words; None for any other
    exception. torch prints the text of strsignal; of a worker whose end its rank did not see, that it exited."""
    match = _WORKER.search(text)
    if match is None:
        return None
    fault_class, words = _ENDS_OF_WORKERS.get((match["signal"] or "").strip(), ("", ""))
    pids = match["pids"].strip()
    pid = f" (pid {pids})" if pids[:1].isdigit() else ""  # masked in what people post
    return (fault_class, f"lost a DataLoader worker{pid}, {words}") if fault_class else None


# torch's c10::CUDAError, c10::AcceleratorError and torch.AcceleratorError, cudf::cuda_error, rmm::cuda_error,
# raft::cuda_error, CuPy's CUDARuntimeError; thrust::system_error and CCCL's cub:: and cuda::cuda_error
_OF_A_DEVICE = re.compile(
    r"(?:^|[.:_])(?i:(?:fatal_)?(?:cuda|hip)(?:_?(?:runtime|driver|api))?_?(?:error|exception))$|"
    r"\bAcceleratorError$|^thrust::(?:\w+::){0,6}system_error$"
)


def is_of_a_device(name: str) -> bool:
    """Whether an exception of this type, of Python or C++, is the error of a call of CUDA or HIP."""
    return _OF_A_DEVICE.search(name) is not None


_DIGITS = "0123456789"


def shortened(text: str, most: int | None = None) -> str:
    """At most so many characters. A number is left out rather than cut: the rest of it reads like another one."""
    most = ENDED.exception_chars if most is None else most
    if len(text) <= most:
        return text
    kept = text[: most - 1]
    if text[most - 1] in _DIGITS:
        kept = kept.rstrip(_DIGITS) or kept
    return f"{kept}…"


def chain_of(text: str) -> Chain | None:
    """The chain of the last traceback in a text. Tracebacks of an interpreter that ends anyway do not count."""
    chain = None
    if TRACEBACK not in text:  # true of most logs, of which there may be thousands
        return None
    for errors in _chains(_lines(text)):
        chain = Chain(errors)
    return chain


def chain_of_message(message: str) -> Chain | None:
    """The chain of a message without a traceback, ``Type: message``, as torchrun's error file has it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if not lines:
        return None
    match = _ERROR.match(lines[0])
    if match is None or not (match["colon"] or len(lines) == 1):
        return Chain((Raised("", lines[0]),))
    return Chain((Raised(match["name"], match["message"] or (lines[1] if len(lines) > 1 else "")),))


def _lines(text: str) -> list[str]:
    return [_GROUP.sub("", _PREFIX.sub("", line)) for line in text.splitlines()]


def _chains(lines: list[str]) -> Iterator[tuple[Raised, ...]]:
    errors: list[Raised] = []
    before = ""  # the last line that is not blank
    at = 0
    while at < len(lines):
        line = lines[at]
        if not line.startswith((TRACEBACK, f"Original {TRACEBACK}")):
            before = line if line.strip() else before
            at += 1
            continue
        joined, nested = before.strip() in _JOINS, line.startswith("Original")
        ignored = before.startswith(_NOT_FATAL)
        at, error = _error_of(lines, at + 1)
        if error is None:
            break
        before = lines[at - 1]
        if nested and errors and OF_A_WORKER.match(errors[-1].message):
            frames = error.frames or errors[-1].frames
            errors[-1] = replace(errors[-1], original=error.message or error.name, frames=frames)
        elif joined and errors:
            errors.append(error)
        elif not ignored:
            if errors:
                yield tuple(errors)
            errors = [error]
    if errors:
        yield tuple(errors)


def _error_of(lines: list[str], at: int) -> tuple[int, Raised | None]:
    """The line after the exception that ends the frames beginning here, and the exception."""
    frames = []
    while at < len(lines) and (not lines[at].strip() or lines[at][0] in " \t"):
        if frame := frame_of(lines[at]):
            frames.append(frame)
        at += 1
    match = _ERROR.match(lines[at]) if at < len(lines) else None
    if match is None:
        return at + 1, None
    message = (match["message"] or "").strip()
    if message.startswith(TRACEBACK):  # torch before 1.2: the text of a DataLoader's worker is the message
        after, inner = _error_of(lines, at + 1)
        if inner is not None:
            return after, inner
    if match["colon"] and not message and at + 1 < len(lines):
        message = lines[at + 1].strip()
    return at + 1, Raised(match["name"], message, line=at + 1, frames=tuple(reversed(frames)))
