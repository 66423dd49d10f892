"""Files that others wrote are opened in one place, which knows pipes, devices and links (diag.collectors.reading)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).parents[1]
ONE_PLACE = "collectors/reading.py"

READING = {"open", "read_text", "read_bytes", "fdopen"}
WALKING = {"walk", "rglob", "glob", "iterdir", "scandir", "listdir", "rmtree"}
WRITING_MODES = ("w", "a", "x", "r+")

# Who reads or walks by other means, and why that is no danger.
REASONS = {
    # Files of the package itself.
    "app/ahead.py": "the files of Streamlit's package",
    "app/html_report/render.py": "its own template",
    "app/kept.py": "its own sources, for the version of what it keeps",
    "collectors/version.py": "the installed package's own metadata",
    "diag/cli/help.py": "its own guides",
    "app/views/common.py": "its own scripts and styles",
    "diag/show/json_keys.py": "its own list of keys",
    "diag/linting/model.py": "its own list of keys",
    "diag/account/cached_steps.py": "its own sources, for the version of what it keeps",
    "diag/diagnoses/confidence.py": "its own coefficients",
    "diag/hang/confidence.py": "its own coefficients",
    # What the user names may be a pipe.
    "diag/hang/text/streams.py": "a path of the command line, as `<(zcat log.gz)`",
    # Not by a path at all.
    "diag/crosscheck/hta_process.py": "descriptors of its own",
    "diag/processes.py": "opens a browser",
    "diag/traces/text_stream.py": "a stream that is open, and addresses, which fsspec opens",
    # The system's own files.
    "collectors/living.py": "/proc of a process of this host",
    "diag/watch/doctor.py": "/proc and /sys of this host",
    "diag/cli/environment.py": "the standard streams",
    "diag/watch/attached.py": "/proc of a process of this host",
    "app/server.py": "/dev/null",
    "diag/words/terminal.py": "/dev/null",
    "diag/watch/workers.py": "/proc",
    "collectors/machine.py": "/proc and /sys",
    "collectors/scheduling.py": "/proc",
    "collectors/standing.py": "/proc",
    # Folders whose entries are looked at one by one, without following links.
    "diag/traces/pruning.py": "its own entries",
    "diag/traces/shelf.py": "its own sources, for the version of what it keeps",
    "collectors/packing.py": "a lock",
    "collectors/node_lock.py": "names of locks, which it opens to append, following no link",
    "diag/rundir/copies.py": "a local copy of its own",
    "diag/rundir/local.py": "a folder's names",
    "diag/rundir/joining.py": "a run's own folders",
    "diag/errors.py": "only whether a folder can be listed",
    "collectors/layout.py": "a run's and a rank's names",
    "collectors/budget.py": "opens to append",
    "collectors/files.py": "opens to append",
    # What the process itself has just written.
    "diag/cli/demo.py": "the demo's own run, made anew",
    "diag/watch/hang_monitor.py": "what a tool that it started has printed",
    "diag/tune/loop.py": "only whether a folder is empty",
    "diag/show/bundle.py": "only whether a folder is empty",
    "collectors/window.py": "the profiler's file of this process",
    "collectors/trainer/strategies/deepspeed.py": "the draft of a checkpoint",
    "collectors/trainer/checkpoint/folder.py": "the trainer's own checkpoints",
    "collectors/trainer/checkpoint/saver.py": "the draft of a checkpoint",
}


def calls(path: Path) -> Iterator[tuple[str, int]]:
    """Each call that reads a file or lists a folder, and its line."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        by_module = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
        if name in ("read_text", "read_bytes") and not isinstance(function, ast.Attribute):
            continue
        if name == "walk" and not (by_module and function.value.id == "os"):
            continue
        texts = [one.value for one in (*node.args, *(k.value for k in node.keywords)) if isinstance(one, ast.Constant)]
        writes = any(isinstance(text, str) and text.startswith(WRITING_MODES) for text in texts)
        if (name in READING and not writes) or name in WALKING:
            yield name, node.lineno


def sources() -> Iterator[Path]:
    for top in ("diag", "app", "collectors"):
        for path in sorted((TOP / top).rglob("*.py")):
            if not any(part in ("app", "collectors") for part in path.relative_to(TOP).parts[1:]):
                yield path


def test_nobody_else_opens_files_for_reading_or_walks_folders() -> None:
    found = {str(path.relative_to(TOP)): list(calls(path)) for path in sources()}
    assert found.pop(ONE_PLACE), "the test sees no call at all"
    others = {path: where for path, where in found.items() if where}
    assert {path: where for path, where in others.items() if path not in REASONS} == {}
    assert set(REASONS) - set(others) == set(), "these open nothing any more"
