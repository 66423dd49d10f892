"""Files at an address, through fsspec: object stores, servers, and folders of this machine.

Credentials are those that the store's client finds in the environment. No message quotes an address with a password.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from diag.errors import DiagError, install_command
from diag.store.policy import STORES

# What fsspec needs besides itself, by protocol.
_PACKAGES = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "sftp": "paramiko", "ssh": "paramiko", "az": "adlfs",
    "abfs": "adlfs", "abfss": "adlfs", "http": "aiohttp", "https": "aiohttp", "hdfs": "pyarrow", "smb": "smbprotocol",
}  # fmt: skip
# Of fsspec's facts about a file, those that change with its content.
_VERSION_KEYS = (
    "ETag", "etag", "md5Hash", "content_md5", "generation", "LastModified", "last_modified", "mtime", "created",
)  # fmt: skip


def is_remote(path: str) -> bool:
    """Whether this is an address, and not a path."""
    return "://" in path


class Version(Struct, frozen=True):
    """A file in a store: ``stamp`` changes with its content, as far as the store says."""

    size: int
    stamp: str


class Store:
    """A folder at an address, or of this machine. Every method raises DiagError where the store refuses or does not
    answer; the next call tries again."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._connected: tuple[Any, str] | None = None

    def files(self, below: str = "") -> dict[str, Version]:
        """Every file, by its name relative to the folder; names that lead out of it are left out."""
        with self._errors():
            system, root = self._system()
            system.invalidate_cache()
            start = f"{root}/{below}" if below else root
            try:
                found = system.find(start, detail=True)
            except FileNotFoundError:
                return {}
        prefix = f"{root}/"
        return {
            name: _version(about)
            for path, about in found.items()
            if path.startswith(prefix) and is_plain_name(name := path[len(prefix) :])
        }

    def read(self, name: str, start: int = 0) -> bytes:
        """The bytes of a file from ``start`` on. DiagError also where there is no such file, or it is too large."""
        data = self.read_if_there(name, start)
        if data is None:
            raise DiagError("no such file or folder", path=f"{self.address}/{name}")
        return data

    def read_if_there(self, name: str, start: int = 0) -> bytes | None:
        """The bytes of a file from ``start`` on; None if there is none."""
        with self._errors():
            system, root = self._system()
            try:
                data: bytes = system.cat_file(f"{root}/{name}", start=start or None)
            except FileNotFoundError:
                return None
            return data

    def write(self, name: str, data: bytes) -> None:
        """Writes a file whole. A reader of a server may see a part of it meanwhile; of an object store it does not."""
        with self._errors():
            system, root = self._system()
            path = f"{root}/{name}"
            try:
                system.pipe_file(path, data)
            except FileNotFoundError:  # a store with folders, and this one is not there yet
                top = path.partition("/")[0]
                if top and not system.exists(top):  # a bucket: a name that is mistyped must not make one
                    message = f"the store cannot be used: there is no {top!r} there"
                    raise DiagError(message, path=self.address, hint="make it, or give another address") from None
                system.makedirs(path.rpartition("/")[0], exist_ok=True)
                system.pipe_file(path, data)

    def remove(self, names: list[str]) -> None:
        """Removes files. One that is gone already is no error."""
        with self._errors():
            system, root = self._system()
            for name in names:
                try:
                    system.rm_file(f"{root}/{name}")
                except FileNotFoundError:
                    continue

    def _system(self) -> tuple[Any, str]:
        if self._connected is None:
            from fsspec.core import url_to_fs  # takes a while to import

            address = self.address if is_remote(self.address) else f"file://{os.path.abspath(self.address)}"  # noqa: PTH100
            # An instance of our own: one whose connection broke would be given to us again.
            system, root = url_to_fs(address, skip_instance_cache=not address.startswith("memory:"))
            self._connected = system, root.rstrip("/")
        return self._connected

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with store_errors(self.address):
                yield
        except DiagError:
            self._connected = None  # a connection may have broken
            raise


def require_client(address: str) -> None:
    """DiagError where the package of the address's protocol is not installed, or there is no such protocol. Connects
    to nothing."""
    from fsspec import get_filesystem_class

    with store_errors(address):
        get_filesystem_class(address.partition("://")[0])


def is_plain_name(name: str) -> bool:
    """Whether a relative name leads nowhere else, on this file system either."""
    parts = name.split("/")
    return 0 < len(name) <= STORES.longest_name and not any(
        part in ("", ".", "..") or "\0" in part or "\\" in part for part in parts
    )


def _version(about: dict[str, Any]) -> Version:
    stamp = "|".join(str(about[key]) for key in _VERSION_KEYS if key in about)
    return Version(int(about.get("size") or 0), stamp)


@contextmanager
def store_errors(address: str) -> Iterator[None]:
    """Converts the errors of a store's client to ours: a missing package, a wrong address, no permission, no answer."""
    try:
        yield
    except DiagError:
        raise
    except ImportError as error:
        protocol = address.partition("://")[0]
        package = _PACKAGES.get(protocol)
        hint = install_command(package) if package else "install the fsspec package for this store"
        raise DiagError(str(error), hint=hint, path=address) from error
    except ValueError as error:
        raise DiagError(str(error), hint="check the address", path=address) from error
    except FileNotFoundError as error:
        raise DiagError("no such file or folder", path=address) from error
    except Exception as error:  # the clients of stores have errors of their own
        reason = str(error) or type(error).__name__
        hint = "the store's client takes address and credentials from the environment"
        raise DiagError(f"the store cannot be used: {reason}", path=address, hint=hint) from error
