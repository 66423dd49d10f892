"""The answer as the card of the first screen says it: a short headline, and what stands below it."""

from __future__ import annotations

from msgspec import Struct

from diag.show.page import VerdictShown
from diag.words import sentences
from diag.words.wording import sentence

_MIXED = "Mixed: two causes"


class CardShown(Struct, frozen=True):
    """``causes``: of a mixed run, each in a sentence. ``said``: what the headline leaves out. ``why``: the two longest
    parts of the critical path."""

    headline: str
    causes: tuple[str, ...] = ()
    said: str = ""
    why: str = ""


def card_of(verdict: VerdictShown) -> CardShown:
    """The headline has one share, that of the cause, as its milliseconds are; or, where it is known, that of steps
    which no profiler made longer."""
    headline, said = verdict.headline, ""
    causes: tuple[str, ...] = ()
    if mixed := sentences.MIXED.read(headline):
        headline, causes = _MIXED, (f"{sentence(mixed['first'])}.", f"{sentence(mixed['second'])}.")
    elif told := sentences.BOUND_BY_SEVERAL.read(headline):
        told["share"] = told.pop("largest")
        headline = sentences.BOUND(**told)
    if verdict.unprofiled and (told := sentences.BOUND.read(headline)):
        headline = sentences.BOUND_UNPROFILED(bound=told["bound"], unprofiled=verdict.unprofiled)
        said = sentences.WHILE_PROFILED(finding=told["finding"], share=told["share"], step=told["step"])
    return CardShown(headline, causes, said, _longest(verdict.why))


def _longest(why: str) -> str:
    told = sentences.PATH_OF_STEPS.read(why) or sentences.PATH_OF_WINDOW.read(why)
    if not told:
        return ""
    listed, _, last = told["parts"].rpartition(" and ")
    parts = [*filter(None, listed.split(", ")), last]
    return sentences.LONGEST_OF_PATH(parts=", ".join(parts[:2]))
