"""Frames of Python's stacks, ``name (file:line)``: which of them are of the program that the user wrote."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable

_OF_TRACEBACK = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d{1,9}), in (?P<name>\S.{0,200})$')
# Python's own files, PyTorch's and those of diag's collectors, by their paths.
_MACHINERY = re.compile(
    r"/lib/python\d[\d.]*/(?!(?:site|dist)-packages/)|(?:site|dist)-packages/torch/|diag/collectors/|^collectors/attach/"
)
_INSTALLED = re.compile(r"(?:site|dist)-packages/")


def frame_of(line: str) -> str:
    """The frame that a line of a traceback names; "" for another line."""
    match = _OF_TRACEBACK.match(line)
    return f"{match['name'].strip()} ({match['file']}:{match['line']})" if match is not None else ""


def is_machinery(frame: str) -> bool:
    """Whether a frame is in Python itself, in PyTorch or in a collector. py-spy prints paths relative to
    ``sys.path``."""
    file = frame.rpartition(" (")[2].rpartition(":")[0]
    package = file.partition("/")[0].removesuffix(".py")
    known = package == "torch" or package in sys.stdlib_module_names
    return file.startswith("<") or known or _MACHINERY.search(file) is not None


def innermost_of_program(frames: Iterable[str]) -> str:
    """Of frames, innermost first, the first of the program: of no installed package, else of none but Python and
    PyTorch. "" where there is none."""
    own = [frame for frame in frames if not is_machinery(frame)]
    return next((frame for frame in own if _INSTALLED.search(frame) is None), own[0] if own else "")


def place_of_frame(frame: str) -> str:
    """``train.py:34 in clean_batch``, as heartbeats name the line that a rank is at."""
    name, _, place = frame.rpartition(" (")
    return f"{os.path.basename(place.removesuffix(')'))} in {name}"  # noqa: PTH119  (also of other systems)
