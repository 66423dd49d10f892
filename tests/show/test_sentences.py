"""What is printed is found by searching ``diag/words/sentences.py`` for a part of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from diag import diagnoses
from diag.show.page import advice_of, page_of
from diag.words import comparison, sentences
from diag.words.formatting import begun
from diag.words.sentences import OneOrMany, Sentence
from diag.words.wording import doubts
from tests.samples import NAMES, opened_sample

_BOTH = [value for value in vars(sentences).values() if isinstance(value, OneOrMany)]
TEMPLATES = [
    *(value for of in (sentences, comparison) for value in vars(of).values() if isinstance(value, Sentence)),
    *(form for both in _BOTH for form in both),
]
# A title that is put together from such pieces cannot be found by searching for it.
_VERBS = {"is", "are", "be", "was", "were", "wait", "launch", "late", "verb"}


# The others are frames around a sentence, and match almost every text.
TELLING = [template for template in TEMPLATES if len(re.sub(r"\{\w+\}|\W", "", template)) >= 10]


def made_by(text: str, templates: Sequence[Sentence] = TEMPLATES) -> list[Sentence]:
    return [template for template in templates if template.pattern.fullmatch(text)]


@pytest.mark.parametrize("name", NAMES)
def test_every_sentence_of_an_answer_is_of_a_template(name: str) -> None:
    result = opened_sample(name)
    page, advised = page_of(result), advice_of(result)
    lowered = doubts(result.verdict)
    told = [page.verdict.why, *filter(None, [lowered])]
    basis = page.basis.removesuffix(lowered).rstrip()
    # "1 of 1 rank." has no clock to tell of, and too few letters to be found among all templates.
    told += [basis] if len(result.coverage.ranks_used) > 1 else []
    assert made_by(basis, TELLING if len(result.coverage.ranks_used) > 1 else [sentences.RANKS_USED])
    told += [*(finding.title for finding in page.findings)]
    told += [*(change.gain for change in advised.changes), *([advised.basis] if advised.basis else [])]
    headline = page.verdict.headline
    framed = sentences.BOUND.pattern.fullmatch(headline) or sentences.BOUND_BY_SEVERAL.pattern.fullmatch(headline)
    told.append(begun(framed["finding"]) if framed is not None else headline)
    assert [text for text in told if not made_by(text, TELLING)] == []


def test_no_verb_is_a_field() -> None:
    assert [template for template in TEMPLATES if _VERBS & set(template.fields)] == []


def test_both_forms_of_a_sentence_have_the_same_fields() -> None:
    assert [both for both in _BOTH if both.one.fields != both.many.fields] == [sentences.PCIE_IS_BELOW_MAXIMUM]
    of_two = sentences.RANKS_ARE_SLOWER(2, ranks="Ranks 1, 2", others="rank 0", place="forward", load="", cost="3 ms")
    assert of_two == "Ranks 1, 2 are slower than rank 0 in forward: 3 ms"


@pytest.mark.parametrize("both", _BOTH, ids=lambda both: both.one[:30])
def test_each_form_takes_the_fields_that_it_has(both: OneOrMany) -> None:
    for count, form in ((1, both.one), (2, both.many)):
        fields = {name: f"<{name}>" for name in both.one.fields}
        assert both(count, **fields) == form(**fields)


@pytest.mark.parametrize("path", sorted(Path(diagnoses.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_a_title_is_one_string_or_a_template(path: Path) -> None:
    """Not pieces that are joined, and no choice of words inside of it."""
    joined = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.keyword) and node.arg == "title":
            titles: list[ast.expr] = [node.value]
        elif isinstance(node, ast.Assign) and [getattr(target, "id", "") for target in node.targets] == ["title"]:
            titles = [node.value]
        elif isinstance(node, ast.AugAssign) and getattr(node.target, "id", "") == "title":
            joined.append(node.lineno)
            continue
        else:
            continue
        parts = [part for title in titles for part in ast.walk(title)]
        joined += [part.lineno for part in parts if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add)]
        joined += [
            part.lineno for part in parts if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.IfExp)
        ]
    assert joined == []


def test_a_clause_in_a_sentence_is_of_a_template() -> None:
    title = opened_sample("fsdp2-slow-loader-rank1").examination.findings[0].title
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
