"""How a training process ends. Standard library only."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End with this exit code, without finalising the interpreter.

    gloo's threads drop their last reference to a collective's tensor some time after it was waited for, and need the
    interpreter's lock for that. Once the interpreter finalises, asking for the lock ends a thread by unwinding it
    through code that must not throw: "terminate called without an active exception", SIGABRT. Measured with torch 2.13
    on Python 3.11: 5 of 8 two-rank runs that had trained without an error ended so.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
