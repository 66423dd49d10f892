"""How long a test waits for what must come. It bounds a test that hangs, and is no claim about speed: on a machine with
one busy core, importing PyTorch alone took a minute."""

import time
from collections.abc import Callable

PATIENCE_S = 500  # faulthandler_timeout, in pyproject.toml, ends the whole run


def until(condition: Callable[[], bool]) -> None:
    """Waits for it."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
