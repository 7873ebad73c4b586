"""What differs between two wheels: files by name and size, and requirements."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from harness.core.errors import UsageError
from harness.versions.distribution_diff import FileChange, of_wheels


def wheel(path: Path, version: str, files: dict[str, str], needs: str = "") -> Path:
    with zipfile.ZipFile(path, "w") as packed:
        for name, text in files.items():
            packed.writestr(name, text)
        info = f"client-{version}.dist-info"
        packed.writestr(f"{info}/METADATA", f"Name: client\nVersion: {version}\n{needs}")
        packed.writestr(f"{info}/RECORD", version)
        packed.writestr(f"{info}/entry_points.txt", "[console_scripts]")
    return path


def test_only_what_differs_is_listed(tmp_path: Path) -> None:
    """Contract: the version in names and metadata is no difference, and a changed requirement is one."""
    one = wheel(
        tmp_path / "a.whl",
        "1.0",
        {"client/a.py": "same", "client/b.py": "old", "client/c.py": "gone"},
        "Requires-Dist: httpx>=1\nRequires-Dist: rich\n",
    )
    two = wheel(
        tmp_path / "b.whl",
        "1.1",
        {"client/a.py": "same", "client/b.py": "newer", "client/d.py": "new"},
        "Requires-Dist: httpx>=2\nRequires-Dist: rich\n",
    )
    found = of_wheels(one, two)
    assert found.files == (
        FileChange("client/b.py", 3, 5),
        FileChange("client/c.py", 4, None),
        FileChange("client/d.py", None, 3),
    )
    assert (found.added, found.removed) == (("httpx>=2",), ("httpx>=1",))
    same = of_wheels(one, wheel(tmp_path / "c.whl", "1.2", {"client/a.py": "same", "client/b.py": "old"}))
    assert [each.name for each in same.files] == ["client/c.py"]


def test_a_file_that_is_not_a_wheel_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_text("text")
    with pytest.raises(UsageError, match=r"a\.whl is not a readable wheel"):
        of_wheels(tmp_path / "a.whl", tmp_path / "a.whl")
