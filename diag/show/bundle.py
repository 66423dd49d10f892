"""A redacted copy of a run directory, or of a folder of traces, that somebody else can analyse again.

Every text of every file is masked and gets the pseudonyms of a redacted report, the same ones in all files. Numbers
stay, so the answer is the same. What cannot be redacted is left out and stated: files of unknown kinds, and what an
analysis made.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import re
import shlex
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from diag.collectors import bounded_pickle
from diag.collectors.bounded_pickle import RefusedError, TruncatedError
from diag.collectors.layout import DERIVED, RunLayout
from diag.collectors.masking import MASK, is_secret, masked, masked_arguments
from diag.collectors.policy import RECORDED_FILES
from diag.collectors.reading import read_regular, read_tail, walk
from diag.errors import DiagError
from diag.model import Gap
from diag.packed import GZIP, PackedError, Unpacked
from diag.show.policy import PAGE
from diag.show.redact import Pseudonyms

# Paths of public packages, which an analysis recognises, stay without the folders above them.
_PACKAGES = (
    "torch", "torchvision", "torchdata", "torchtitan", "deepspeed", "megatron", "accelerate", "transformers", "triton",
    "lightning", "pytorch_lightning", "apex", "numpy",
)  # fmt: skip
_BEFORE = r"[^\s\"'`<>|;,:()\[\]{}]*/"
_LIBRARY = re.compile(
    rf"(?:{_BEFORE}(?:site|dist)-packages/|(?<![\w./-]))(?P<package>(?:{'|'.join(_PACKAGES)})/[\w./+-]*\w)"
    rf"|(?:{_BEFORE})(?P<standard>lib/python3[\d.]*/(?!(?:site|dist)-packages)[\w./+-]*\w)"
)
_LEFT_OUT = frozenset({*DERIVED, RunLayout(Path()).hang.name, "report.html"})  # what an analysis makes again
_NAMES = {"host": "host", "hostname": "host", "host_name": "host", "node": "host", "user": "user", "username": "user"}
_COMMANDS = frozenset({"argv", "command"})
_TOO_DEEP = "nested too deeply"


class Bundle(Struct, frozen=True):
    """What was written: how many files, how many bytes, and what was left out."""

    files: int
    bytes: int
    left_out: tuple[Gap, ...]


class _NotRedactedError(Exception):
    """Why a file is left out."""


def write_bundle(root: Path, folder: Path, names: Pseudonyms) -> Bundle:
    """Writes the redacted copy of the files below ``root`` into ``folder``, which must be empty or new. DiagError where
    it cannot be written."""
    if not root.is_dir():
        raise DiagError("a bundle is made of a run directory or a folder of traces", path=root)
    target = folder.resolve()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DiagError("is there already", path=folder, hint="give a new folder: --bundle FOLDER")
    if target.is_relative_to(root.resolve()):
        raise DiagError("lies in the run itself", path=folder, hint="give a folder elsewhere: --bundle FOLDER")
    clean = _Cleaner(names)
    files = size = 0
    attempts = {layout.root.name for layout in RunLayout(root).restarts()}  # on other hosts, perhaps
    gaps = [Gap(name, "another attempt of the training: make a bundle of its folder") for name in sorted(attempts)]
    for name in sorted(walk(str(root))):
        path = Path(name)
        relative = path.relative_to(root)
        if _LEFT_OUT & set(relative.parts) or relative.parts[0] in attempts:
            continue
        try:
            content = _redacted(path, root, clean, gaps)
            copy = target.joinpath(*map(clean.text, relative.parts))
            _write(copy, content, path)
        except _NotRedactedError as error:
            gaps.append(Gap(str(relative), str(error)))
        except RecursionError:  # deeper than Python reads JSON
            gaps.append(Gap(str(relative), _TOO_DEEP))
        except OSError as error:
            if error.filename is not None and Path(error.filename).is_relative_to(target):
                raise DiagError(f"cannot be written: {error.strerror or error}", path=folder) from error
            gaps.append(Gap(str(relative), f"cannot be read: {error.strerror or error}"))
        else:
            files, size = files + 1, size + len(content)
    return Bundle(files, size, tuple(gaps))


def _write(copy: Path, content: bytes, original: Path) -> None:
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(content)
    # A run counts as live while its files are new.
    stat = original.stat()
    os.utime(copy, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _redacted(path: Path, root: Path, clean: _Cleaner, gaps: list[Gap]) -> bytes:
    """The content without names. ``gaps`` gets what of it is left out."""
    ending = path.name.removesuffix(".gz").rpartition(".")[2]
    if ending in ("txt", "log"):
        content, whole = read_tail(path, PAGE.bundle_log_bytes, root)
        if not whole:
            gaps.append(Gap(str(path.relative_to(root)), f"only its last {PAGE.bundle_log_bytes >> 10:,} KiB"))
            content = content.partition(b"\n")[2]  # a cut may divide a name
        if content.startswith(GZIP):
            raise _NotRedactedError("a packed log")
        return clean.prose(content.decode(errors="backslashreplace")).encode()
    content = read_regular(path, PAGE.bundle_file_bytes, root)
    if content.startswith(b"\x80"):
        return _pickled(content, clean)
    packed = content.startswith(GZIP)
    try:
        text = Unpacked(io.BytesIO(content), PAGE.bundle_file_bytes, 1).readall() if packed else content
    except PackedError as error:
        raise _NotRedactedError(f"damaged or too large: {error}") from error
    if ending not in ("json", "jsonl") and text.lstrip()[:1] not in (b"{", b"["):
        raise _NotRedactedError("not a kind of file that can be redacted")
    redacted = _lines(text or b"", clean) if ending == "jsonl" else _document(text or b"", clean)
    return gzip.compress(redacted, 6, mtime=0) if packed else redacted


def _document(content: bytes, clean: _Cleaner) -> bytes:
    try:
        value = json.loads(content)
    except ValueError as error:
        raise _NotRedactedError("damaged: not JSON") from error
    return json.dumps(clean.value(value), separators=(",", ":")).encode()


def _lines(content: bytes, clean: _Cleaner) -> bytes:
    """Line by line. In place of a damaged line stands an open brace: a reader still sees a line that it cannot use."""
    redacted = []
    for line in content.split(b"\n"):
        try:
            value = json.loads(line) if line.strip() else None
        except ValueError:
            redacted.append(b"{")
            continue
        cleaned = clean.value(value)
        redacted.append(line if cleaned == value else json.dumps(cleaned, separators=(",", ":")).encode())
    return b"\n".join(redacted)


def _pickled(content: bytes, clean: _Cleaner) -> bytes:
    try:
        value = bounded_pickle.load(content)
    except (RefusedError, TruncatedError) as error:
        raise _NotRedactedError(f"refused: {error}") from error
    return pickle.dumps(clean.value(value), protocol=pickle.DEFAULT_PROTOCOL)


class _Cleaner:
    """Masks secrets and replaces names, the same in every file."""

    def __init__(self, names: Pseudonyms) -> None:
        self._names = names
        self._hosts = frozenset(names.hosts)
        self.text: Callable[[str], str] = lru_cache(maxsize=1 << 16)(self._text)

    def _text(self, text: str) -> str:
        return self._without_names(masked(text))

    def prose(self, text: str) -> str:
        """Of a log: keys in PEM span several lines."""
        return "\n".join(self._without_names(line) for line in masked(text).split("\n"))

    def _without_names(self, text: str) -> str:
        parts, at = [], 0
        for match in _LIBRARY.finditer(text):
            parts += [self._names.text(text[at : match.start()]), match["package"] or match["standard"]]
            at = match.end()
        return "".join([*parts, self._names.text(text[at:])])

    def value(self, value: Any, name: str = "", _depth: int = 0) -> Any:
        """The value of a field with this name; raises ``_NotRedactedError`` for what is no plain data, and for what is
        nested too deeply, by a limit that does not depend on the version of Python."""
        if isinstance(value, str):
            if name and is_secret(name, value):
                return MASK
            kind = _NAMES.get(name.lower())
            return self._names.named(kind, value) if kind and value else self.text(value)
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if _depth > RECORDED_FILES.most_redacted_depth:
            raise _NotRedactedError(_TOO_DEEP)
        if isinstance(value, dict):
            return {self._key(key): self.value(item, str(key), _depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            if name in _COMMANDS and all(isinstance(item, str) for item in value):
                return shlex.split(self._names.command(shlex.join(masked_arguments(value))))
            return [self.value(item, name, _depth + 1) for item in value]
        if isinstance(value, (bytes, bytearray)):
            raise _NotRedactedError("holds bytes, which cannot be redacted")
        raise _NotRedactedError("holds more than plain data")

    def _key(self, key: Any) -> Any:
        """Keys are words of a format; some records have hosts, paths or lines of code as keys."""
        if not isinstance(key, str) or (key.lower() not in self._hosts and not re.search(r"[/@\\]", key)):
            return key
        return self.text(key)
