"""What counts as work in a log: steps, bars, answered requests, the last step. A reader searches the end of a file for
bytes that may be such a line, and keeps the last of them; the patterns of text decide.
"""

from __future__ import annotations

import re

# -- What a reader keeps -----------------------------------------------------------------------------------------------

# Lines that a training prints for a step: the last one of a file shows how long it went on.
MAY_BE_PROGRESS = re.compile(
    rb"%\||\d +(?:float|half|double|bfloat16) +\w+ +-?\d|\d \[=[=>.]*\][^\n]*loss|"
    rb"(?i:\b(?:step|iter(?:ation)?|epoch)s?\b[\s:=\[]*\d)[^\n]*\bloss\b|'loss':"
)


# Lines of a step with its loss, and of a server that answers: what goes on at the end of a file.
MAY_BE_WORK = re.compile(
    rb"(?i:loss(?:es)?(?:\b|_))|\"POST [^\"\n]{1,200}\" 200 OK|\bDecode batch\b|\bgeneration throughput: \d|"
    rb"\b(?:samples?|images?|img|tokens|examples)/s"
)

# -- What it is --------------------------------------------------------------------------------------------------------

# A row of nccl-tests
MEASUREMENT = re.compile(
    r"^\s*+\d++\s++\d++\s++(?:u?int\d++|float|half|double|bfloat16|f8\w++)\s++\w++\s++(?:-?\d++\s++)?\d++\.\d"
)
# A training step or a bar, as trainers print it. A reader keeps the last one of each file. Numbers match from their
# first digit only, and the text between is bounded: otherwise a line of 10 kB of digits, or of "step 1", takes a
# second.
STEP = re.compile(
    r"(?i)\b(?:step|iter|iteration|epoch)s?\b[\s:=\[]{0,40}+\d++.{0,1000}?\bloss\b|'loss': ?[\d.]|(?<!\d)\d++/\d++ "
    r"\[[>.=]*+\].{0,1000}?\bloss\b|(?<!\d)\d++%\|.{0,1000}?(?<!\?)(?:it/s|s/it)|" + MEASUREMENT.pattern
)
# The word, and behind it the name of the data, as in "loss train: 3.2" and "loss/val 3.2"
_LOSS = r"loss(?:es)?(?:\b|(?=_))(?:[ _/.](?:train|val(?:id)?|eval|test)(?:ing|ation|uation)?\b)?"
# A step with its loss or its speed, and what servers print of requests that they answer
WORK = re.compile(
    rf"(?i){_LOSS}"
    r"\W{0,4}(?:is |= )?\W{0,3}-?\d|\"POST [^\"]{1,200}\" 200 OK|\bDecode batch\b|"
    r"\bgeneration throughput: (?!0\.0+ )\d|(?:step|iter|epoch|batch)\b.{0,400}(?:[1-9][\d.]*|0\.\d*[1-9]\d*) "
    r"?(?:samples?|images?|img|tokens|examples)/s"
)
NOT_FINITE = re.compile(rf"(?i){_LOSS}" r"\W{0,4}(?:is )?(?:nan|inf(?:inity)?)\b")
# The last step of the last epoch.
LAST_STEP = re.compile(
    r"(?i)\bepoch:? \[?(\d+)/\1\]?,? (?:iter|step|batch):? \[?(\d+)/\2\b|"
    r"\biteration:? {1,20}(\d{1,12})/ {0,20}\3\b[^\n]{0,400}\bloss\b"  # Megatron-LM, training.py
)
FULL_BAR = re.compile(r"^\s{0,8}(\d{1,9})/\1 \[=+\].{0,400}\bloss\b")  # Keras, of an epoch


# -- How far it is -----------------------------------------------------------------------------------------------------

_ELAPSED = re.compile(r"(?<!\d)\d{1,12}/(\d{1,12}) \[(?:(\d{1,5}):)?(\d{1,2}):(\d\d)<")  # tqdm
_COUNT = re.compile(
    r"(?i)\b(?:step|iter(?:ation)?|batch|epoch)s?\b['\"]?[\s:=\[#]{0,40}(\d{1,12}(?:\.\d{1,12})?)|"
    r"(?<![\d.:])(\d{1,12})/ ?\d{1,12}(?: \[|\])"
)


def bar_seconds(text: str) -> tuple[int, int] | None:
    """The steps of a bar of tqdm, and for how many seconds it has run, where a line has one."""
    match = _ELAPSED.search(text)
    return (int(match[1]), int(match[2] or 0) * 3600 + int(match[3]) * 60 + int(match[4])) if match else None


def counts_of(text: str) -> tuple[float, ...]:
    """The numbers of steps, iterations, batches and epochs in a line, in their order; a speed or a time is none."""
    return tuple(float(step or of_bar) for step, of_bar in _COUNT.findall(text))
