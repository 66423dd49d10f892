"""A lock for what one process of a node does, and another one where it has died. Standard library only: watchers and
packers hold one in an environment without torch."""

from __future__ import annotations

import contextlib
import os
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

from .files import append_to

_PREFIX, _SUFFIX = "diag-node-", ".lock"


class NodeLock:
    """Held by one process of a node. The system releases it when that process ends, however it ends."""

    _held: ClassVar[set[Path]] = set()  # by this process, which loses a lock when it closes any other file of its inode

    def __init__(self, path: Path) -> None:
        """``path``: of a file that processes of other nodes do not see."""
        self.path = path
        self._file: Any = None

    @classmethod
    def of_run(cls, run_dir: Path, node: str) -> NodeLock:
        """For what a node does for a run that nodes may share. ``node``: equal on all processes of the node only.
        Containers that share memory and no file system may have different runs at one path."""
        place = os.path.realpath(run_dir)
        with contextlib.suppress(OSError):
            about = run_dir.stat()
            place += f"\n{about.st_dev} {about.st_ino}"
        key = f"{place}\n{node}\n{os.getuid() if hasattr(os, 'getuid') else ''}"
        shared = Path("/dev/shm")  # not on a disk that nodes share
        folder = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
        return cls(folder / f"{_PREFIX}{sha256(key.encode(errors='surrogateescape')).hexdigest()[:24]}{_SUFFIX}")

    def hold(self) -> bool:
        """Whether this process holds the lock, which it takes if nobody does. OSError where it cannot be made."""
        if self._file is not None and not self._is(self._file):  # its file was removed: another process may hold one
            self._file.close()
            self._file = None
        if self._file is not None:
            return True
        try:
            import fcntl
        except ImportError:  # Unix only
            return False
        file = append_to(self.path)
        try:
            # Of this process alone: the workers that it forks do not inherit it, and may outlive it.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._is(file):
                self._file = file
                self._held.add(self.path)
        except (BlockingIOError, PermissionError):
            pass
        finally:
            if self._file is not file:
                file.close()
        return self._file is file

    def _is(self, file: Any) -> bool:
        """Whether the file at the lock's path is this one."""
        with contextlib.suppress(OSError):
            return os.path.samestat(os.fstat(file.fileno()), self.path.stat())
        return False

    def is_free(self) -> bool:
        """Whether no process holds the lock. OSError as ``hold``."""
        free = self.hold()
        self.release()
        return free

    def release(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                if self._is(file):
                    self.path.unlink()
            file.close()
            self._held.discard(self.path)

    def remove_left_over(self) -> None:
        """Removes the locks next to this one that no process holds: those of processes that were killed. Who opens one
        meanwhile finds at ``hold`` that its file is gone."""
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.path.parent):
                path = self.path.with_name(entry.name)
                if entry.name.startswith(_PREFIX) and entry.name.endswith(_SUFFIX) and path not in self._held:
                    with contextlib.suppress(OSError):  # another user's, or gone
                        NodeLock(path).is_free()
