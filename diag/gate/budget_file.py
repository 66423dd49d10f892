"""A file of budgets: TOML, with the options of ``diag check`` as its keys."""

from __future__ import annotations

import re
import tomllib
from difflib import get_close_matches
from pathlib import Path

from msgspec import Struct

from diag.collectors.reading import read_given
from diag.errors import DiagError, ExitCode

from .budgets import BY_NAME, Budget, parse_limit

_MOST_BYTES = 1 << 20
BASELINE = "baseline"
_EXPECTED = 'one budget a line, for example max-exposed-comm = "20%"'


class BudgetFile(Struct, frozen=True):
    """``baseline``: the run to compare with, None where the file names none."""

    budgets: tuple[Budget, ...]
    baseline: Path | None


def read_budgets(path: Path) -> BudgetFile:
    """What the file asks for. DiagError with the line where it is not to be understood; a key that nobody knows is a
    budget that nobody would check."""
    try:
        text = read_given(path, _MOST_BYTES).decode("utf-8")
        values = tomllib.loads(text)
    except OSError as error:
        raise DiagError(f"cannot be read: {error.strerror or error}", path=path, hint=_EXPECTED) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DiagError(f"not TOML: {error}", path=path, hint=_EXPECTED, exit_code=ExitCode.USAGE) from error
    budgets, baseline = [], None
    for key, value in values.items():
        line = _line(text, key)
        if key == BASELINE:
            if not isinstance(value, str) or not value:
                raise _refusal(path, line, f"{key} = {value!r} is no run", 'give a path, baseline = "runs/before"')
            baseline = path.parent / value
        elif key in BY_NAME:
            budgets.append(parse_limit(BY_NAME[key], value, str(path), line))
        else:
            near = get_close_matches(key.replace("_", "-"), [*BY_NAME, BASELINE], n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(BY_NAME)} and {BASELINE}"
            raise _refusal(path, line, f"{key} is no budget", hint)
    return BudgetFile(tuple(budgets), baseline)


def _refusal(path: Path, line: int, message: str, hint: str) -> DiagError:
    return DiagError(f"line {line}: {message}", path=path, hint=hint, exit_code=ExitCode.USAGE)


def _line(text: str, key: str) -> int:
    """Where a key at the top, or a table of that name, stands, from 1."""
    wanted = re.compile(rf"\s*\[*\s*[\"']?{re.escape(key)}(?![\w-])")
    return next((number for number, line in enumerate(text.splitlines(), start=1) if wanted.match(line)), 1)
