"""The redactor does not hide any part of the instructions in messages, causes and docs.

A verdict with its actions, and the command line of a launch, pass the redactor before they are written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.core import secret_rules
from harness.evidence.io.redaction import Redactor
from harness.judge.catalogue import CAUSES

ROOT = Path(__file__).parents[3]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
BLOCK = re.compile(r"^```(?:bash|sh|shell|console)\n(.*?)^```", re.M | re.S)
FORMATS = {'["--token", "VALUE"]'}
"""Code that shows where a secret is found, with a placeholder that looks like one."""


def commands() -> Iterator[tuple[str, str]]:
    """Yield (page, code) for each code span and each line of a shell block."""
    for page in PAGES:
        text = page.read_text()
        for match in SPAN.finditer(text):
            yield str(page.relative_to(ROOT)), match[1]
        for block in BLOCK.finditer(text):
            for line in block[1].splitlines():
                yield str(page.relative_to(ROOT)), line


def mangled(text: str) -> bool:
    """Return whether the redactor changes a text, alone or in a document."""
    redactor = Redactor()
    return redactor.text(text) != text or redactor.value({"next": [text]}) != {"next": [text]}


def test_the_search_finds_commands() -> None:
    found = [code for _, code in commands()]
    assert len(found) > 1000
    assert "HARNESS_IMAGE_PULL_SECRET=namespace/name" in found


def test_no_action_of_a_cause_is_hidden() -> None:
    texts = [text for cause in CAUSES.values() for text in (cause.action, cause.meaning)]
    assert [text for text in texts if mangled(text)] == []


def test_no_command_of_the_documents_is_hidden() -> None:
    hidden = {(page, code) for page, code in commands() if code not in FORMATS and mangled(code)}
    assert hidden == set()


@pytest.mark.parametrize(
    "text",
    [
        "harness train --secret hf-token --model OWNER/NAME",
        "harness attach job/train -n team-a --secret pluto/KEY",
        "--secret aws-s3-keys: expected a value in the environment variable X",
        "`--secret NAMESPACE/NAME=VARIABLE`",
        "HARNESS_IMAGE_PULL_SECRET=ml-team/registry-login harness run job.yaml",
        "imagePullSecret: regcred",
        "if [[ -n ${PLUTO_API_KEY:-}${PLUTO_API_TOKEN:-} ]]; then",
        "export AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=…",
        'export PLUTO_API_TOKEN="your-token-here"',
    ],
)
def test_the_name_of_a_secret_is_not_a_secret(text: str) -> None:
    """Contract: names of Kubernetes Secrets and placeholders stay readable."""
    assert not mangled(text)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("app --secret hunter2", "hunter2"),
        ("app --secret 9f8e7d6c5b4a", "9f8e7d6c5b4a"),
        ("app --secret qX7-pass-word", "qX7-pass-word"),
        ("app --client-secret pluto", "pluto"),
        ("app --secret=aB3dE5fG7hI9", "aB3dE5fG7hI9"),
        ("IMAGE_PULL_SECRET=eyJhdXRocyI6eyJyZWcuZXhhbXBsZSI6e319fQ==", "eyJhdXRo"),
        ("PULL_SECRET=Zm9vOmJhcg==", "Zm9vOmJhcg=="),
        ("API_KEY=-12345", "-12345"),
        ("DB_PASSWORD=your-mother", "your-mother"),
    ],
)
def test_a_value_that_can_be_a_secret_is_hidden(text: str, secret: str) -> None:
    """Contract: the exceptions are only for the form of a name, and only where a name is expected."""
    assert secret not in Redactor().text(text)


def test_command_line_of_launch_keeps_name_of_its_secret() -> None:
    """Contract: manifest.json has the command, so that the launch can be repeated."""
    command = ["harness", "train", "--secret", "hf-token", "--secret", "9f8e7d6c5b4a"]
    assert Redactor().value(command) == ["harness", "train", "--secret", "hf-token", "--secret", "***"]
    assert not secret_rules.argument("--secret", "team/hf-token=HF_TOKEN")
    assert secret_rules.argument("--token", "hf-token")
    assert json.dumps(Redactor().value({"command": command})).count("***") == 1
