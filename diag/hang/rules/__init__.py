"""Rules that draw clues from lines: pure functions, ``(JobLogs) -> list[Clue]``."""

from diag.hang.rules.absence import clues as absence
from diag.hang.rules.differences import clues as differences
from diag.hang.rules.direct import clues as direct
from diag.hang.rules.exceptions import by_exception
from diag.hang.rules.mismatch import clues as mismatch
from diag.hang.rules.network import completions, connections
from diag.hang.rules.signals import by_signal
from diag.hang.rules.waiting import outside_collectives, silent, slow

OF_LINES = (direct, by_signal, by_exception, connections, completions)  # a program's line names the failure
RULES = (*OF_LINES, differences, mismatch, absence, slow, outside_collectives, silent)
