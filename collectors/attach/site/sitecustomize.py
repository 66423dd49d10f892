"""Runs when a Python process starts under ``diag run``: prepares the recording, then runs the user's sitecustomize.

An error here costs the recording, never the process.
"""

import importlib
import os
import sys

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


def _give_way() -> None:
    """Imports the sitecustomize that this one shadows."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]  # noqa: PTH100
    this_module = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if this_module is not None:  # the import under way looks for a module of this name when it ends
            sys.modules.setdefault("sitecustomize", this_module)


try:
    _prepare()
except Exception as error:
    sys.stderr.write(f"diag: nothing is recorded: {error!r}; training goes on without it\n")
_give_way()
