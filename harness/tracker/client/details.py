"""Read single runs through Pluto's public read API, which the embedded tracker serves as well."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import httpx

from harness.evidence.schema.tracker import TrackerRun
from harness.tracker.client.retry import RejectedError, ask

_DISPLAY_ID = re.compile(r"[A-Za-z0-9]+-[0-9]+")
_ABSENT = (403, 404)
"""HTTP status codes for a run that does not exist, or that the key cannot access."""


def is_tracker_id(word: str) -> bool:
    """Return whether a word has the format of a run id (such as 17) or a display id (such as E2E-17)."""
    return word.isascii() and (word.isdecimal() or _DISPLAY_ID.fullmatch(word) is not None)


def by_id(client: httpx.Client, ids: Iterable[int], project: str, seconds: float) -> list[TrackerRun]:
    """Return the runs with these tracker ids.

    Runs that do not exist, or that the key cannot access, are left out.
    """
    runs = (_details(client, f"api/runs/details/{run_id}", project, seconds) for run_id in ids)
    return [with_history(client, run, project, seconds) for run in runs if run is not None]


def by_word(client: httpx.Client, word: str, project: str, seconds: float) -> TrackerRun | None:
    """Return the run with this tracker id (17) or display id (E2E-17), or None if there is no such run."""
    if word.isascii() and word.isdecimal():
        return next(iter(by_id(client, [int(word)], project, seconds)), None)
    if not is_tracker_id(word):
        return None
    run = _details(client, f"api/runs/details/by-display-id/{word}", project, seconds)
    return None if run is None else with_history(client, run, project, seconds)


def with_history(client: httpx.Client, run: dict[str, Any], project: str, seconds: float) -> TrackerRun:
    """Return a run, built from the details in the response and from the run's status history, which this
    function reads."""
    history = ask(client, "api/runs/status/history", {"runId": run["id"]}, seconds)
    return TrackerRun(
        run_id=int(run["id"]),
        external_id=run.get("externalId"),
        project=run.get("projectName") or project,
        name=run.get("name") or "",
        status=run["status"],
        created_at=run["createdAt"],
        display_id=run.get("displayId"),
        status_history=history.get("events", []),
    )


def _details(client: httpx.Client, path: str, project: str, seconds: float) -> dict[str, Any] | None:
    try:
        return ask(client, path, {"projectName": project or None}, seconds)
    except RejectedError as error:
        if error.response.status_code in _ABSENT:
            return None
        raise
