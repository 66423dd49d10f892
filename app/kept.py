"""The first screen of a run as it was last drawn, kept until something changes that it rests on: it stands on the page
while the run is analysed again. What is kept, and when it still holds, is as for ``diag analyze``
(``diag.rundir.answers``)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from diag.api import Result, RunState, answers_on, hash_of_sources, newest_change
from diag.decoding import msgpack_decoder
from diag.model import DAMAGED
from diag.show.page import Metric, VerdictShown


class FirstScreen(Struct, frozen=True):
    """``facts``: the line below the title. ``pictures``: the ranks beside the verdict, by the name of the theme, as
    data of ``views/picture.js``; None without steps."""

    title: str
    facts: str
    verdict: VerdictShown
    since: str
    metrics: tuple[Metric, ...]
    pictures: dict[str, dict[str, Any] | None]


class Keeping:
    """Keeps one screen of an analysis, and gives the one that was kept before. To be made before the files are read: it
    reads all of them for their check sums, which are of what was there."""

    def __init__(self, answers: Any, changed_ns: int) -> None:
        """``answers``: as ``answers_on`` returns them; None where nothing is kept. ``changed_ns``: of the run then."""
        self.answers = answers
        self._changed_ns = changed_ns

    @classmethod
    def begun(cls, state: RunState) -> Keeping:
        """``state``: of which the analysis will be; if the run has changed since, nothing is kept."""
        answers = answers_on([str(state.path)], lambda: ("first screen", _code()))
        return cls(answers if newest_change(state.path) == state.changed_ns else None, state.changed_ns)

    def holds(self, state: RunState) -> bool:
        """Whether it was begun of the run in this state, which has not changed since."""
        return self._changed_ns == state.changed_ns == newest_change(state.path)

    def last(self) -> FirstScreen | None:
        """The screen that was kept, if it would be the same now."""
        data = self.answers.load() if self.answers is not None else None
        if data is not None:
            with suppress(*DAMAGED):
                return msgpack_decoder(FirstScreen).decode(data)
        return None

    def keep(self, result: Result, screen: Callable[[], FirstScreen]) -> None:
        """Makes and keeps the screen of this result, once."""
        answers, self.answers = self.answers, None
        if answers is not None and answers.path == result.tables.root:
            answers.save(msgspec.msgpack.encode(screen()), result.tables.manifest, result.state)


@cache
def _code() -> str:
    """Stands for the code that draws the screen."""
    return hash_of_sources(*Path(__file__).parent.rglob("*.py"), *Path(__file__).parent.rglob("*.js"))
