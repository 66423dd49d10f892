"""``python -m diag.collectors.trainer``, one process a rank, under torchrun or alone.

The options come from the environment variable DIAG_TRAINER_OPTIONS, which ``diag run`` sets; without it, the defaults.
Ends with 2 when the options cannot work.
"""

from __future__ import annotations

import os
import sys

from .options import OPTIONS_ENV, OptionError, TrainerOptions


def main() -> int:
    try:
        if sys.argv[1:]:
            given = " ".join(sys.argv[1:])
            raise OptionError(f"{given}: the trainer takes no arguments, its options are in {OPTIONS_ENV}")
        text = os.environ.get(OPTIONS_ENV)
        options = TrainerOptions() if text is None else TrainerOptions.from_json(text)
        from .loop import train

        train(options)
    except OptionError as error:
        if os.environ.get("RANK", "0") == "0":  # every rank has the same to say
            print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
