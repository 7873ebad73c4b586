"""Write one suite as JUnit XML, as far as every reader knows the format.

Elements and attributes are those of Jenkins' schema (junit-10.xsd of its xunit plugin), where a suite has
properties and a test has none. junitparser is not used: it writes characters that XML cannot hold, and such a
file cannot be read back. pytest's writer is for its own sessions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree as ET

_NO_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold, and the carriage return, which XML readers change into a line end."""


@dataclass(frozen=True)
class Case:
    """One test. With `problem` None it passed, and `text` is its output. Else `text` is the whole problem,
    `message` one line of it, and `kind` its class.
    """

    name: str
    seconds: float = 0.0
    problem: Literal["failure", "error"] | None = None
    kind: str = ""
    message: str = ""
    text: str = ""


def document(
    suite: str, cases: Sequence[Case], properties: Iterable[tuple[str, str]], started_at: str, seconds: float
) -> str:
    """Return the file's text, in UTF-8. `started_at` is RFC 3339, or "" when it is not known."""
    counts = {
        "tests": f"{len(cases)}",
        "failures": f"{sum(case.problem == 'failure' for case in cases)}",
        "errors": f"{sum(case.problem == 'error' for case in cases)}",
    }
    root = _element(None, "testsuites", counts | {"time": f"{seconds:.3f}"})
    when = {"timestamp": started_at} if started_at else {}
    top = _element(
        root, "testsuite", {"name": suite, **counts, "skipped": "0", "time": f"{seconds:.3f}"} | when
    )
    listed = _element(top, "properties")
    for name, value in properties:
        _element(listed, "property", {"name": name, "value": value})
    for case in cases:
        _case(top, suite, case)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def legal(text: str) -> str:
    """With what XML cannot hold written as Python escapes it: `\\x1b`."""
    return _NO_XML.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


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
    """Add an element. No other function puts text into the document."""
    given = {name: legal(value) for name, value in (attributes or {}).items()}
    made = ET.Element(tag, given) if parent is None else ET.SubElement(parent, tag, given)
    made.text = legal(text) or None
    return made
