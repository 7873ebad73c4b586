"""Write a suite as JUnit XML, using only elements that all JUnit viewers support.

The elements and attributes are those in Jenkins' schema (junit-10.xsd in its xunit plugin), in which suites
have properties but tests do not. junitparser is not used, because it writes characters that are illegal in
XML, and some of its files therefore cannot be parsed. pytest's writer works only for pytest sessions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree as ET

from harness.evidence.io.reader import Bundle
from harness.evidence.schema.bundle import Check, Verdict
from harness.report.ci.launch_properties import properties as launch_properties
from harness.report.ci.suite import evidence_lines, message, suite

JUNIT = "junit.xml"
_NO_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that are illegal in XML 1.0, and the carriage return, which XML parsers convert to a newline."""


@dataclass(frozen=True)
class Case:
    """A test. If `problem` is None, the test passed and `text` is its output.

    Otherwise, `text` is the full description of the problem, `message` is a one-line summary, and `kind` is
    the type of the problem, for example the cause rank.killed.
    """

    name: str
    seconds: float = 0.0
    problem: Literal["failure", "error"] | None = None
    kind: str = ""
    message: str = ""
    text: str = ""


def as_junit(bundle: Bundle, verdict: Verdict) -> str:
    """Return the text of junit.xml. The suite's properties describe the launch."""
    launch_suite = suite(bundle, verdict)
    duration = launch_suite.stop - launch_suite.start
    cases = [
        _case_of_check(launch_suite.verdict, duration),
        *(_case_of_check(check) for check in launch_suite.checks),
    ]
    cases += [_case_of_check(check, seconds) for check, _, seconds in launch_suite.accepted]
    return document(
        launch_suite.name, cases, launch_properties(launch_suite.launch), launch_suite.started_at, duration
    )


def document(
    suite: str, cases: Sequence[Case], properties: Iterable[tuple[str, str]], started_at: str, seconds: float
) -> str:
    """Return the text of a JUnit XML file, which must be encoded as UTF-8.

    `started_at` is an RFC 3339 time, or "" if it is not known.
    """
    counts = {
        "tests": f"{len(cases)}",
        "failures": f"{sum(case.problem == 'failure' for case in cases)}",
        "errors": f"{sum(case.problem == 'error' for case in cases)}",
    }
    root = _element(None, "testsuites", counts | {"time": f"{seconds:.3f}"})
    attributes = {"timestamp": started_at} if started_at else {}
    top = _element(
        root, "testsuite", {"name": suite, **counts, "skipped": "0", "time": f"{seconds:.3f}"} | attributes
    )
    properties_element = _element(top, "properties")
    for name, value in properties:
        _element(properties_element, "property", {"name": name, "value": value})
    for case in cases:
        _case(top, suite, case)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def legal(text: str) -> str:
    """Return the text with characters that are illegal in XML escaped as in Python, for example `\\x1b`."""
    return _NO_XML.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _case_of_check(check: Check, seconds: float = 0.0) -> Case:
    """Convert a check to a test. Its duration defaults to 0, because checks run after the launch."""
    if check.result == "PASS":
        return Case(check.name, seconds, text=check.explanation)
    return Case(
        name=check.name,
        seconds=seconds,
        problem="failure" if check.result == "FAIL" else "error",
        kind=check.cause or check.result,
        message=message(check),
        text="\n".join(filter(None, [message(check), evidence_lines(check)])),
    )


def _case(suite: ET.Element, classname: str, case: Case) -> None:
    attributes = {"classname": classname, "name": case.name, "time": f"{case.seconds:.3f}"}
    test = _element(suite, "testcase", attributes)
    if case.problem is not None:
        _element(test, case.problem, {"type": case.kind, "message": case.message}, case.text)
    elif case.text:
        _element(test, "system-out", {}, case.text)


def _element(
    parent: ET.Element | None, tag: str, attributes: dict[str, str] | None = None, text: str = ""
) -> ET.Element:
    """Create an element, and append it to `parent` if there is one.

    Only this function adds text to the document, so all text in it is legal XML.
    """
    legal_attributes = {name: legal(value) for name, value in (attributes or {}).items()}
    element = (
        ET.Element(tag, legal_attributes) if parent is None else ET.SubElement(parent, tag, legal_attributes)
    )
    element.text = legal(text) or None
    return element
