"""A lock of a node for a run. Standard library only: a watcher holds one in an environment without torch."""

from __future__ import annotations

import contextlib
import os
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

from .files import append_to


class NodeLock:
    """Held by one process of a node, for one run. The system releases it when that process ends, however it ends."""

    def __init__(self, run_dir: Path, node: str) -> None:
        """``node``: equal on all processes of the node only."""
        key = f"{os.path.realpath(run_dir)}\n{node}\n{os.getuid() if hasattr(os, 'getuid') else ''}"
        shared = Path("/dev/shm")  # not on a disk that nodes share
        folder = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
        self.path = folder / f"diag-machine-{sha256(key.encode(errors='surrogateescape')).hexdigest()[:24]}.lock"
        self._file: Any = None

    def hold(self) -> bool:
        """Whether this process holds the lock, which it takes if nobody does."""
        if self._file is not None:
            return True
        try:
            import fcntl  # Unix only

            file = append_to(self.path)
        except (ImportError, OSError):
            return False
        try:
            # Of this process alone: the workers that it forks do not inherit it, and may outlive it.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), self.path.stat()):
                self._file = file
                return True
        except OSError:
            pass
        file.close()
        return False

    def release(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
            file.close()
