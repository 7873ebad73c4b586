"""The page of tested versions: every cell of the matrix, and nothing from an unfinished one."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_matrices import cell, document, outcome

from docs.make_tested_versions import page
from harness.versions.matrix_results import CellResult, Document

VERSIONS = {"kubernetes": "v1.36.1", "kueue": "v0.19.2"}


def matrix(folder: Path, last: CellResult) -> Document:
    passed = cell(outcome(versions=VERSIONS), versions={"client": "1.0", "launcher": "1"})
    last.versions = {"client": "1.1", "launcher": "1"}
    return document(folder, passed, last)


def test_page_shows_every_cell_and_reasons_of_failures(tmp_path: Path) -> None:
    failed = outcome("FAIL", "rank.crashed", explanation="rank 1 | crashed", versions=VERSIONS)
    text = page(matrix(tmp_path, cell(failed, failed)), "harness matrix --newest 8")
    assert "On 2026-11-28, `jobs/<multinode>.yaml` was launched" in text
    assert "```bash\nharness matrix --newest 8\n```" in text
    assert "| 1.0 | ✅ PASS |\n| 1.1 | ❌ FAIL rank.crashed |" in text
    assert "rank 1 &#124; crashed" in text
    assert "took 3 launches, up to 2 at the same time" in text
    assert "Kubernetes v1.36.1, Kueue v0.19.2." in text
    assert "| client | `1.1` | 2026-11-01 |" in text


def test_an_unfinished_matrix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="finished matrix"):
        page(matrix(tmp_path, cell()), "harness matrix")
