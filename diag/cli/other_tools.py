"""What ``diag analyze`` shows of HolisticTraceAnalysis (HTA). Loaded by its name, and only if it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diag.api import Result
    from diag.crosscheck.model import CrossCheck


@dataclass(frozen=True)
class Asked:
    """``cross_check``: whether HTA's numbers are set beside ours; ``requests``: analyses of HTA."""

    cross_check: bool
    requests: Sequence[Callable[[Result], Any]]

    @classmethod
    def of(cls, cross_check: bool, analyses: Sequence[str]) -> Asked:
        """DiagError if an analysis is not known, or HTA is not installed."""
        from diag.crosscheck.analyses import hta_version, parse_request

        requests = [parse_request(text) for text in analyses]
        hta_version()  # before minutes of analysis
        return cls(cross_check, requests)

    def to_dict(self, result: Result) -> dict[str, Any]:
        """What is added to the JSON document."""
        from diag.show.crosscheck import to_dict

        return to_dict(self._checked(result), [request(result) for request in self.requests])

    def print(self, result: Result) -> None:
        from diag.show.crosscheck import print_cross_check, print_offered

        checked = self._checked(result)
        if checked is not None:
            print_cross_check(checked)
        for request in self.requests:
            print_offered(request(result))

    def _checked(self, result: Result) -> CrossCheck | None:
        from diag.crosscheck.analyses import cross_check

        return cross_check(result) if self.cross_check else None
