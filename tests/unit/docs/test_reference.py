"""docs/reference matches the code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.evidence.schema.record import Record
from harness.reference import DOCUMENTS, commands, evidence
from harness.reference.settings import variables
from harness.settings import Settings

FOLDER = Path(__file__).parents[3] / "docs" / "reference"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_written_from_the_code(name: str) -> None:
    """Contract: `make reference` would change nothing."""
    assert (FOLDER / name).read_text() == DOCUMENTS[name]()


def test_it_is_the_same_on_every_machine(tmp_path: Path) -> None:
    """Contract: it depends neither on the environment nor on a terminal's width."""
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "COLUMNS": "40", "XDG_CACHE_HOME": "/c"}
    env |= {"HARNESS_WORKERS": "7", "KEEP_CLUSTER": "true"}
    subprocess.run([sys.executable, "-m", "harness.reference", str(tmp_path)], env=env, check=True)
    assert {name: (tmp_path / name).read_text() for name in DOCUMENTS} == {
        name: markdown() for name, markdown in DOCUMENTS.items()
    }


def test_nothing_is_without_a_word() -> None:
    """Every setting, command, argument and option has a description."""
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []
    every = commands.commands()
    assert [name for name, command in every.items() if not command.help] == []
    assert [(n, p.name) for n, c in every.items() for p in c.params if not p.help] == []


def test_what_stands_in_the_documents() -> None:
    """Each document holds a few known words, so that an empty document does not equal an empty generator."""
    assert "## harness images build" in DOCUMENTS["cli.md"]()
    assert "| `--key-file` | file with the API key" in DOCUMENTS["cli.md"]()
    assert variables("pluto_api_key", Settings.model_fields["pluto_api_key"]) == [
        "PLUTO_API_KEY",
        "PLUTO_API_TOKEN",
    ]
    assert "| `HARNESS_WORKERS` | int | `2` |" in DOCUMENTS["settings.md"]()
    assert (
        "| `values` | The values in the run are exactly the doubles that the ranks logged. "
        in DOCUMENTS["checks.md"]()
    )
    written = DOCUMENTS["evidence.md"]()
    models = [
        name
        for module in evidence.MODULES
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Record)
    ]
    assert [name for name in models if name != "Record" and f"## {name}\n" not in written] == []
    row = "| `ranks` | `int` | `Field(le=MAX_RANKS)` | The world size: num_nodes × processes per node. "
    assert row in written


def test_guides_are_those_of_their_table() -> None:
    """Contract: `make reference` would not change docs/guides.md."""
    root = FOLDER.parents[1]
    table = root / "tests" / "k8s" / "guide_table.py"
    written = subprocess.run([sys.executable, str(table)], capture_output=True, text=True, check=True).stdout
    assert (root / "docs" / "guides.md").read_text() == written


def test_wrong_objects_are_those_of_their_table() -> None:
    """Contract: `make reference` would not change docs/torchrun-wrong-objects.md: each case has an answer."""
    root = FOLDER.parents[1]
    table = root / "tests" / "k8s" / "wrong_objects.py"
    written = subprocess.run([sys.executable, str(table)], capture_output=True, text=True, check=True).stdout
    assert (root / "docs" / "torchrun-wrong-objects.md").read_text() == written
    rows = [line for line in written.splitlines() if line.startswith("| ")]
    assert len(rows) >= 60
    assert f"lists {len(rows) - 2} mistakes" in (root / "docs" / "torchrun-controller.md").read_text()
