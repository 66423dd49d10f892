"""``diag.toml``: settings of an analysis for a folder of traces, or for the current directory.

    comm_kernels = ["my_all_gather_.*=all_gather", "ring_exchange=send_recv"]

It is read from each analysed folder (next to a given file) and from the current directory. The first rule that matches
a kernel decides: rules of the command line come first, then those of the analysed folders, then those of the current
directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from diag.collectors.layout import run_of
from diag.collectors.reading import read_regular
from diag.errors import DiagError, ExitCode
from diag.rundir.policy import RUN_READING
from diag.toml import NotTomlError, toml_values
from diag.traces.kineto_names import CommRule, RuleError, parse_rule
from diag.traces.policy import TRACE_LIMITS

COMM_KERNELS: Final = "comm_kernels"


def read_rules(file: Path) -> list[CommRule]:
    """The rules of one file. DiagError (usage) if it cannot be understood."""
    try:
        values = toml_values(read_regular(file, RUN_READING.most_document_bytes, run_of(file)).decode("utf-8"))
    except OSError as error:
        raise _refused(file, f"cannot be read: {error.strerror or error}") from error
    except (NotTomlError, UnicodeDecodeError) as error:
        raise _refused(file, f"is not TOML: {error}") from error
    if unknown := sorted(set(values) - {COMM_KERNELS}):
        raise _refused(file, f"has an unknown key {unknown[0]!r}; the only key is {COMM_KERNELS}")
    texts = values.get(COMM_KERNELS, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise _refused(file, f'{COMM_KERNELS} must be a list of strings: ["REGEX=operation"]')
    if len(texts) > TRACE_LIMITS.most_comm_rules:
        raise _refused(file, f"{COMM_KERNELS} has {len(texts)} entries; the maximum is {TRACE_LIMITS.most_comm_rules}")
    try:
        return [parse_rule(text) for text in texts]
    except RuleError as error:
        raise _refused(file, f"{COMM_KERNELS}: {error}") from error


def _refused(file: Path, reason: str) -> DiagError:
    return DiagError(reason, path=file, hint="correct the file, or remove it", exit_code=ExitCode.USAGE)
