"""Files of /proc that stay open."""

from __future__ import annotations

import os
from pathlib import Path

from diag.collectors.scheduling import ProcFile


def descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def test_a_field_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "statm"
    path.write_text("10 20 30\n")
    before = descriptors()
    file = ProcFile(lambda: str(path))
    assert file.number(1) == 20
    path.write_text("10 21 30\n")
    assert file.number(1) == 21
    assert descriptors() == before + 1
    file.close()
    assert descriptors() == before
    assert file.number(1) is None


def test_what_is_not_told(tmp_path: Path) -> None:
    path = tmp_path / "statm"
    missing = ProcFile(lambda: str(path))
    assert missing.number(0) is None
    path.write_text("word\n")
    file = ProcFile(lambda: str(path))
    assert (file.number(0), file.number(7)) == (None, None)
    file.close()


def test_a_forked_child_opens_its_own(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("1\n")
    opened: list[int] = []

    def where() -> str:
        opened.append(os.getpid())
        return str(path)

    file = ProcFile(where)
    file.number(0)
    child = os.fork()
    if not child:
        os._exit(0 if file.number(0) == 1 and opened[-1] == os.getpid() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert opened == [os.getpid()]
    file.close()
