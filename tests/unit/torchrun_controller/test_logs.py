"""The log as people read it, and as programs do."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

from harness.torchrun_controller.runtime.logging_setup import Json, Text, about


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    found = logging.LogRecord("harness.x", logging.INFO, "x.py", 1, message, args, None)
    found.__dict__.update(extra)
    return found


def test_a_record_is_one_json_line() -> None:
    """Contract: one object on one line, whatever is in the message, with whose line it is."""
    found = record("two\nlines of %s", "x", **about("job", "team", "demo", "u-1"))
    line = Json().format(found)
    assert "\n" not in line
    document = json.loads(line)
    assert document.pop("time").endswith("Z")
    assert document == {
        "level": "info",
        "logger": "harness.x",
        "message": "two\nlines of x",
        "namespace": "team",
        "job": "demo",
        "uid": "u-1",
    }


def test_line_of_nobody() -> None:
    """Contract: a line about no object has no such fields; an error has its traceback as one field."""
    try:
        raise ValueError("wrong")
    except ValueError:
        found = record("failed", exc_info=sys.exc_info())
    document = json.loads(Json().format(found))
    assert not {"namespace", "job", "queue", "uid"} & document.keys()
    assert document["error"].endswith("ValueError: wrong")


def test_a_text_line_names_its_object() -> None:
    """Contract: the object stands before the message."""
    line = Text().format(record("looks", **about("queue", "team", "cpu")))
    assert line.endswith("INFO harness.x team/cpu: looks")
    assert Text().format(record("looks")).endswith("INFO harness.x looks")


def test_end_of_the_process_is_a_line_too() -> None:
    """Contract: what nobody caught is a JSON line, not a bare traceback."""
    program = (
        "from harness.torchrun_controller.runtime import logging_setup as logs; logs.setup('json'); 1 / 0"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    document = json.loads(done.stderr)
    assert document["level"] == "critical"
    assert document["message"] == "the controller ends: division by zero"
