"""Pseudonyms for names that must not be passed on: hosts, people, paths, runs and jobs.

Hosts, paths, ids and arguments that the run names are replaced everywhere; so is everything that looks like a path, an
address or an account. Both are one regular expression, so that no pseudonym is replaced again.
"""

from __future__ import annotations

import getpass
import ipaddress
import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path, PurePosixPath, PureWindowsPath

from diag.api import Result
from diag.collectors.strategies import STRATEGIES
from diag.collectors.trainer.faults import FAULTS
from diag.collectors.trainer.options import PRESETS
from diag.rundir.tables import Tables
from diag.show import KEPT, REDACTED
from diag.show.policy import PAGE

# -- names -------------------------------------------------------------------------------------------------------------
#
# The names in a run that identify its owner: hosts, people, paths, runs and jobs, as records and traces spell them.

OPTION = re.compile(r"-{1,2}[A-Za-z][\w-]*")
_NUMBER = re.compile(r"\d[\d.]*[A-Za-z]{0,2}")
_FAULT = re.compile(rf"(?:{'|'.join(map(re.escape, FAULTS))})(?::[a-z_]+=[a-z0-9.*_-]*(?:,[a-z_]+=[a-z0-9.*_-]*)*)?")
# Words of a command that identify nobody.
_WORDS = frozenset(
    [
        *("diag", "run", "analyze", "report", "tune", "report.html", "yes", "no", "block", "root", "linear", "last"),
        *("every", "fp32", "bf16", "c10d", "static", *STRATEGIES, *PRESETS),
    ]
)
_GENERIC_ACCOUNTS = frozenset({"root", "user"})  # accounts that identify nobody, and words of any report
_HOMES = frozenset({"home", "users"})


def harmless(word: str) -> bool:
    """Whether anybody may read this word of a command: a number, a planted fault, an option of the bundled trainer."""
    return word in _WORDS or bool(_NUMBER.fullmatch(word) or _FAULT.fullmatch(word))


def hosts_of(tables: Tables) -> Iterator[str]:
    """The hosts in order of rank; those that only the launch names come last."""
    for _, rank in sorted(tables.ranks.items()):
        if rank.identity is not None:
            yield rank.identity.host
        yield from (trace.host for trace in rank.traces if trace.host)
    yield from (host for host, _ in _endpoints(tables) if host)


def aliases(hosts: Iterable[str]) -> dict[str, str]:
    """Maps full names and their first labels to one of them, in lower case: both are used for a host."""
    canonical: dict[str, str] = {}
    for host in hosts:
        known = canonical.get(_label(host).lower(), host.lower())
        canonical.setdefault(host.lower(), known)
        canonical.setdefault(_label(host).lower(), known)
    return canonical


def spellings(hosts: Iterable[str]) -> list[str]:
    """The hosts as they are written in running text: full names and first labels."""
    names = dict.fromkeys(name for host in hosts for name in (host, _label(host)))
    return [name for name in names if len(name) >= PAGE.redacted_chars and not name.isdigit()]


def _label(host: str) -> str:
    return host if _is_address(host) else host.partition(".")[0]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _endpoints(tables: Tables) -> Iterator[tuple[str, str]]:
    """(host, job id) of each rendezvous endpoint."""
    manifest = tables.manifest
    if manifest is None:
        return
    job, _, endpoint = manifest.rendezvous.rpartition("@")
    yield endpoint.rpartition(":")[0], job
    for option, value in _arguments(manifest.argv):
        if option == "--rdzv-endpoint":
            yield value.rpartition(":")[0] or value, ""


def _arguments(argv: list[str]) -> Iterator[tuple[str, str]]:
    """(option, value), "" for an option where there is none before a value."""
    last = ""
    for word in argv:
        option, equals, value = word.partition("=")
        if equals and OPTION.fullmatch(option):
            yield option, value
        elif not OPTION.fullmatch(word):
            yield last, word
        last = word


def paths_of(tables: Tables, further: Iterable[Path]) -> Iterator[str]:
    """Paths as they are written, and in full; also the folders above that contain a blank, since the pattern of a path
    ends at a blank."""
    for path in (tables.root, *further):
        for form in dict.fromkeys((path, path.absolute(), path.resolve())):
            yield str(form)
            yield from (str(above) for above in form.parents if " " in str(above))
    yield from (gap.path for gap in tables.gaps)
    yield from (trace.path for rank in tables.ranks.values() for trace in rank.traces)
    if tables.manifest is not None:
        yield from (value for _, value in _arguments(tables.manifest.argv) if is_path(value))
        yield from (value for value in tables.manifest.trainer.values() if isinstance(value, str) and is_path(value))


def is_path(text: str) -> bool:
    return ("/" in text or "\\" in text) and len(text.strip("/\\.")) >= PAGE.redacted_chars


def users_of(paths: Iterable[str]) -> list[str]:
    """The users whose home directories contain the paths, and the user who makes the report."""
    users = set()
    for path in paths:
        for parts in (PurePosixPath(path).parts, PureWindowsPath(path).parts):
            users |= {name for home, name in pairwise(parts) if home.lower() in _HOMES}
    with suppress(OSError, KeyError, ImportError):  # a process without an account, as in some containers
        users.add(getpass.getuser())
    return [
        name
        for name in users
        if len(name) >= PAGE.redacted_chars and name not in _GENERIC_ACCOUNTS and not name.isdigit()
    ]


def run_names(tables: Tables) -> list[str]:
    """The run's id, and the name of its folder unless that is a word that occurs in any report."""
    manifest = tables.manifest
    names = [manifest.run_id] if manifest is not None else []
    folder = tables.root.resolve().name
    ordinary = {manifest.strategy, manifest.backend, manifest.device} if manifest is not None else set()
    if _identifying(folder) and folder not in ordinary:
        names.append(folder)
    return [name for name in names if len(name) >= PAGE.redacted_chars]


def launch_values(tables: Tables) -> list[str]:
    """The job ids of the launch, and values of unknown options that are no paths."""
    manifest = tables.manifest
    if manifest is None:
        return []
    jobs = [job for _, job in _endpoints(tables)]
    values = [value for _, value in _arguments(manifest.argv) if _identifying(value)]
    return [value for value in dict.fromkeys((*jobs, *values)) if len(value) > PAGE.redacted_chars]


def _identifying(word: str) -> bool:
    """Whether the word is more than plain letters, a number or an option of the bundled trainer: such words occur in
    reports anyway, and replacing them would spoil the text."""
    return not (word.isalpha() and word.islower()) and not harmless(word)


_RUN = "run-1"

# Patterns of paths and addresses. None begins inside a word: a search from every letter of a long word would take the
# square of its length.
_IN_PATH = r"[^\s\"'`<>|;,:()\[\]{}]"
_URL = rf"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]*://(?:{_IN_PATH}|:(?=\S))*"
_ACCOUNT = r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*"
_ABSOLUTE = rf"(?<![\w/\\.*])(?:~[\w.-]*|\.{{1,2}})?/{_IN_PATH}*[^\s\"'`<>|;,:()\[\]{{}}.]"
_WINDOWS = rf"(?<![A-Za-z])[A-Za-z]:\\{_IN_PATH}*|\\\\\w{_IN_PATH}*"
# Two slashes or an ending: "GB/s" is no path.
_RELATIVE = r"(?<![\w/.+-])[\w.+-]+(?:(?:/[\w.+-]+){2,}|/[\w+-]+(?:\.[\w+-]+)*\.[A-Za-z]\w{0,4}(?!\w))"
_IPV4 = r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\d)"
_HEX = r"[0-9a-f]{1,4}"
_IPV6 = rf"(?<![\w:])(?=[0-9a-f:]*\d)(?:{_HEX}(?::{_HEX}){{7}}|{_HEX}(?::{_HEX})*::(?:{_HEX}(?::{_HEX})*)?)(?![\w:])"
# Names below a run directory are diag's own, and show which rank a file belongs to.
_LAYOUT = (
    r"(?:/(?:manifest\.json|verdict\.json|ranks(?:/\d{5,}(?:/(?:rank|steps|summary|sums\d+|device_steps|durations|collectives|checkpoints|device|host|machine|stdout"
    r"|log|nccl|heartbeat|error)(?:\.\d{6,18})?\.(?:jsonl?|txt|log)|/trace-step\d+\.json(?:\.gz)?)?)?)(?![\w./-]))"
)


class Pseudonyms:
    """``text(...)`` and ``command(...)`` without the names of one run; one name has one pseudonym, and the same in a
    second report of the same run. ``paths``: further paths to hide, such as that of the report
    itself."""

    def __init__(self, result: Result, paths: Iterable[Path] = ()) -> None:
        tables = result.tables
        known = list(dict.fromkeys(paths_of(tables, paths)))
        hosts = list(hosts_of(tables))
        self._numbers: dict[str, dict[str, str]] = {}
        self._hosts = aliases(hosts)
        for host in self._hosts.values():  # in order of rank, whatever the page mentions first
            self._pseudonym("host", host)
        # A text that consists of a name only is replaced as that name, even where it is a word as well.
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

    @property
    def hosts(self) -> Iterable[str]:
        """The spellings of the hosts, in lower case."""
        return self._hosts

    def named(self, kind: str, name: str, /) -> str:
        """The pseudonym of a name of which it is known what it names: "host", "user", "path", "value"."""
        return self._named(kind, name)

    def text(self, text: str, /) -> str:
        """The text with a pseudonym for every name in it."""
        if text in self._whole:
            return self._named(self._whole[text], text)
        return self._pattern.sub(self._replaced, text)

    def command(self, text: str, /) -> str:
        """The command with pseudonyms for all but options, numbers and words of the bundled trainer."""
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
        if kind == "own":  # the last group that matched: it follows a known path
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
    """Known names come first, the longest first; then patterns of names."""
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
    """Matches in any case; a name of letters only matches exactly, so that "GPU" is not taken for a host "gpu"."""
    return re.escape(name) if name.isalpha() else f"(?i:{re.escape(name)})"


def _any(names: Iterable[str]) -> str:
    """One of the names; "" where there are none."""
    return "|".join(map(re.escape, _longest_first(names)))


def _longest_first(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (-len(name), name))
