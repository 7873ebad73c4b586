"""`harness --version` prints the version of the package."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from harness.cli.main import main


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    """Contract: one line on stdout, and exit code 0."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code in (0, None)
    assert capsys.readouterr().out == f"harness {version('pluto-e2e-harness')}\n"
