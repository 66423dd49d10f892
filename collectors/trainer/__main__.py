"""``python -m diag.collectors.trainer``, one process a rank, under torchrun or alone.

The options come from the environment variable DIAG_TRAINER_OPTIONS, which ``diag run`` sets; without it, the defaults.
Exits with 2 when the options cannot work, and with 1 on an exception, which torchrun's error file then holds.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import NoReturn

from ..text import visible
from .keys import OptionError
from .options import OPTIONS_ENV, TrainerOptions

# -- leave -------------------------------------------------------------------------------------------------------------
#
# The end of a training process. Standard library only.


def leave(code: int) -> NoReturn:
    """Exits with this code, without finalizing the interpreter.

    gloo's threads drop their last reference to a collective's tensor some time after the wait for it, and need the GIL
    for that. Once the interpreter finalizes, acquiring the GIL ends a thread by unwinding it through code that must not
    throw: "terminate called without an active exception", SIGABRT. Measured with torch 2.13 on Python 3.11: 5 of 8
    two-rank runs that had trained without an error ended like this.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> int:
    try:
        if sys.argv[1:]:
            arguments = " ".join(sys.argv[1:])
            raise OptionError(f"{arguments}: the trainer takes no arguments, its options are in {OPTIONS_ENV}")
        text = os.environ.get(OPTIONS_ENV)
        options = TrainerOptions() if text is None else TrainerOptions.from_json(text)

        from torch.distributed.elastic.multiprocessing.errors import record

        from .loop import train

        record(train)(options)
    except OptionError as error:
        if os.environ.get("RANK", "0") == "0":  # every rank has the same message
            print(visible(f"error: {error}"), file=sys.stderr)
        return 2
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    leave(main())
