"""What the ranks read from their client's queue."""

from pathlib import Path

import pytest
from ground_truth import client_state
from pluto.sync.store import RecordType, SyncStatus, SyncStore


@pytest.fixture
def store(tmp_path: Path):
    """The real client's own queue."""
    path = tmp_path / ".pluto" / "e2e" / "id"
    path.mkdir(parents=True)
    store = SyncStore(str(path / "sync.db"))
    store.register_run("id", "e2e")
    yield store
    store.close()


def test_sent_and_unsent_by_metric(store, tmp_path: Path) -> None:
    """Contract: only metrics count, steps are ranges, and unsent points show their latest error."""
    for step in range(6):
        store.enqueue("id", RecordType.METRIC, {"loss": 1.0, "mean": 2.0}, 1, step)
    store.enqueue("id", RecordType.SYSTEM, {"sys/cpu": 1.0}, 1, 1)
    store.mark_completed([1, 2, 3, 5])
    store.mark_failed([4], "503")
    state = client_state.read(str(tmp_path))
    assert state == {
        "whole": True,
        "sent": {"loss": [[0, 2], [4, 4]], "mean": [[0, 2], [4, 4]]},
        "unsent": {"loss": [[3, 3], [5, 5]], "mean": [[3, 3], [5, 5]]},
        "error": "503",
    }


def test_what_was_tidied_away(store, tmp_path: Path) -> None:
    """Contract: a queue that removed sent points is not whole."""
    for step in range(3):
        store.enqueue("id", RecordType.METRIC, {"loss": 1.0}, 1, step)
    store.mark_completed([1])
    store.cleanup_completed(older_than_seconds=-1)
    state = client_state.read(str(tmp_path))
    assert state is not None
    assert not state["whole"]


def test_a_missing_or_unreadable_queue_reads_as_none(tmp_path: Path) -> None:
    assert client_state.read(str(tmp_path)) is None
    (tmp_path / "sync.db").write_text("no database")
    assert client_state.read(str(tmp_path)) is None


def test_numbers_are_the_clients() -> None:
    """Contract: the client's own enumerations."""
    assert (client_state.METRIC, client_state.SENT) == (RecordType.METRIC, SyncStatus.COMPLETED)
