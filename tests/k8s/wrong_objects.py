"""Wrong TorchrunQueues and TorchrunJobs, and the response of the API server or the controller to each.

    python tests/k8s/wrong_objects.py >docs/torchrun-wrong-objects.md

The answers come from a real cluster. test_torchrun_wrong.py compares them with
files/torchrun_wrong_answers.json, or writes this file if RECORD_ANSWERS=1.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from kubernetes.client.exceptions import ApiException
from pydantic import BaseModel, ConfigDict

FOLDER = Path(__file__).parent / "files"
ANSWERS = FOLDER / "torchrun_wrong_answers.json"
_PREAMBLE = """# Wrong queues and jobs, and the response to each

Each row shows an object with one mistake. The object was applied to a cluster on which the controller is
running. If the API server rejects the object, the answer is the API server's message. If the controller
rejects it, the answer is the message in `kubectl describe`. `tests/k8s/test_torchrun_wrong.py` applies each
row and compares the answer with this page.
"""


class Case(BaseModel):
    """An object with one mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    case: str
    wrong: str
    """The mistake, in Markdown."""
    spec: dict[str, Any]
    """Fields that replace those in the spec of a valid object."""
    name: str = ""

    @property
    def object_name(self) -> str:
        return self.name or self.case


class Answer(BaseModel):
    """The message that a user sees about a wrong object."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    by: str
    """`kubectl apply` if the API server rejects the object, otherwise `kubectl describe`."""
    says: str


def cases() -> dict[str, list[Case]]:
    """Return the cases of queues and of jobs. Raises ValidationError on an unknown field."""
    found = yaml.safe_load((FOLDER / "torchrun_wrong.yaml").read_text())
    return {kind: [Case.model_validate(each) for each in found[kind]] for kind in ("queues", "jobs")}


def answers() -> dict[str, Answer]:
    """Return the recorded answer for each case, keyed by the case's name."""
    return {case: Answer.model_validate(found) for case, found in json.loads(ANSWERS.read_text()).items()}


def record(found: dict[str, Answer]) -> None:
    """Record the answers from a cluster."""
    documents = {case: found[case].model_dump() for case in sorted(found)}
    ANSWERS.write_text(json.dumps(documents, indent=1, ensure_ascii=False) + "\n")


def described(text: str) -> dict[str, str]:
    """Return a mapping of each object to its message in the output of `kubectl describe`.

    For a queue, this is the message of the condition Ready.
    """
    found: dict[str, str] = {}
    name = message = ""
    for line in text.splitlines():
        key, _, value = line.strip().partition(":")
        value = value.strip()
        if line.startswith("Name:"):
            name, message = value, ""
        elif key == "Message" and line.startswith("  Message:"):
            found[name] = value
        elif key == "Message":
            message = value
        elif key == "Type" and value == "Ready":
            found[name] = message
    return found


def sentence(error: ApiException) -> str:
    """Return the API server's message from a rejected request."""
    return str(json.loads(error.body)["message"])


def normal(text: str, namespace: str) -> str:
    """Return a message without the names that differ in each run."""
    return re.sub(r"\s+", " ", text.replace(namespace, "NAMESPACE")).strip()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def markdown() -> str:
    """Return docs/torchrun-wrong-objects.md."""
    by_case = answers()
    lines = [_PREAMBLE.rstrip()]
    for kind, found in cases().items():
        lines += [
            "",
            f"## Torchrun{kind.capitalize()}",
            "",
            "| mistake | rejected by | answer |",
            "|---|---|---|",
        ]
        for case in found:
            answer = by_case[case.case]
            by = "the API server" if answer.by == "kubectl apply" else "the controller"
            lines.append(f"| {_cell(case.wrong)} | {by} | {_cell(answer.says)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
