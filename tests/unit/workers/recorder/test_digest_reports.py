"""The sender of reports: it never raises, shows no key, and works at the end of an interpreter."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from interpreters import PYTHONS

from harness.workers.recorder.digest_reports import MAX_PENDING, Reports

WORKERS = Path(__file__).parents[4] / "harness" / "workers"
ENTRY = ("loss", 0, 1000, "A" * 22, 1, 2)


def reports(url: str = "http://127.0.0.1:1", key: str = "mlpi_secret_key", **more: Any) -> Reports:
    settings = {"url_api": url, "_auth": key, "_op_id": 17, "_op_name": "node0", "project": "e2e", **more}
    return Reports("uid", 0, "attempt0", SimpleNamespace(settings=SimpleNamespace(**settings)))


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://127.0.0.1:1", "mlpi_secret_key\nmore"),  # The text of the exception has the header.
        ("http://127.0.0.1:1", "mlpi_secret_key…"),
        ("http://user:mlpi_secret_key@127.0.0.1:1 /", "mlpi"),
        ("http://[mlpi_secret_key", "mlpi"),
        ("file:///etc/passwd?mlpi_secret_key", "mlpi"),
        ("mlpi_secret_key", "mlpi"),
    ],
)
def test_the_reason_of_a_failure_has_no_key(url: str, key: str) -> None:
    """Contract: logicalclocks/hopsworks-api#185: the error about an invalid header had the key in it."""
    sender = reports(url, key)
    for _ in range(5):
        sender.add([ENTRY], 0, 0, "")
        sender.wait()
    state = json.dumps(sender.state(0))
    assert sender.stopped
    assert "secret" not in state


def test_more_entries_than_queue_holds_are_dropped_and_counted() -> None:
    sender = reports()
    sender.add([ENTRY] * (MAX_PENDING + 7), 3, 0, "")
    assert sender.dropped == 10
    for _ in range(5):
        sender.add([], 0, 0, "")
        sender.wait()
    assert sender.state(0)["dropped"] == MAX_PENDING + 10
    sender.add([ENTRY], 0, 0, "")
    assert sender.state(1)["unsent"] == 1
    assert sender.dropped == MAX_PENDING + 11


def test_an_entry_is_unsent_until_its_report_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: mlflow/mlflow#3914: what is between the queue and the request is in neither, and not lost."""
    unsent = []
    body = Reports._body

    def watched(sender: Reports, entries: list[Any]) -> bytes:
        unsent.append((len(entries), sender.state(0)["unsent"]))
        return body(sender, entries)

    monkeypatch.setattr(Reports, "_body", watched)
    monkeypatch.setattr(Reports, "_post", lambda sender, _: sender.acknowledged[0] + bool(sender._in_report))
    sender = reports()
    sender.add([ENTRY] * 1500, 0, 0, "")
    sender.wait()
    assert unsent == [(0, 1500), (1000, 1500), (500, 500)]
    assert sender.state(0) | {"head": ""} == {
        "run": "17", "reports": 2, "head": "", "why": "", "unsent": 0, "dropped": 0, "failures": 0,
    }  # fmt: skip


AT_EXIT = """
import atexit, sys
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
from recorder.digest_reports import Reports
settings = SimpleNamespace(url_api="http://127.0.0.1:1", _auth="", _op_id=1, _op_name="n", project="p")
sender = Reports("uid", 0, "attempt0", SimpleNamespace(settings=settings))
def late():
    for _ in range(5):
        sender.add([("loss", 0, 1, "A", 1, 1)], 0, 0, "")
        sender.wait()
    print(sender.stopped)
atexit.register(late)
"""


@pytest.mark.parametrize("python", PYTHONS)
def test_points_that_are_logged_by_exit_handler_raise_nothing(python: str) -> None:
    """Contract: python/cpython#113964: Python 3.12 and later may start no thread in an exit handler."""
    done = subprocess.run(
        [python, "-c", AT_EXIT, str(WORKERS)], capture_output=True, text=True, timeout=60, check=True
    )
    assert not done.stderr
    assert done.stdout.startswith(("no thread: RuntimeError", "URLError: "))
