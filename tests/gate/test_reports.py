"""What a gate prints: golden text, JUnit XML held against the schema, workflow commands whatever is in them."""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from diag.gate.budgets import BY_NAME, parse_limit
from diag.gate.check import Checked, Gate, Interval, Status
from diag.show.gate import command, outcome, print_gate, sentence, to_junit, workflow_commands
from tests.gate.test_check import run


def checked(name: str, written: str, status: Status, *interval: float, reason: str = "") -> Checked:
    return Checked(parse_limit(BY_NAME[name], written), status, Interval(*interval) if interval else None, reason)


GATE = Gate(
    (
        checked("max-exposed-comm", "20%", Status.EXCEEDED, 0.302, 0.31, 0.319),
        checked("max-data-wait", "5%", Status.NOISE, 0.04, 0.048, 0.056),
        checked("max-step", "350ms", Status.KEPT, 98e6, 99.5e6, 101e6),
        checked("min-mfu", "35%", Status.UNKNOWN, reason="the run is on a CPU"),
        checked("max-peak-memory", "70GB", Status.KEPT, 61.2e9, 61.2e9, 61.2e9),
        checked("min-tokens-per-second", "12k", Status.EXCEEDED, 9000, 10000, 11000),
    )
)

TEXT = """\
budget                          limit  measured      95% interval
max-exposed-comm          at most 20%     31.0%    30.2% to 31.9%  exceeded
max-data-wait              at most 5%      4.8%      4.0% to 5.6%  within noise
max-step                at most 350ms   99.5 ms  98.0 ms to 101 ms  kept
min-mfu                  at least 35%                               not known
max-peak-memory          at most 70GB   61.2 GB                     kept
min-tokens-per-second    at least 12k  10,000/s  9,000/s to 11,000/s  exceeded
min-mfu: the run is on a CPU

Failed: max-exposed-comm, min-tokens-per-second. Undecided: min-mfu. Within noise of the limit: max-data-wait.
"""


def test_the_text() -> None:
    out = io.StringIO()
    print_gate(GATE, run(), Console(file=out, width=110))
    shown = [re.sub(r" {2,}", "  ", line.rstrip()) for line in out.getvalue().splitlines()]
    wanted = [re.sub(r" {2,}", "  ", line) for line in TEXT.splitlines()]
    assert shown[: len(wanted)] == wanted
    assert "Not known: the budget could not be checked, which never passes." in shown[-1]


def test_the_outcome_in_a_sentence() -> None:
    kept = GATE.checked[2:3]
    assert outcome(Gate(kept)) == "Every budget is kept."
    close = "No budget is certainly exceeded. Within noise of the limit: max-data-wait."
    assert outcome(Gate(GATE.checked[1:3])) == close
    assert outcome(Gate(GATE.checked[1:3], strict=True)).startswith("Failed: max-data-wait.")


# -- JUnit -------------------------------------------------------------------------------------------------------------

# Of the schema what such a document can hold (Jenkins' xunit-plugin, junit-10.xsd): the attributes that an element must
# have, those that it may have, and the elements in it.
_OUTCOME = ({"type", "message"}, set[str]())
_TEXT = (set[str](), set[str]())
SCHEMA = {
    "testsuites": (set[str](), {"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors"},
        {"group", "time", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url"},
        {"testsuite", "properties", "testcase", "system-out", "system-err"},
    ),
    "testcase": (
        {"name"},
        {"time", "classname", "group"},
        {"skipped", "error", "failure", "system-out", "system-err"},
    ),
    **{name: (set[str](), *_OUTCOME) for name in ("failure", "error", "skipped")},
    **{name: (set[str](), *_TEXT) for name in ("system-out", "system-err")},
}
_MIXED = {"failure", "error", "skipped", "system-out", "system-err"}  # others hold no text of their own


def assert_valid(element: ElementTree.Element) -> None:
    required, allowed, inside = SCHEMA[element.tag]
    assert required <= set(element.attrib) <= required | allowed
    assert {child.tag for child in element} <= inside
    if element.tag not in _MIXED:
        assert not "".join([element.text or "", *(child.tail or "" for child in element)]).strip()
    for child in element:
        assert_valid(child)


def test_the_junit_file_counts_what_failed_and_what_could_not_be_decided() -> None:
    suites = ElementTree.fromstring(to_junit(GATE, "runs/a", "Communication-bound."))
    assert_valid(suites)
    (suite,) = suites
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("6", "2", "1")
    kinds = {case.get("name"): [child.tag for child in case] for case in suite}
    assert kinds["max-exposed-comm"] == ["failure", "system-out"]
    assert kinds["min-mfu"] == ["error", "system-out"]
    assert kinds["max-data-wait"] == ["system-out"]
    assert suite[0][0].text == "Communication-bound."


@given(st.text(), st.text())
def test_the_junit_file_is_xml_whatever_a_path_or_a_headline_holds(path: str, headline: str) -> None:
    suites = ElementTree.fromstring(to_junit(GATE, path, headline))
    assert_valid(suites)
    kept = re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", path)
    assert suites[0].get("name") == kept.replace("\r\n", "\n") or "\r" in path


def test_annotations_by_what_happened() -> None:
    lines = workflow_commands(GATE)
    assert [line[2 : line.index(" ")] for line in lines] == ["error", "warning", "notice", "error", "notice", "error"]
    assert lines[0] == (
        "::error title=diag check%3A max-exposed-comm::exposed communication as a share of the critical path: "
        "31.0%25 (30.2%25 to 31.9%25), at most 20%25: exceeded"
    )


def parsed(line: str) -> tuple[str, dict[str, str], str]:
    """A command as GitHub's runner reads it: up to the first ``::`` after the start, properties at commas, then the
    escapes taken back, per cent last."""
    head, _, data = line.removeprefix("::").partition("::")
    level, _, rest = head.partition(" ")
    properties = dict(part.split("=", 1) for part in rest.split(",") if "=" in part)

    def back(text: str, *codes: str) -> str:
        for code in codes:
            text = text.replace(code, chr(int(code[1:], 16)))
        return text.replace("%25", "%")

    common = ("%0D", "%0A")
    return level, {k: back(v, *common, "%3A", "%2C") for k, v in properties.items()}, back(data, *common)


@given(st.text(), st.text())
def test_any_text_comes_back_from_a_command_and_none_ends_it(title: str, message: str) -> None:
    line = command("error", title, message)
    assert "\n" not in line
    assert "\r" not in line
    assert parsed(line) == ("error", {"title": title}, message)


def test_a_sentence_names_what_could_not_be_measured() -> None:
    assert sentence(GATE.checked[3]) == (
        "model FLOPs utilisation: not measured, at least 35%: not known (the run is on a CPU)"
    )
