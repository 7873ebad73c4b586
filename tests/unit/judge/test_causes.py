"""The list of causes is closed: the document, the judges and the rest of the harness use the same names."""

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

from harness.core.causes import CauseId
from harness.judge.catalogue import CAUSES, FAMILIES
from harness.reference.causes import markdown
from harness.workers.acceptance.causes import ADVICE

ROOT = Path(__file__).parents[3]
FILES = (
    ".io",
    ".txt",
    ".sh",
    ".gz",
    ".sum",
    ".tar",
    ".db",
    ".log",
    ".json",
    ".jsonl",
    ".md",
    ".yaml",
    ".toml",
    ".py",
    ".pt",
    ".sock",
)
ACCEPTANCE_CHECKS = {"compute.equal", "copy.peer", "memory.copy", "memory.triad", "run.ended"}
"""Ids of acceptance checks. They begin with the same words as causes."""


def named_in_code() -> dict[str, str]:
    """Return every string of the form family.word in the sources, with its location."""
    shape = re.compile(rf"({'|'.join(FAMILIES)})\.[a-z_]+")
    found = {}
    for path in {*(ROOT / "harness").rglob("*.py")} - {ROOT / "harness/evidence/schema/renamed_ids.py"}:
        for node in ast.walk(ast.parse(path.read_text())):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and shape.fullmatch(text):
                found[text] = f"{path.relative_to(ROOT)}:{node.lineno}"
    modules = {name for name in found if (ROOT / "harness/workers" / f"{name.replace('.', '/')}.py").exists()}
    others = modules | ACCEPTANCE_CHECKS | {"training.id"}  # MLflow's tag of a training
    return {name: where for name, where in found.items() if not name.endswith(FILES) and name not in others}


def test_the_document_is_written_from_the_list():
    """Contract: docs/causes.md is what `python -m harness.reference.causes` prints."""
    assert (ROOT / "docs/causes.md").read_text() == markdown()


def test_nobody_names_cause_that_is_not_in_list():
    """Contract: every cause that is named anywhere in the harness has an entry."""
    assert {name: where for name, where in named_in_code().items() if name not in CAUSES} == {}


def test_cause_of_acceptance_test_is_in_list():
    """Contract: every cause that a container reports is known to the judges."""
    assert set(ADVICE) <= set(CAUSES)
    assert not ACCEPTANCE_CHECKS & set(CAUSES)


def test_the_type_checker_knows_the_same_causes():
    """Contract: CauseId contains exactly the ids in causes.toml, in the same order."""
    assert get_args(CauseId) == tuple(CAUSES)


@pytest.mark.parametrize("cause", CAUSES.values(), ids=lambda cause: cause.id)
def test_an_entry_is_complete(cause):
    """Contract: each entry has a meaning, evidence, an action and a fault that triggers the cause."""
    assert all((cause.meaning.endswith("."), cause.evidence, cause.action, cause.provoked_by))
    assert cause.family in FAMILIES
