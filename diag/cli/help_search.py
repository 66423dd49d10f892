"""Which pages of the documentation are about some words: what ``diag help`` offers for a word that is no topic."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from diag.words.policy import SEARCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Passage(NamedTuple):
    page: str
    heading: str


class _Section(NamedTuple):
    place: Passage
    above: frozenset[str]  # words of its heading and of the page's title
    below: frozenset[str]  # words of its text


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, without the s of a plural."""
    found = re.findall(r"[a-z0-9]+(?:\.[0-9]+)*", text.lower())
    return [word.removesuffix("s") if len(word) > 3 and not word.endswith("ss") else word for word in found]


def passages_about(asked: str, pages: Mapping[str, str]) -> list[Passage]:
    """The passages that are about the words, best first, one of a page. ``pages``: the Markdown by topic.

    A word weighs the logarithm of how rare it is among all sections (inverse document frequency).
    """
    sections = [section for page, text in pages.items() for section in _sections(page, text)]
    spread = Counter(word for section in sections for word in section.above | section.below)
    weights = {word: math.log(len(sections) / spread[word]) for word in {*words_of(asked)} if word in spread}
    scored: dict[str, tuple[float, Passage]] = {}
    for section in sections:
        score = sum(
            weight * (SEARCH.heading_weight if word in section.above else 1.0 if word in section.below else 0.0)
            for word, weight in weights.items()
        )
        if score > scored.get(section.place.page, (0.0,))[0]:
            scored[section.place.page] = (score, section.place)
    ranked = sorted(scored.values(), key=lambda found: -found[0])
    return [place for score, place in ranked if score >= SEARCH.as_good_share * ranked[0][0]][: SEARCH.most_pages]


def _sections(page: str, text: str) -> Iterator[_Section]:
    title = ""
    for part in re.split(r"^(?=#+ )", text, flags=re.M):
        first, _, below = part.partition("\n")
        heading = first.lstrip("# ") if first.startswith("#") else ""
        title = title or heading
        yield _Section(
            Passage(page, heading or title), frozenset(words_of(f"{title} {heading}")), frozenset(words_of(below))
        )
