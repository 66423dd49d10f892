"""Exit codes of processes that a signal ended, and which fault each signal is."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import cache

BY_SHELLS = 128  # added to a signal's number: by shells, and by programs that handle the signal too
MOST_OF_UNIX = 255  # larger codes are of Windows

# Signals of Linux (asm-generic/signal.h), from 1: logs and runs are read on other systems as well, where SIGBUS and
# SIGUSR1 have other numbers.
Signal = IntEnum(
    "Signal",
    "SIGHUP SIGINT SIGQUIT SIGILL SIGTRAP SIGABRT SIGBUS SIGFPE SIGKILL SIGUSR1 SIGSEGV SIGUSR2 SIGPIPE SIGALRM "
    "SIGTERM SIGSTKFLT SIGCHLD SIGCONT SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGXCPU SIGXFSZ SIGVTALRM SIGPROF "
    "SIGWINCH SIGIO SIGPWR SIGSYS",
)

_FAULTS = {
    Signal.SIGKILL: "rank_killed_sigkill",
    Signal.SIGBUS: "rank_killed_sigbus",
    **dict.fromkeys((Signal.SIGSEGV, Signal.SIGILL, Signal.SIGFPE), "rank_killed_sigsegv"),
}
# Signals that ask a process to end. SIGUSR1 and SIGUSR2 end a program without a handler.
ASKS: Mapping[str, str] = {
    "SIGINT": "interrupted (SIGINT)",
    "SIGTERM": "asked to stop (SIGTERM)",
    "SIGHUP": "ended with its terminal or connection (SIGHUP)",
    "SIGQUIT": "asked to quit (SIGQUIT)",
    "SIGUSR1": "ended by SIGUSR1",
    "SIGUSR2": "ended by SIGUSR2",
    "SIGXCPU": "ended at a limit of CPU time (SIGXCPU)",
}


def signal_number(code: int) -> int:
    """The number of the signal for an exit code that stands for one; for another code, no number of a signal."""
    return -code if code < 0 else code - BY_SHELLS


@cache  # asked for each of thousands of ranks
def signal_name(number: int) -> str:
    """``SIGKILL``; "" for a number of no signal that has a name."""
    return Signal(number).name if number in set(Signal) else ""


def fault_of_signal(number: int) -> str:
    """The id of the fault of a process that this signal ended; "" for an abort, which is the end of an exception, and
    for signals that ask it to end."""
    return _FAULTS.get(Signal(number), "") if number in set(Signal) else ""
