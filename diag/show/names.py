"""The names in a run that say whose it is: hosts, people, paths, runs and jobs, as records and traces spell them."""

from __future__ import annotations

import getpass
import ipaddress
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path, PurePosixPath, PureWindowsPath

from diag.collectors.trainer.faults import FAULTS
from diag.collectors.trainer.knobs import STRATEGIES
from diag.collectors.trainer.options import PRESETS
from diag.rundir.run import Tables

OPTION = re.compile(r"-{1,2}[A-Za-z][\w-]*")
_NUMBER = re.compile(r"\d[\d.]*[A-Za-z]{0,2}")
_FAULT = re.compile(rf"(?:{'|'.join(map(re.escape, FAULTS))})(?::[a-z_]+=[a-z0-9.*_-]*(?:,[a-z_]+=[a-z0-9.*_-]*)*)?")
# Words of a command that say nothing about whose it is.
_WORDS = frozenset(
    [
        *("diag", "run", "analyze", "report", "tune", "report.html", "yes", "no", "block", "root", "linear", "last"),
        *("every", "fp32", "bf16", "c10d", "static", *STRATEGIES, *PRESETS),
    ]
)
# A name shorter than this is no name in running text: "a" would be replaced in every sentence.
_SHORTEST = 2
_NOBODY = frozenset({"root", "user"})  # accounts that say nothing, and words of any report
_HOMES = frozenset({"home", "users"})


def harmless(word: str) -> bool:
    """Whether anybody may read this word of a command: a number, a planted fault, what the bundled trainer is told."""
    return word in _WORDS or bool(_NUMBER.fullmatch(word) or _FAULT.fullmatch(word))


def hosts_of(tables: Tables) -> Iterator[str]:
    """In order of rank; those that only the launch names last."""
    for _, rank in sorted(tables.ranks.items()):
        if rank.identity is not None:
            yield rank.identity.host
        yield from (trace.host for trace in rank.traces if trace.host)
    yield from (host for host, _ in _endpoints(tables) if host)


def aliases(hosts: Iterable[str]) -> dict[str, str]:
    """Whole names and their first labels to one of them, in lower case: a host is called both."""
    found: dict[str, str] = {}
    for host in hosts:
        known = found.get(_label(host).lower(), host.lower())
        found.setdefault(host.lower(), known)
        found.setdefault(_label(host).lower(), known)
    return found


def spellings(hosts: Iterable[str]) -> list[str]:
    """As hosts are written in running text: in full or by their first label."""
    names = dict.fromkeys(name for host in hosts for name in (host, _label(host)))
    return [name for name in names if len(name) >= _SHORTEST and not name.isdigit()]


def _label(host: str) -> str:
    return host if _is_address(host) else host.partition(".")[0]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _endpoints(tables: Tables) -> Iterator[tuple[str, str]]:
    """(host, id) of where the nodes of the job met."""
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
    """As they are written anywhere, and as they are in full; with the folders above where a blank is in them, for what
    looks like a path ends at a blank."""
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
    return ("/" in text or "\\" in text) and len(text.strip("/\\.")) >= _SHORTEST


def users_of(paths: Iterable[str]) -> list[str]:
    """Whose home the paths lie in, and who makes the report."""
    found = set()
    for path in paths:
        for parts in (PurePosixPath(path).parts, PureWindowsPath(path).parts):
            found |= {name for home, name in pairwise(parts) if home.lower() in _HOMES}
    with suppress(OSError, KeyError, ImportError):  # a process without an account, as in some containers
        found.add(getpass.getuser())
    return [name for name in found if len(name) >= _SHORTEST and name not in _NOBODY and not name.isdigit()]


def run_names(tables: Tables) -> list[str]:
    """The run's id, and the name of its folder where it is a name and no word of any report."""
    manifest = tables.manifest
    found = [manifest.run_id] if manifest is not None else []
    folder = tables.root.resolve().name
    said = {manifest.strategy, manifest.backend, manifest.device} if manifest is not None else set()
    if _telling(folder) and folder not in said:
        found.append(folder)
    return [name for name in found if len(name) >= _SHORTEST]


def launch_values(tables: Tables) -> list[str]:
    """Of the launch what is no path: ids of jobs, and what was given to options that nobody here knows."""
    manifest = tables.manifest
    if manifest is None:
        return []
    jobs = [job for _, job in _endpoints(tables)]
    given = [value for _, value in _arguments(manifest.argv) if _telling(value)]
    return [value for value in dict.fromkeys((*jobs, *given)) if len(value) > _SHORTEST]


def _telling(word: str) -> bool:
    """Whether it is more than a word of plain letters, a number or what the bundled trainer is told: such words stand
    in reports anyway, and replaced there they would spoil them."""
    return not (word.isalpha() and word.islower()) and not harmless(word)
