"""What is printed is found by searching ``diag/words/sentences.py`` for a part of it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from diag.api import open_run
from diag.serve.server import SAMPLES
from diag.show.page import advice_of, page_of
from diag.words import sentences
from diag.words.formatting import begun
from diag.words.sentences import Sentence
from diag.words.wording import doubts

TEMPLATES = [value for value in vars(sentences).values() if isinstance(value, Sentence)]


# The others are frames around a sentence, and match almost every text.
TELLING = [template for template in TEMPLATES if len(re.sub(r"\{\w+\}|\W", "", template)) >= 10]


def made_by(text: str, templates: Sequence[Sentence] = TEMPLATES) -> list[Sentence]:
    return [template for template in templates if template.pattern.fullmatch(text)]


@pytest.mark.parametrize("name", sorted(path.name for path in SAMPLES.iterdir() if (path / "manifest.json").exists()))
def test_every_sentence_of_an_answer_is_of_a_template(name: str) -> None:
    result = open_run(SAMPLES / name)
    page, advised = page_of(result), advice_of(result)
    lowered = doubts(result.verdict)
    told = [page.verdict.why, page.basis.removesuffix(lowered).rstrip(), *filter(None, [lowered])]
    told += [*(finding.title for finding in page.findings)]
    told += [*(change.gain for change in advised.changes), *([advised.basis] if advised.basis else [])]
    headline = page.verdict.headline
    framed = sentences.BOUND.pattern.fullmatch(headline) or sentences.BOUND_BY_SEVERAL.pattern.fullmatch(headline)
    told.append(begun(framed["finding"]) if framed is not None else headline)
    assert [text for text in told if not made_by(text, TELLING)] == []


def test_a_clause_in_a_sentence_is_of_a_template() -> None:
    title = open_run(SAMPLES / "fsdp2-slow-loader-rank1").examination.findings[0].title
    match = sentences.LOADER_OF_RANKS_IS_SLOW.pattern.fullmatch(title)
    assert match is not None
    assert sentences.EVERY_OTHER_RANK_WAITS(them="it") == ", and every other rank waits for it"
    assert title.endswith(sentences.EVERY_OTHER_RANK_WAITS(them="it"))


def test_the_options_that_an_action_names_can_be_read() -> None:
    action = sentences.WITH_OPTIONS(action="Wrap coarser.", options="--wrap block or --wrap 2")
    assert sentences.WITH_OPTIONS.read(action)["options"] == "--wrap block or --wrap 2"
    assert sentences.WITH_OPTIONS.read("Wrap coarser.") == {}


def test_a_sentence_needs_all_of_its_fields() -> None:
    assert sentences.MIXED.fields == ("first", "second")
    with pytest.raises(KeyError):
        sentences.MIXED(first="one")


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template[:30])
def test_a_template_recognises_what_it_makes(template: Sentence) -> None:
    text = template(**{name: f"<{name}>" for name in template.fields})
    assert template in made_by(text)
    assert template in made_by(text.removesuffix("."))
    assert begun(text)
