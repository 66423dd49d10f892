"""``diag plan CONFIG...``: what is wrong in configurations of training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from diag.errors import DiagError, ExitCode
from diag.words.terminal import put

_SUFFIXES = (".yaml", ".yml", ".toml", ".json")


def is_configuration(text: str) -> bool:
    """Whether the argument of ``diag plan`` is a configuration of training, present or not, and not a model: no preset,
    number of parameters, folder, or config.json of one."""
    from diag.lint.document import read
    from diag.lint.recognise import is_model, recognise
    from diag.plan.shape import PRESETS, parameters_of

    path = Path(text)
    if text.lower() in PRESETS or parameters_of(text) is not None or not text or "\0" in text:
        return False
    named = path.suffix.lower() in _SUFFIXES and path.name != "config.json"
    try:
        if not path.is_file():
            return named and not path.is_dir()
        document = read(path)
        if is_model(document.values):
            return False
        recognise(document)
    except DiagError:  # what is broken in it is for its own reader to say
        return named
    except OSError:
        return False
    return True


def lint_command(paths: Sequence[Path], gpus: int | None, per_host: int, as_json: bool) -> ExitCode:
    """Prints the linter's report; GATE_EXCEEDED where there are errors."""

    from diag.lint.lint import lint
    from diag.lint.model import Severity
    from diag.show.lint import print_lint, to_json

    files = lint(paths, gpus, per_host)
    if as_json:
        put(to_json(files) + "\n")
    else:
        print_lint(files)
    errors = any(notice.severity is Severity.ERROR for linted in files for notice in linted.notices)
    return ExitCode.GATE_EXCEEDED if errors else ExitCode.OK
