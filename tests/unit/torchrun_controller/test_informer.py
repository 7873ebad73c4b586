"""A store is as the API server has told, whatever happens to lists and watches. The server is real."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from urllib3.exceptions import ReadTimeoutError
from watch_server import END, WatchServer, item

from harness.torchrun_controller.runtime import informer
from harness.torchrun_controller.runtime.informer import Informer
from harness.torchrun_controller.runtime.kinds import PRIORITY_CLASSES, Kind
from harness.torchrun_controller.runtime.object_cache import Change, Store

LIMIT = 20.0


class Followed:
    """An informer of a server, and what it told."""

    def __init__(self, server: WatchServer, folder: Path, user: dict[str, str] | None = None) -> None:
        self.server, self.store = server, Store()
        self.told: list[tuple[str | None, str | None]] = []
        self.informer = Informer(server.kube(folder, user), PRIORITY_CLASSES, None, self.store, self._told)

    def _told(self, kind: Kind, change: Change) -> None:
        assert kind == PRIORITY_CLASSES
        versions = [each["metadata"]["resourceVersion"] if each else None for each in _both(change)]
        self.told.append((versions[0], versions[1]))

    def start(self) -> None:
        self.informer.start()
        assert self.informer.synced.wait(LIMIT)

    def names(self) -> set[str]:
        return {found["metadata"]["name"] for found in self.store.all()}

    def until(self, done: Callable[[], bool]) -> None:
        until = time.monotonic() + LIMIT
        while not done():
            assert time.monotonic() < until, (self.names(), self.told)
            threading.Event().wait(0.01)


def _both(change: Change) -> list[dict[str, dict[str, str]] | None]:
    return [change.before, change.after]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WatchServer]:
    monkeypatch.setattr(informer, "FIRST_PAUSE", 0.01)
    found = WatchServer()
    yield found
    found.shutdown()
    found.server_close()


@pytest.fixture
def followed(server: WatchServer, tmp_path: Path) -> Iterator[Followed]:
    found = Followed(server, tmp_path)
    yield found
    found.informer.stopped.set()
    server.watched.put(END)


def test_list_and_then_every_change(server: WatchServer, followed: Followed) -> None:
    """Contract: pages of one list, then what is added, changed and deleted, each told once."""
    server.page = 2
    server.lists = [(10, [item("a", 1), item("b", 2), item("c", 3)])]
    followed.start()
    assert followed.names() == {"a", "b", "c"}
    server.tell("ADDED", item("d", 11))
    server.tell("MODIFIED", item("a", 12))
    server.tell("DELETED", item("b", 13))
    followed.until(lambda: followed.store.version == 13)
    assert followed.names() == {"a", "c", "d"}
    assert followed.told[3:] == [(None, "11"), ("1", "12"), ("2", None)]


def test_watch_goes_on_where_it_was(server: WatchServer, followed: Followed) -> None:
    """Contract: a watch that ends is followed by one from the last version, a bookmark's too; no new list."""
    server.lists = [(10, [item("a", 1)])]
    followed.start()
    server.tell("MODIFIED", item("a", 20))
    server.tell("BOOKMARK", {"metadata": {"resourceVersion": "30"}})
    server.watched.put(END)
    server.tell("ADDED", item("b", 31))
    followed.until(lambda: followed.names() == {"a", "b"})
    watches = [asked["resourceVersion"] for asked in server.asked if "watch" in asked]
    assert watches[:2] == ["10", "30"]
    assert len([asked for asked in server.asked if "watch" not in asked]) == 1


@pytest.mark.parametrize("how", ["status", "event"])
def test_version_that_is_too_old(server: WatchServer, followed: Followed, how: str) -> None:
    """Contract: 410 as an answer or as an event leads to a new list; what is not in it is gone, and told."""
    server.lists = [(10, [item("a", 1), item("b", 2)]), (50, [item("b", 2), item("c", 40)])]
    followed.start()
    if how == "status":
        server.watched.put(410)
    else:
        server.tell("ERROR", {"kind": "Status", "code": 410})
        server.watched.put(END)
    followed.until(lambda: followed.names() == {"b", "c"})
    assert followed.told[2:] == [(None, "40"), ("1", None)]


def test_server_that_is_away(server: WatchServer, followed: Followed) -> None:
    """Contract: refusals are waited out; after several of a watch a list tells the truth again."""
    server.lists = [503, (10, [item("a", 1)]), 503, (60, [item("z", 60)])]
    followed.start()
    assert followed.names() == {"a"}
    for _ in range(informer.PATIENCE):
        server.watched.put(500)
    followed.until(lambda: followed.names() == {"z"})


def test_a_version_that_is_not_served_is_named(
    server: WatchServer, followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    """Contract: a controller that waits for a CRD, or for a newer version of it, says which."""
    server.lists = [404, (10, [item("a", 1)])]
    followed.start()
    assert followed.names() == {"a"}
    assert "does not serve PriorityClass in scheduling.k8s.io/v1: install a release of its CRD" in caplog.text


def test_line_that_was_cut(server: WatchServer, followed: Followed) -> None:
    """Contract: half a line at the end of a connection changes nothing: it comes again."""
    server.lists = [(10, [item("a", 1)])]
    followed.start()
    server.watched.put(b'{"type": "DELETED", "object": {"metadata": {"name": "a", "resourceVe')
    server.watched.put(END)
    server.tell("ADDED", item("b", 12))
    followed.until(lambda: followed.names() == {"a", "b"})


def test_old_list_is_refused(server: WatchServer, followed: Followed) -> None:
    """Contract: a list of a server that is behind does not turn the time back."""
    server.lists = [(10, [item("a", 1)]), (5, []), (90, [item("a", 1), item("n", 90)])]
    followed.start()
    server.tell("BOOKMARK", {"metadata": {"resourceVersion": "80"}})
    server.watched.put(END)
    server.watched.put(410)
    followed.until(lambda: followed.names() == {"a", "n"})
    assert (("1", None)) not in followed.told


def test_silent_watch_is_given_up(
    server: WatchServer, followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: a connection that says nothing for too long is left, without a new list."""
    monkeypatch.setattr(informer, "SILENCE_SECONDS", 0.3)
    server.lists = [(10, [item("a", 1)])]
    followed.start()
    followed.until(lambda: len([asked for asked in server.asked if "watch" in asked]) >= 2)
    assert len([asked for asked in server.asked if "watch" not in asked]) == 1


def test_data_that_was_restored_from_backup_is_read_again(server: WatchServer, followed: Followed) -> None:
    """kubernetes/kubernetes#107457: after a restore of etcd, watches waited for a version of the future.

    Contract: an API server that stays behind the store has lost its data. The store then has what is there,
    each change is reported, and the watch goes on from the older version.
    """
    server.lists = [(1200, [item("a", 1100), item("b", 1150), item("c", 900)])]
    followed.start()
    server.lists = [(1000, [item("a", 990), item("c", 900)])]
    server.watched.put(410)
    followed.until(lambda: followed.names() == {"a", "c"})
    assert sorted(followed.told[3:], key=str) == [("1100", "990"), ("1150", None)]
    server.tell("MODIFIED", item("a", 1001))
    followed.until(lambda: ("990", "1001") in followed.told)


class SilentWatches:
    """A connection to an API server that lists objects, accepts watches, and then sends nothing."""

    def __init__(self) -> None:
        self.lists, self.watches = 0, 0

    def fetch(self, path: str, query: dict[str, str], seconds: float) -> SilentWatches:
        del path, seconds
        if "watch" in query:
            self.watches += 1
        else:
            self.lists += 1
        return self

    def json(self) -> dict[str, Any]:
        return {"metadata": {"resourceVersion": "10"}, "items": []}

    def stream(self, size: int | None, *, decode_content: bool) -> Iterator[bytes]:
        del size, decode_content
        yield b"\n"
        raise ReadTimeoutError(None, None, "Read timed out.")  # type: ignore[arg-type]

    def close(self) -> None:
        pass


def test_several_silent_watches_are_followed_by_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """kubernetes/kubernetes#107457: an API server accepted a watch from a version of the future.

    Contract: such a watch is silent until that version is reached. One that is silent is continued, because a
    connection can freeze; after several, the objects are listed again.
    """
    monkeypatch.setattr(informer, "FIRST_PAUSE", 0.001)
    server = SilentWatches()
    followed = Informer(server, PRIORITY_CLASSES, None, Store(), lambda kind, change: None)  # type: ignore[arg-type]
    followed.start()
    until = time.monotonic() + LIMIT
    while server.lists < 3 and time.monotonic() < until:
        threading.Event().wait(0.01)
    followed.stopped.set()
    followed.join(LIMIT)
    assert server.lists >= 3
    assert server.watches >= informer.PATIENCE * (server.lists - 1)


def test_watch_takes_the_new_token(server: WatchServer, tmp_path: Path) -> None:
    """Contract: the kubelet replaces the token's file; the next watch has the new one, without a restart."""
    server.token = "first"
    (tmp_path / "token").write_text("first\n")
    server.lists = [(10, [item("a", 1)])]
    found = Followed(server, tmp_path, {"tokenFile": "token"})
    found.start()
    server.token = "second"
    (tmp_path / "token").write_text("second\n")
    server.watched.put(END)
    server.tell("ADDED", item("b", 12))
    found.until(lambda: found.names() == {"a", "b"})
    found.informer.stopped.set()
    server.watched.put(END)
