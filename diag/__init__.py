"""diag finds out why a distributed PyTorch training run is slow or stuck.

``open_run``, ``compare``, ``triage``, ``plan`` and ``lint`` do what the commands do, as functions (``diag.reports``).
Importing this package costs nothing: torch, polars and streamlit are imported by the parts that need them, because
training processes import ``diag.collectors`` and must not pay for the analyser.
"""

# Nothing is imported here when this runs: with ``python -m diag`` the current folder is still on the path.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from diag.errors import DiagError as DiagError
    from diag.reports import compare as compare
    from diag.reports import lint as lint
    from diag.reports import plan as plan
    from diag.reports import triage as triage
    from diag.show.opened import open_run as open_run

    __version__: str

__all__ = ["DiagError", "__version__", "compare", "lint", "open_run", "plan", "triage"]

_HOMES = {
    "DiagError": "diag.errors",
    "open_run": "diag.show.opened",  # which loads less than the others do
    **dict.fromkeys(("compare", "lint", "plan", "triage"), "diag.reports"),
}


def __getattr__(name: str) -> "Any":
    """What ``__all__`` lists, found when it is first used."""
    if name == "__version__":
        from diag.version import version

        return version()
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
