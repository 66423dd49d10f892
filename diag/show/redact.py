"""Pseudonyms for names that must not leave the house: hosts, people, paths, runs and jobs.

Two nets. What the run itself says its hosts, paths, ids and arguments are is known and replaced wherever it stands; and
what looks like a path, an address or an account is replaced even where nothing says it. Both are one regular
expression, so that no pseudonym is replaced again.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from diag.api import Result

from .kept import KEPT, REDACTED
from .names import OPTION, aliases, harmless, hosts_of, is_path, launch_values, paths_of, run_names, spellings, users_of

_RUN = "run-1"

# What a path or an address looks like. None begins inside a word: a search from every letter of a long one would take
# the square of its length.
_IN_PATH = r"[^\s\"'`<>|;,:()\[\]{}]"
_URL = rf"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]*://(?:{_IN_PATH}|:(?=\S))*"
_ACCOUNT = r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*"
_ABSOLUTE = rf"(?<![\w/\\.*])(?:~[\w.-]*|\.{{1,2}})?/{_IN_PATH}*[^\s\"'`<>|;,:()\[\]{{}}.]"
_WINDOWS = rf"(?<![A-Za-z])[A-Za-z]:\\{_IN_PATH}*|\\\\\w{_IN_PATH}*"
# Two slashes or an ending: "GB/s" is none.
_RELATIVE = r"(?<![\w/.+-])[\w.+-]+(?:(?:/[\w.+-]+){2,}|/[\w+-]+(?:\.[\w+-]+)*\.[A-Za-z]\w{0,4}(?!\w))"
_IPV4 = r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\d)"
_HEX = r"[0-9a-f]{1,4}"
_IPV6 = rf"(?<![\w:])(?=[0-9a-f:]*\d)(?:{_HEX}(?::{_HEX}){{7}}|{_HEX}(?::{_HEX})*::(?:{_HEX}(?::{_HEX})*)?)(?![\w:])"
# Below a run directory the names are diag's own, and which rank a file is of is worth knowing.
_LAYOUT = (
    r"(?:/(?:manifest\.json|verdict\.json|ranks(?:/\d{5,}(?:/(?:rank|steps|summary|device_steps|collectives|device|stdout|log|nccl"
    r"|heartbeat|error)\.(?:jsonl?|txt|log)|/trace-step\d+\.json(?:\.gz)?)?)?)(?![\w./-]))"
)


class Pseudonyms:
    """``text(...)`` and ``command(...)`` without the names of one run; one name has one pseudonym, and the same in a
    second report of the same run. ``paths``: further ones to hide, as of the report itself."""

    def __init__(self, result: Result, paths: Iterable[Path] = ()) -> None:
        tables = result.tables
        known = list(dict.fromkeys(paths_of(tables, paths)))
        hosts = list(hosts_of(tables))
        self._numbers: dict[str, dict[str, str]] = {}
        self._hosts = aliases(hosts)
        for host in self._hosts.values():  # in order of rank, whatever the page mentions first
            self._pseudonym("host", host)
        # A text that is nothing but a name is that name, also where it is a word as well.
        self._whole = {path: "path" for path in known if path.strip("./\\")} | dict.fromkeys(hosts, "host")
        self._pattern = _pattern(
            known=[path for path in known if is_path(path)],
            hosts=spellings(hosts),
            users=users_of(known),
            runs=run_names(tables),
            values=launch_values(tables),
        )

    @property
    def kept(self) -> str:
        return f"{REDACTED} {KEPT}"

    def text(self, text: str, /) -> str:
        """The text with a pseudonym for every name in it."""
        if text in self._whole:
            return self._named(self._whole[text], text)
        return self._pattern.sub(self._replaced, text)

    def command(self, text: str, /) -> str:
        """A command of which only what everybody may know is left: options, numbers, words of the bundled trainer."""
        try:
            words = shlex.split(text)
        except ValueError:  # no shell would take it either
            words = text.split()
        return shlex.join(self._word(word) for word in words)

    def run_name(self, _: str, /) -> str:
        return _RUN

    def _word(self, word: str) -> str:
        option, equals, value = word.partition("=")
        if equals and OPTION.fullmatch(option):
            return f"{option}={self._word(value)}"
        if harmless(word) or OPTION.fullmatch(word):
            return word
        hidden = self.text(word)
        return hidden if hidden != word else self._pseudonym("value", word)

    def _replaced(self, match: re.Match[str]) -> str:
        kind = match.lastgroup or ""
        if kind == "own":  # the last group that took part: it stands behind a known one
            return self._named("path", match["known"]) + match["own"]
        return self._named({"known": "path", "ipv4": "host", "ipv6": "host"}.get(kind, kind), match[0])

    def _named(self, kind: str, name: str) -> str:
        if kind == "run":
            return _RUN
        if kind == "host":
            label = name.partition(".")[0]
            return self._pseudonym(kind, self._hosts.get(name.lower(), self._hosts.get(label.lower(), name.lower())))
        if kind == "path":  # one path, however it was written
            name = str(Path(name.rstrip("/\\")).absolute())
        return self._pseudonym(kind, name)

    def _pseudonym(self, kind: str, name: str) -> str:
        numbers = self._numbers.setdefault(kind, {})
        return numbers.setdefault(name, f"{kind}-{len(numbers) + 1}")


def _pattern(
    known: list[str], hosts: list[str], users: list[str], runs: list[str], values: list[str]
) -> re.Pattern[str]:
    """What is known comes first, the longest name first; then what looks like a name."""
    begin, end = r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])"
    groups = [
        _any(known) and rf"(?<![\w/\\])(?P<known>{_any(known)})(?:(?P<own>{_LAYOUT})|[/\\]{_IN_PATH}*)?(?![\w-]|\.\w)",
        rf"(?P<address>{_URL})",
        rf"(?P<account>{_ACCOUNT})",
        rf"(?P<path>{_ABSOLUTE}|{_WINDOWS}|{_RELATIVE})",
        rf"(?P<ipv4>{_IPV4})",
        rf"(?P<ipv6>{_IPV6})",
        hosts and rf"{begin}(?P<host>{'|'.join(map(_host, _longest_first(hosts)))})(?:\.[A-Za-z0-9-]+)*{end}",
        _any(users) and rf"{begin}(?P<user>{_any(users)}){end}",
        _any(runs) and rf"{begin}(?P<run>{_any(runs)}){end}",
        _any(values) and rf"{begin}(?P<value>{_any(values)}){end}",
    ]
    return re.compile("|".join(group for group in groups if group))


def _host(name: str) -> str:
    """In any case; a name of letters alone only as it is, so that a host "gpu" is no GPU."""
    return re.escape(name) if name.isalpha() else f"(?i:{re.escape(name)})"


def _any(names: Iterable[str]) -> str:
    """One of the names; "" where there are none."""
    return "|".join(map(re.escape, _longest_first(names)))


def _longest_first(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (-len(name), name))
