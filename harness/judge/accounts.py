"""The sentence of a PASS that says what was accounted for: processes, keys and exit codes."""

from __future__ import annotations

from harness.judge.facts import Facts
from harness.judge.finding import counted


def sentence(facts: Facts) -> str:
    """Return "2 processes, 120 keys × steps, 2 exit codes: all accounted for", of the closed accounts.

    Returns "" for a launch whose processes were not recorded.
    """
    closed = {finding.name for finding in facts.findings if finding.result == "PASS"}
    if "exits" not in closed:
        return ""
    lives = sum(map(len, facts.case.lives.values()))
    told = [counted(lives, "process", "processes")]
    if "keys" in closed:
        told.append(f"{facts.compared.compared} keys × steps")
    told.append(counted(lives, "exit code"))
    text = ", ".join(told) + ": all accounted for"
    summary = facts.bundle.summary
    if summary is not None and not summary.processes:
        text += ", from the pods' side alone, because this tracker names no senders"
    return text
