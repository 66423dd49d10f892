"""Runs when a Python process starts under ``diag run``: prepares the recording, then runs the user's sitecustomize.

An error here costs the recording, never the process.
"""

import importlib
import os
import sys
from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  # pathlib takes 10 ms to import


def _prepare() -> None:
    if not (os.environ.get("DIAG_ATTACH") and os.environ.get("DIAG_RUN_DIR")):
        return
    from importlib.util import module_from_spec, spec_from_file_location

    name, folder = "_diag_collectors", os.path.dirname(os.path.dirname(_HERE))  # noqa: PTH120
    path = os.path.join(folder, "__init__.py")  # noqa: PTH118
    spec = spec_from_file_location(name, path, submodule_search_locations=[folder])
    if spec is None or spec.loader is None:
        raise ImportError(f"no collectors in {folder}")
    sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    importlib.import_module(f"{name}.attach.boot").boot()


def _step_aside() -> ModuleType | None:
    """Makes the sitecustomize that this one shadows importable; returns this module."""
    sys.path[:] = [entry for entry in sys.path if not _is_here(entry)]
    return sys.modules.pop("sitecustomize", None)


def _is_here(entry: str) -> bool:
    try:
        return os.path.abspath(entry or os.curdir) == _HERE  # noqa: PTH100
    except OSError:  # a relative path, and the current folder is gone
        return False


def _complain(error: Exception) -> None:
    try:
        sys.stderr.write(f"diag: nothing is recorded: {error!r}; training goes on without it\n")
    except Exception:  # closed: Python would not start
        return


_this_module = None
try:
    _prepare()
except Exception as error:
    _complain(error)
try:
    _this_module = _step_aside()
except Exception as error:
    _complain(error)
# The user's own, with its own exceptions.
try:
    importlib.import_module("sitecustomize")
except ModuleNotFoundError as error:
    if error.name != "sitecustomize":
        raise
finally:
    if _this_module is not None:  # the import under way looks for a module of this name when it ends
        sys.modules.setdefault("sitecustomize", _this_module)
