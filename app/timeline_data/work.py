"""Names and colours of the kinds of work in the timeline: parts of a step as on every page."""

from __future__ import annotations

from diag.app.theme import Theme
from diag.model.breakdown import KernelKind
from diag.show.parts import PART_OF, Part
from diag.tables.zoom import WORK, Category
from diag.words.formatting import short_name

_WORDS = {
    KernelKind.COPY: "copy or fill in one memory",
    KernelKind.FUSED: "fused compute and communication",
    KernelKind.OTHER: "other compute",
}


def words(category: Category) -> str:
    """The displayed name of a part of a step."""
    return PART_OF[category].value if category in PART_OF else category.value


def work_words(work: str) -> str:
    """The displayed name of a kind of work, one of WORK."""
    if work in set(Category):
        return words(Category(work))
    return kind_words(KernelKind(work)) if work in set(KernelKind) else work.replace("_", "-")


def kind_words(kind: KernelKind) -> str:
    """The displayed name of a kind of kernel or operator. A kernel that copies stays on its device."""
    return _WORDS.get(kind, kind.value)


def drawn_name(name: str, category: Category) -> str:
    """The name of an event where it has little room: of a kernel without the compiler's templates and arguments."""
    of_compiler = category not in (Category.HOST, Category.COPY) and (
        name.startswith(("void ", "_Z")) or "::" in name or name.endswith(")")
    )
    return short_name(name) if of_compiler else name


def work_colours(theme: Theme) -> list[str]:
    """The colour of each kind of work, by its code."""
    return [colour_of(work, theme) for work in WORK]


def colour_of(work: str, theme: Theme) -> str:
    """The colour of a kind of work, one of WORK."""
    if work in theme.work:
        return theme.work[work]
    if work in set(Category):
        category = Category(work)
        return theme.part[PART_OF[category]] if category in PART_OF else theme.host
    return theme.part[Part.COMMUNICATION]
