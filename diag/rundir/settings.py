"""``diag.toml``: settings of an analysis that belong to a folder of traces, or to whoever works in a folder.

    comm_kernels = ["my_all_gather_.*=all_gather", "ring_exchange=send_recv"]

It is looked for in each analysed folder (beside a file that is given) and in the current directory. The first rule
that matches a kernel decides: those of the command line come first, then those of the analysed folders, then those of
the current directory.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from diag.collectors.layout import is_folder, run_of
from diag.collectors.reading import read_regular
from diag.errors import DiagError, ExitCode
from diag.traces.comm_rules import MOST_RULES, CommRule, RuleError, parse_rule
from diag.traces.reading import Reading
from diag.traces.sources import is_remote

FILE: Final = "diag.toml"
COMM_KERNELS: Final = "comm_kernels"
_MOST_BYTES: Final = 100_000


def with_settings(reading: Reading, paths: Sequence[str]) -> Reading:
    """The reading with what the settings' files of these paths and of the current directory add. DiagError (usage) for
    a file that cannot be understood."""
    rules = list(reading.comm_kernels)
    for file in _files(paths):
        rules += read_rules(file)
    return replace(reading, comm_kernels=tuple(dict.fromkeys(rules)))


def read_rules(file: Path) -> list[CommRule]:
    """The rules of one file. DiagError (usage) for one that cannot be understood."""
    try:
        values = tomllib.loads(read_regular(file, _MOST_BYTES, run_of(file)).decode("utf-8"))
    except OSError as error:
        raise _refused(file, f"cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refused(file, f"is not TOML: {error}") from error
    if unknown := sorted(set(values) - {COMM_KERNELS}):
        raise _refused(file, f"has an unknown key {unknown[0]!r}; there is {COMM_KERNELS}")
    texts = values.get(COMM_KERNELS, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise _refused(file, f'{COMM_KERNELS} must be a list of texts: ["REGEX=operation"]')
    if len(texts) > MOST_RULES:
        raise _refused(file, f"{COMM_KERNELS} has {len(texts)} entries; {MOST_RULES} is the most")
    try:
        return [parse_rule(text) for text in texts]
    except RuleError as error:
        raise _refused(file, f"{COMM_KERNELS}: {error}") from error


def _files(paths: Sequence[str]) -> list[Path]:
    """The settings' files, each once, the analysed folders' first."""
    folders = [path if is_folder(path) else path.parent for path in map(Path, filter(_is_local, paths))]
    with suppress(OSError):  # it was removed
        folders.append(Path.cwd())
    found: dict[str, Path] = {}
    for folder in folders:
        if os.path.lexists(folder / FILE):
            found.setdefault(os.path.realpath(folder), folder / FILE)
    return list(found.values())


def _is_local(path: str) -> bool:
    return not is_remote(path)


def _refused(file: Path, reason: str) -> DiagError:
    return DiagError(reason, path=file, hint="correct the file, or remove it", exit_code=ExitCode.USAGE)
