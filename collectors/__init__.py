"""The code that runs inside the training processes: collectors, fault injection and the bundled trainer.

Imported as ``diag.collectors``. Needs the standard library and torch (2.6 or later); NVML is used where it is present.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .recording import record as record


def __getattr__(name: str) -> Any:
    """Imports ``record`` on first use: launchers and the analyser import this package without torch."""
    if name == "record":
        from .recording import record

        return record
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
