"""What travels from the machine that records to the one that analyses. Standard library only.

A folder with ``record.json`` and files ``part-N.tar`` of at most 15 MB each, four at most. A part holds one compressed
archive for each run, and is complete after each: a recording that was cut off can be read up to there. Of a run that is
too large, the largest files stay behind; what they were is in record.json. Runs come in the order of the plan, the most
telling ones first.
"""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
from pathlib import Path
from typing import Any

PART_BYTES, MOST_PARTS = 15_000_000, 4
_RUN_BYTES = 12_000_000  # of one run: so that the others have room
_MEMBER = 1024  # at most, of an archive around a member: its header, and filling up to whole blocks
_COMPRESSED = (".gz", ".zst", ".tgz")


class Parts:
    """The parts in ``folder``, which get one run after the other."""

    def __init__(self, folder: Path, part_bytes: int = PART_BYTES, most: int = MOST_PARTS) -> None:
        self.folder = folder
        self._part_bytes, self._most = part_bytes, most

    def add(self, name: str, runs: Path) -> dict[str, Any]:
        """Packs the run ``name`` and its log. Returns its bytes, and the files that stay behind with theirs."""
        log = runs / f"{name}.log"
        files = [path for path in (runs / name).rglob("*") if path.is_file() and not path.is_symlink()]
        packed, behind = _archive(runs, [*([log] if log.is_file() else []), *files], self._room())
        if packed:
            self._append(f"{name}.tgz", packed)
        return {"bytes": len(packed), "left_behind": behind}

    def _room(self) -> int:
        """Bytes for one more run: a part that is not begun has all of its own."""
        parts = self._parts()
        rooms = [self._left(part) for part in parts] + [self._whole()] * (len(parts) < self._most)
        return min(_RUN_BYTES, max(rooms, default=0))

    def _whole(self) -> int:
        """Of a part: archives are filled up to whole records, and end with two empty blocks."""
        return self._part_bytes // tarfile.RECORDSIZE * tarfile.RECORDSIZE - 2 * tarfile.BLOCKSIZE - _MEMBER

    def _left(self, part: Path) -> int:
        with tarfile.open(part) as archive:
            ends = [one.offset_data + -(-one.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE for one in archive]
        return self._whole() - max(ends, default=0)

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob("part-*.tar"))

    def _append(self, member: str, content: bytes) -> None:
        """To the first part that has room, all at once: a copy with the run takes its place."""
        parts = self._parts()
        part = next((one for one in parts if self._left(one) >= len(content)), None)
        part = part or self.folder / f"part-{len(parts) + 1}.tar"
        new = part.with_suffix(".new")
        if part.exists():
            shutil.copyfile(part, new)
        with tarfile.open(new, "a") as archive:
            about = tarfile.TarInfo(member)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
        new.replace(part)


def _archive(root: Path, files: list[Path], room: int) -> tuple[bytes, dict[str, int]]:
    """The files as a compressed archive of at most ``room`` bytes, the smallest first; and those that did not fit."""
    sized = sorted((path.stat().st_size, str(path)) for path in files)
    left = room
    inside: list[str] = []
    behind: dict[str, int] = {}
    for size, path in sized:
        # Text shrinks to a tenth: a large file is compressed to see, a small one is taken as a quarter.
        takes = size if path.endswith(_COMPRESSED) else _compressed_size(path) if size > 100_000 else size // 4 + 512
        if takes <= left:
            inside.append(path)
            left -= takes
        else:
            behind[str(Path(path).relative_to(root))] = size
    while True:
        packed = _packed(root, inside)
        if len(packed) <= max(room, 0) or not inside:
            return (packed if inside and room > 0 else b""), behind
        largest = inside.pop()
        behind[str(Path(largest).relative_to(root))] = Path(largest).stat().st_size


def _packed(root: Path, files: list[str]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=4) as archive:
        for path in files:
            archive.add(path, arcname=str(Path(path).relative_to(root)), recursive=False)
    return content.getvalue()


def _compressed_size(path: str) -> int:
    content = io.BytesIO()
    with Path(path).open("rb") as source, gzip.GzipFile(fileobj=content, mode="wb", compresslevel=4) as target:
        shutil.copyfileobj(source, target, 1 << 20)
    return content.tell()


def unpacked(folder: Path, out: Path) -> Path:
    """The folder of the runs: ``folder`` itself where it holds no parts; else ``out``, with the runs of the parts. A
    part or a run that is broken is passed over, and named on standard output."""
    parts = sorted(folder.glob("part-*.tar"))
    if not parts and out == folder:
        return folder
    out.mkdir(parents=True, exist_ok=True)
    if out != folder:
        for path in folder.glob("*.json"):
            shutil.copyfile(path, out / path.name)
        if not parts:
            shutil.copytree(folder, out, dirs_exist_ok=True)
    for part in parts:
        try:
            with tarfile.open(part) as archive:
                for member in archive:
                    content = archive.extractfile(member)
                    if content is not None:
                        _unpack(content.read(), f"{part.name}, {member.name}", out)
        except (tarfile.TarError, EOFError, OSError) as error:
            print(f"{part.name} ends early: {error}")
    return out


def _unpack(content: bytes, name: str, out: Path) -> None:
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as run:
            run.extractall(out, filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        print(f"{name} is broken: {error}")
