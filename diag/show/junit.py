"""Budgets as JUnit XML, in the form that Jenkins' junit-10.xsd and its kin accept: a test case a budget."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from diag.gate.check import Gate, Status

from .gate import sentence

# What XML 1.0 cannot hold, not even as a reference.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(gate: Gate, run: str, headline: str) -> bytes:
    """The document. A budget that cannot be decided is an error, not skipped: skipped tests count as passed."""
    failed = [one for one in gate.checked if gate.failed(one)]
    unknown = [one for one in gate.checked if one.status is Status.UNKNOWN]
    counts = {"tests": str(len(gate.checked)), "failures": str(len(failed)), "errors": str(len(unknown))}
    suites = Element("testsuites", {"name": "diag check", **counts})
    suite = SubElement(suites, "testsuite", {"name": _allowed(run), **counts, "skipped": "0"})
    for one in gate.checked:
        case = SubElement(suite, "testcase", {"name": one.budget.quantity.name, "classname": "diag.check"})
        said = _allowed(sentence(one))
        if one in failed:
            SubElement(case, "failure", {"message": said, "type": str(one.status)}).text = _allowed(headline)
        elif one in unknown:
            SubElement(case, "error", {"message": said, "type": str(one.status)})
        SubElement(case, "system-out").text = said
    indent(suites)
    content: bytes = tostring(suites, encoding="UTF-8", xml_declaration=True)
    return content + b"\n"


def _allowed(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
