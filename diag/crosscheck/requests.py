"""What ``--hta`` asks for: ``critical-path:rank=3,step=7``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diag.api import Result
from diag.errors import DiagError, ExitCode

from .model import CriticalPath, KernelSequences
from .offered import critical_path, kernel_sequences

_HINT = "for example: --hta critical-path:rank=0,step=5   --hta sequences:rank=0,operator=aten::linear,length=3"
_ASKED: dict[str, tuple[Callable[..., CriticalPath | KernelSequences], dict[str, Callable[[str], Any]]]] = {
    "critical-path": (critical_path, {"rank": int, "step": int}),
    "sequences": (kernel_sequences, {"rank": int, "operator": str, "length": int}),
}
Request = Callable[[Result], CriticalPath | KernelSequences]


def parse_request(text: str) -> Request:
    """The analysis that the text asks for, ready to be run on a result. DiagError, exit code 2, for any other text."""
    name, _, settings = text.partition(":")
    if name not in _ASKED:
        raise _usage(f"--hta {text}: no such analysis; there are {' and '.join(_ASKED)}")
    analysis, kinds = _ASKED[name]
    chosen: dict[str, Any] = {}
    for setting in filter(None, settings.split(",")):
        key, _, value = setting.partition("=")
        try:
            chosen[key] = kinds[key](value)
        except KeyError:
            raise _usage(f"--hta {text}: {name} has no setting {key!r}; it has {', '.join(kinds)}") from None
        except ValueError:
            raise _usage(f"--hta {text}: {key} must be a whole number") from None
    return lambda result: analysis(result, **chosen)


def _usage(message: str) -> DiagError:
    return DiagError(message, hint=_HINT, exit_code=ExitCode.USAGE)
