"""private.py: the database and the files are readable for their owner only, whatever the umask is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.tracker.storage.database import Store


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


@pytest.mark.usefixtures("umask")
def test_new_files_are_private(tmp_path: Path) -> None:
    """Contract: also the write-ahead log and the shared memory, which SQLite creates."""
    store = Store(tmp_path / "tracker.db")
    with store.blobs.writing() as file:
        file.write(b"x")
        store.blobs.store(file, "token")
    assert modes(tmp_path) == {
        "tracker.db": 0o600,
        "tracker.db-wal": 0o600,
        "tracker.db-shm": 0o600,
        "tracker.db.files": 0o700,
    }
    assert modes(tmp_path / "tracker.db.files") == {"token": 0o600}
    store.close()


@pytest.mark.parametrize(
    ("before", "after"), [(0o644, 0o600), (0o666, 0o600), (0o640, 0o640), (0o600, 0o600)]
)
def test_an_existing_database_loses_the_access_of_all_users(tmp_path: Path, before: int, after: int) -> None:
    """Contract: a database of an earlier version becomes private. Access of a group was set on purpose."""
    path = tmp_path / "tracker.db"
    Store(path).close()
    path.chmod(before)
    store = Store(path)
    found = modes(tmp_path)
    store.close()
    assert (found["tracker.db"], found["tracker.db-wal"], found["tracker.db-shm"]) == (after, after, after)
