"""Where what was computed is kept: folders of entries, whose files begin with a digest.

Others may write to the folder's storage, and a run directory may come from anybody. There, digests and the entries'
places depend on a secret in the user's cache folder: whoever has not written a file does not read it. Links are not
followed, and entries have the permissions of the user's umask.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Self

import msgspec
from isal import isal_zlib
from msgspec import Struct

from diag import policy
from diag.collectors.files import create_file, replace_file
from diag.collectors.layout import RunLayout, run_of
from diag.collectors.policy import RECORDED_FILES
from diag.collectors.reading import open_regular, read_regular
from diag.deferred import by_name
from diag.traces.policy import TRACE_READING

ENVIRONMENT = "DIAG_CACHE"  # a folder, or "off"
CONTENTS = "contents.json"
_SECRET, _SECRET_BYTES = "secret", 32
_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_DIGEST_BYTES = 32
PART = re.compile(r"events-(\d+)-\d{5,}\.parquet")
FILES = re.compile(
    rf"{re.escape(CONTENTS)}|{PART.pattern}|(names|arguments|counters)\.parquet|[\w-]+\.bin|\.[\w-]+\.bin\.[0-9a-f]+\.tmp"
)


class Entry(msgspec.Struct):
    """contents.json, as far as it identifies an entry; earlier versions do not name their key."""

    sizes: dict[str, int]
    key: str = ""


_prune: Callable[[Path | None], None] = by_name("diag.traces.pruning:prune")


class Seal(Struct, frozen=True):
    """Puts a digest in front of data. ``secret``: needed to make the digest; empty: the digest shows damage only."""

    secret: bytes

    def closed(self, data: bytes, *names: str) -> bytes:
        """The data behind the digest of it and of its names, which tell where it belongs."""
        return self._digest(data, names) + data

    def opened(self, sealed: bytes, *names: str) -> bytes | None:
        """The data; None if anything of it, or where it lies, is not as it was closed."""
        digest, data = sealed[:_DIGEST_BYTES], sealed[_DIGEST_BYTES:]
        return data if hmac.compare_digest(digest, self._digest(data, names)) else None

    def _digest(self, data: bytes, names: tuple[str, ...]) -> bytes:
        made = hashlib.blake2b(msgspec.json.encode(names), key=self.secret, digest_size=_DIGEST_BYTES)
        made.update(data)
        return made.digest()


class Shelves(Struct, frozen=True, dict=True):
    """A folder of entries. ``folder`` None: nothing is kept."""

    folder: Path | None
    from_user: bool = False  # set by the user: then data of a run directory goes there as well

    @classmethod
    def of_user(cls) -> Self:
        """Those in the folder that the environment names, else in the user's cache folder."""
        setting = os.environ.get(ENVIRONMENT)
        if setting:
            return cls(None if setting == "off" else Path(setting), from_user=True)
        return cls(_home())

    def of_run(self, layout: RunLayout) -> Self:
        """Those in the run's own folder for tables, if it is writable and the user has set no other. Not if it is a
        link: that would write into a folder outside of the run."""
        if self.from_user or not os.access(layout.root, os.W_OK) or layout.tables.is_symlink():
            return self
        return type(self)(layout.tables)

    @cached_property
    def seal(self) -> Seal | None:
        """None if a secret is needed, and the user's cache folder cannot keep one."""
        if self.folder is None or not _lies_in_run(self.folder):
            return Seal(b"")
        secret = _secret()
        return Seal(secret) if secret is not None else None

    @cached_property
    def entries(self) -> Path | None:
        seal = self.seal
        if self.folder is None or seal is None:
            return None
        version = hashlib.blake2b(_version().encode(), key=seal.secret).hexdigest()[:12] if seal.secret else _version()
        return self.folder / version

    def shelf(self, name: str) -> Shelf | None:
        """The entry for what belongs to no trace but has this name; None if nothing can be kept."""
        entries, seal = self.entries, self.seal
        if entries is None or seal is None:
            return None
        key = hashlib.sha256(name.encode()).hexdigest()[:32]
        folder = entries / key
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not all(map(is_own_folder, (entries, folder))):
                return None
            if create_file(folder / CONTENTS, msgspec.json.encode(Entry({}, key))):
                _prune(self.folder)
            os.utime(folder)  # the least recently used entries go first
        except OSError:
            return None
        return Shelf(folder, key, seal)


class Shelf(Struct, frozen=True):
    """The files of an entry that are no tables."""

    folder: Path
    key: str
    seal: Seal

    def load(self, name: str) -> bytes | None:
        """What was saved under this name; None if that is not there, or no longer what it was."""
        try:
            sealed = read_regular(self.folder / f"{name}.bin", RECORDED_FILES.answer_bytes, self.folder)
        except OSError:
            return None
        return self.seal.opened(sealed, self.key, name)

    def save(self, name: str, data: bytes, private: bool = False) -> None:
        """``private``: only its owner may read it."""
        with suppress(OSError):
            self.must_save(name, data, private)

    def must_save(self, name: str, data: bytes, private: bool = False) -> None:
        """As ``save``; OSError if it cannot be written."""
        replace_file(self.folder / f"{name}.bin", self.seal.closed(data, self.key, name), private)


def _home() -> Path | None:
    """The user's cache folder; None without a home. A relative one would depend on the current folder."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "diag"  # noqa: PTH117  (a text)
    except RuntimeError:  # no home
        return None
    return folder if folder.is_absolute() else None


def _secret() -> bytes | None:
    """The user's secret, made when it is first needed; None if it cannot be kept, or others could have made it."""
    home = _home()
    if home is None:
        return None
    path = home / _SECRET
    try:
        if not os.path.lexists(path):
            home.mkdir(parents=True, exist_ok=True)
            create_file(path, secrets.token_bytes(_SECRET_BYTES), private=True)
        with open_regular(path, home, buffering=0) as file:
            status = os.fstat(file.fileno())
            secret = file.read(_SECRET_BYTES)
    except OSError:
        return None
    is_ours = not hasattr(os, "geteuid") or (status.st_uid == os.geteuid() and not status.st_mode & _OF_OTHERS)
    return secret if is_ours and len(secret) == status.st_size == _SECRET_BYTES else None


def _lies_in_run(folder: Path) -> bool:
    run = RunLayout(folder.parent)
    return folder.name == run.tables.name and run.is_run()


def _version() -> str:
    """Hash of this package's sources: entries written by other code, or with other thresholds, are not read."""
    return with_thresholds(_sources(), "traces")


@cache
def _sources() -> str:
    return hash_of_sources(*Path(__file__).parent.rglob("*.py"))


def with_thresholds(version: str, *rooms: str) -> str:
    """The version, or another one of the same length where a user's file overrides thresholds of these rooms."""
    overridden = policy.digest(*rooms)
    return hashlib.sha256((version + overridden).encode()).hexdigest()[: len(version)] if overridden else version


def hash_of_sources(*files: Path) -> str:
    """A name for the output of these sources: other code has other output."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()[:12]


def is_own_folder(folder: Path) -> bool:
    return stat.S_ISDIR(folder.lstat().st_mode)


def checksum_of(path: Path) -> int:
    """CRC-32 of the file: guards against changes, not against forgery; a gigabyte takes a tenth of a second."""
    checksum = 0
    for block in blocks_of(path, run_of(path)):
        checksum = isal_zlib.crc32(block, checksum)
    return checksum


def blocks_of(path: Path, within: Path | None) -> Iterator[bytes]:
    with open_regular(path, within, buffering=0) as file:
        while block := file.read(TRACE_READING.cache_read_bytes):
            yield block
