"""Files in which every string is hostile to whoever shows it. No list of fields: the strings are found in the files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

# What terminals obey, what turns the direction of writing around, and what cannot be seen.
ESCAPES = "\x1b]52;c;aGk=\x07\x1b[2J\x9b31m\x07\r\b\x7f\u202e\u2066\u200b\u2028"
# Markup of rich, Markdown, LaTeX, emoji, colours and HTML. A closing tag that nothing opened stops rich with an error.
MARKUP = (
    "[bold][/none][link=https://evil.example/rich]l[/link]![i](https://evil.example/i.png) https://evil.example/u "
    "www.evil.example someone@evil.example $x$ :smile: :red[r] `c` <a href='https://evil.example/a'>a</a><b>b</b>"
)
POISON = f"{ESCAPES}{MARKUP}"
KEYS = "<keys>"

Place = tuple[str, ...]


def is_harmless(text: str) -> bool:
    """Whether a terminal shows it as it is, on its lines."""
    return all(character == "\n" or character.isprintable() or character == "\u00a0" for character in text)


def places(document: Any, at: Place = ()) -> list[Place]:
    """Where the document has strings, once for all elements of a list: keys on the way; ``KEYS`` of an object's own."""
    return list(dict.fromkeys(_places(document, at)))


def _places(document: Any, at: Place) -> Iterator[Place]:
    if isinstance(document, str):
        yield at
    elif isinstance(document, list):
        for item in document:
            yield from _places(item, (*at, "*"))
    elif isinstance(document, dict):
        yield (*at, KEYS)
        for key, item in document.items():
            yield from _places(item, (*at, key))


def poisoned(document: Any, chosen: Collection[Place], poison: str = POISON, at: Place = ()) -> Any:
    """The document with the poison behind every string at these places."""
    if isinstance(document, str):
        return document + poison if at in chosen else document
    if isinstance(document, list):
        return [poisoned(item, chosen, poison, (*at, "*")) for item in document]
    if isinstance(document, dict):
        end = poison if (*at, KEYS) in chosen else ""
        return {key + end: poisoned(item, chosen, poison, (*at, key)) for key, item in document.items()}
    return document


class Poisoner:
    """The JSON files of a folder, to be poisoned a few places of each at a time. ``kept``: their texts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        files = [path for path in sorted(folder.rglob("*")) if path.suffix in (".json", ".jsonl", ".gz")]
        self._documents = {path: _read(path) for path in files}
        self._places: dict[str, list[Place]] = {}  # by name of the file: all ranks have the same
        for path, documents in self._documents.items():
            found = self._places.setdefault(path.name, [])
            found.extend(place for place in places(documents) if place not in found)

    def rounds(self, of: int) -> Iterator[int]:
        """The numbers of the rounds in which every place is poisoned once, ``of`` places of each kind of file at a
        time."""
        self._of = of
        return iter(range(0, max(len(found) for found in self._places.values()), of))

    def write(self, first: int) -> None:
        """The folder as it is in this round."""
        self._write(lambda found: found[first : first + self._of])

    def write_all(self, *but: str) -> None:
        """Everything poisoned that is no key and has none of these keys on the way."""
        self._write(lambda found: [place for place in found if KEYS not in place and not {*but} & {*place}])

    def _write(self, choose: Callable[[list[Place]], list[Place]]) -> None:
        for path, documents in self._documents.items():
            _write(path, poisoned(documents, choose(self._places[path.name])))


def _read(path: Path) -> list[Any]:
    """A document a line, or one."""
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else [json.loads(text)]


def _write(path: Path, documents: list[Any]) -> None:
    text = "\n".join(json.dumps(document) for document in documents)
    path.write_bytes(gzip.compress(text.encode(), 1) if path.suffix == ".gz" else text.encode() + b"\n")
