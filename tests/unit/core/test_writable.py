"""Whether a folder is writable, for a user without root privileges."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from harness.core.errors import HarnessError, UsageError
from harness.core.writable import check


def test_a_folder_in_a_closed_one_is_not_writable() -> None:
    """Contract: what cannot be looked into is not taken as missing, by any version of Python."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:  # those of pytest are closed to other users
        Path(name).chmod(0o755)
        closed = Path(name) / "closed"
        (closed / "inside").mkdir(parents=True)
        closed.chmod(0)
        if user == 0:
            os.seteuid(65534)  # root may do everything
        try:
            with pytest.raises(HarnessError, match=r"inside: Permission denied"):
                check(closed / "inside", "--output")
        finally:
            os.seteuid(user)
            closed.chmod(0o700)


def test_folder_can_be_created_below_folders_only(tmp_path: Path) -> None:
    check(tmp_path / "new" / "newer", "--output")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="expected a folder at"):
        check(tmp_path / "file" / "new", "--output")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
