"""Thresholds: which topics exist, and how a user's file overrides their values.

A room keeps its thresholds in a policy module, as topics (``diag.collectors.thresholds``); MODULES names these modules.
Importing this module imports none of them.

A file is applied once in a process, before anything is analysed. Processes that this one starts inherit the values
through the environment, not the file, which may change meanwhile. Caches of results include ``digest`` in their keys.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from diag.collectors import thresholds
from diag.collectors.policy import RECORDED_FILES
from diag.collectors.thresholds import TOPICS, Threshold
from diag.collectors.thresholds import threshold as threshold

ENVIRONMENT = "DIAG_POLICY"  # a file, for the commands that have --policy
INHERITED = "DIAG_POLICY_VALUES"  # set for processes that this one starts
# Each is imported when its room is; all of them for the list of topics.
MODULES = (
    "diag.account.policy",
    "diag.app.policy",
    "diag.collectors.policy",
    "diag.diagnoses.policy",
    "diag.ended.policy",
    "diag.events.policy",
    "diag.export.policy",
    "diag.hang.policy",
    "diag.history.policy",
    "diag.linting.policy",
    "diag.planning.policy",
    "diag.replay.policy",
    "diag.rundir.policy",
    "diag.store.policy",
    "diag.show.policy",
    "diag.tables.policy",
    "diag.traces.policy",
    "diag.tune.policy",
    "diag.watch.policy",
    "diag.words.policy",
)


class Override(NamedTuple):
    """A threshold that a file sets to another value."""

    topic: str
    name: str
    value: float
    default: float
    unit: str

    def __str__(self) -> str:
        return f"{self.topic}.{self.name} = {shown(self.value)} (default {shown(self.default)})"


class Topic(thresholds.Topic):
    """A topic whose values a file may override."""

    def __init__(self) -> None:
        super().__init__()
        vars(self).update(_active.values.get(self.name, {}))


class _Active(NamedTuple):
    """What is overridden in this process. ``file``: as the user named it."""

    file: str = ""
    values: Mapping[str, Mapping[str, float]] = {}


def _inherited() -> _Active:
    text = os.environ.get(INHERITED)
    return _Active(*json.loads(text)) if text else _Active()


_active = _inherited()


def topics() -> Mapping[str, thresholds.Topic]:
    """Every topic by name. Imports the policy modules of all rooms, and nothing else of them."""
    for module in MODULES:
        import_module(module)
    return dict(sorted(TOPICS.items()))


class Row(NamedTuple):
    """A threshold as it is listed."""

    name: str
    value: str
    unit: str
    meaning: str
    origin: str


def rows(topic: thresholds.Topic) -> list[Row]:
    """The thresholds of a topic, with the values that this process uses."""
    return [
        Row(name, shown(vars(topic)[name]), its.unit, its.meaning, its.origin) for name, its in topic.thresholds.items()
    ]


def shown(value: float) -> str:
    """A number as TOML has it; groups of digits are separated."""
    return f"{value:_}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:g}"


def use(file: Path | str) -> None:
    """Overrides thresholds by those of a TOML file: a table for each topic. For this process and those that it starts;
    results that were made before keep their values. DiagError where the file cannot be read, names a topic or a
    threshold that does not exist, or sets one to a value that it cannot have."""
    values = {topic: _checked(topic, own, file) for topic, own in _read(file).items()}
    _apply(_Active(str(file), values))


def file_in_use() -> str:
    """The file as the user named it; empty without one."""
    return _active.file


def overrides() -> tuple[Override, ...]:
    """The thresholds whose values a file replaced by others. Imports the policy modules of the topics that it names."""
    if not _active.values:
        return ()
    every = topics()
    return tuple(
        Override(topic, name, value, every[topic].thresholds[name].value, every[topic].thresholds[name].unit)
        for topic, own in _active.values.items()
        for name, value in own.items()
        if value != every[topic].thresholds[name].value
    )


def notes() -> tuple[str, ...]:
    """A sentence for an answer: which thresholds are overridden, and by which file. () if none is."""
    changed = overrides()
    return (f"Thresholds overridden by {file_in_use()}: {', '.join(map(str, changed))}.",) if changed else ()


def as_dict() -> dict[str, Any]:
    """The key "policy" of a JSON document; nothing if no threshold is overridden."""
    changed = overrides()
    if not changed:
        return {}
    return {"policy": {"file": file_in_use(), "overridden": [override._asdict() for override in changed]}}


def digest(*rooms: str) -> str:
    """A part of a cache's key: empty with the values of this version, another text for any other values in these rooms
    (packages of diag)."""
    if not _active.values:
        return ""
    every, prefixes = topics(), tuple(f"diag.{room}." for room in rooms)
    values = {name: own for name, own in _active.values.items() if type(every[name]).__module__.startswith(prefixes)}
    return json.dumps(values, sort_keys=True) if values else ""


@contextmanager
def changed(**values: Mapping[str, float]) -> Iterator[None]:
    """Other values while the block runs, by topic with _ for -; what is applied meanwhile ends with it, too. For tests:
    threads and caches may see either value."""
    before = _active
    merged = {topic: dict(own) for topic, own in before.values.items()}
    for topic, own in values.items():
        merged.setdefault(topic.replace("_", "-"), {}).update(own)
    _apply(_Active(before.file or "this process", merged) if merged else before)
    try:
        yield
    finally:
        _apply(before)


def _apply(active: _Active) -> None:
    global _active
    _active = active
    for name, topic in TOPICS.items():
        values = {key: its.value for key, its in topic.thresholds.items()} | dict(active.values.get(name, {}))
        vars(topic).update(values)
    if active.values:
        os.environ[INHERITED] = json.dumps(active)
    else:
        os.environ.pop(INHERITED, None)


def _read(file: Path | str) -> Mapping[str, Any]:
    from diag.collectors.reading import read_regular
    from diag.errors import DiagError, ExitCode, readable
    from diag.toml import NotTomlError, toml_values

    with readable(file):
        data = read_regular(Path(file), RECORDED_FILES.document_bytes)
    try:
        return toml_values(data.decode("utf-8"))
    except (NotTomlError, UnicodeDecodeError) as error:
        hint = 'a table for each topic, for example "[findings]" and "mention_share = 0.1" below it'
        raise DiagError(f"is not TOML: {error}", path=file, hint=hint, exit_code=ExitCode.USAGE) from error


def _checked(topic: str, values: object, file: Path | str) -> dict[str, float]:
    from diag.errors import DiagError, ExitCode

    def refused(message: str, hint: str) -> DiagError:
        return DiagError(message, hint=hint, path=file, exit_code=ExitCode.USAGE)

    every = topics()
    if topic not in every:
        raise refused(f"[{topic}] is no topic", _near(topic, every, "`diag help policy` lists them"))
    its, listed = every[topic].thresholds, f"`diag help policy {topic}` lists them"
    if every[topic].fixed:
        raise refused(
            f"[{topic}] is fixed: no verdict rests on it, or a training needs it while it is recorded", listed
        )
    if not isinstance(values, dict):
        raise refused(f"{topic} is not a table", f"write [{topic}], and its thresholds below it")
    for name, value in values.items():
        if name not in its:
            raise refused(f"{topic} has no threshold {name}", _near(name, its, listed))
        if (reason := wrong(value, its[name])) is not None:
            raise refused(f"{topic}.{name} = {str(value)[:40]}: {reason}", listed)
    return {name: type(its[name].value)(value) for name, value in values.items()}


def wrong(value: object, its: Threshold) -> str | None:
    """Why a threshold cannot have this value; None if it can."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "it is a number"
    if isinstance(its.value, int) and not isinstance(value, int):
        return f"it is a whole number ({its.unit})"
    if not math.isfinite(value):
        return "it is finite"
    if its.unit in ("fraction", "confidence") and not 0 <= value <= 1:
        return f"a {its.unit} lies between 0 and 1"
    least = 1 if isinstance(its.value, int) and its.value > 0 else 0
    return f"it is at least {least}" if value < least and its.value >= 0 else None


def _near(word: str, words: Mapping[str, object], otherwise: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(word, words, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}? {otherwise}" if close else otherwise
