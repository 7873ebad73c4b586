"""Features on which users of hosted Pluto rely, with the unmodified client: forks, filters, sorting and kinds
of data. The sdist of pluto-ml contains no tests. These tests correspond to the client's public tests that
concern the server.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tracker_server import KEY, Server, finished

from harness.tracker.shared.keys import project_key

PARENT = {"model": "resnet50", "lr": 0.001, "epochs": 100, "optim": {"name": "sgd", "momentum": 0.9}}


@pytest.fixture(scope="module")
def seen(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("suite")
    (output,) = finished(
        server.pluto(home, script="tracker_scenarios.py", KONDUKTOR_JOB_NAME="suite-1"), seconds=240
    )
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def test_a_fork_has_what_its_parent_had(seen: dict[str, Any]) -> None:
    """Contract: a fork inherits its parent's config, which its own config overrides, and inherits tags only
    on request."""
    forks = seen["forks"]
    assert forks["asked"]["plain"] == [forks["parent"], 5]
    assert forks["by_name"] == forks["parent"]
    assert forks["config"]["plain"] == PARENT
    assert forks["config"]["override"] == {
        **PARENT,
        "lr": 0.01,
        "optim": {"name": "sgd", "momentum": 0.5},
    }
    assert forks["config"]["own"] == {"custom": True}
    assert forks["config"]["chain"] == PARENT
    assert {"baseline", "fork-parent", "child"} <= set(forks["tags"]["tagged"])
    assert "fork-parent" not in forks["tags"]["plain"]
    assert set(forks["status"].values()) == {"COMPLETED"}


def test_a_fork_is_read_with_its_parents_points(seen: dict[str, Any]) -> None:
    """Contract: a fork includes its parent's points up to the fork's step. A fork of a fork includes the
    first run's points up to the earlier of the two steps."""
    points = seen["forks"]["points"]
    assert points["parent"] == list(range(10))
    assert points["plain"] == [0, 1, 2, 3, 4, 5]
    assert points["chain"] == [0]
    assert points["by_name"] == [0, 1]


def test_a_fork_of_no_run_is_refused(seen: dict[str, Any]) -> None:
    assert "Fork parent run 987654321 not found" in seen["forks"]["unknown"]
    assert "must be provided together" in seen["forks"]["no_step"]


def test_runs_are_sorted_by_config_and_last_metric_value(seen: dict[str, Any]) -> None:
    """Contract: runs are sorted by config or by a metric's last value. A run without it is last in both
    directions."""
    lists = seen["lists"]
    assert lists["by_config"] == ["sweep-b", "sweep-c", "sweep-a", "sweep-broken"]
    assert lists["by_metric"] == ["sweep-a", "sweep-c", "sweep-b", "sweep-broken"]
    assert lists["newest"] == ["sweep-broken", "sweep-c"]
    assert lists["paged"] == ["sweep-b", "sweep-a"]


def test_runs_are_filtered(seen: dict[str, Any]) -> None:
    lists = seen["lists"]
    assert lists["finished"] == ["sweep-c", "sweep-b", "sweep-a"]
    assert lists["failed"] == ["sweep-broken"]
    assert lists["low"] == ["sweep-c", "sweep-b"]
    assert lists["nested"] == ["sweep-c", "sweep-a"]
    assert lists["not"] == ["parent"]
    assert lists["metric"] == ["sweep-a"]
    assert {"sweep-a", "sweep-b", "sweep-c"} <= set(lists["alive"])
    assert lists["stale"] == []
    assert lists["konduktor"] == ["sweep-a"]


def test_a_wrong_filter_is_told(seen: dict[str, Any]) -> None:
    state, pattern, time = seen["lists"]["wrong"]
    assert state[0] == pattern[0] == time[0] == 400
    assert "unknown state" in state[1]
    assert "(?=" in pattern[1]
    assert "expected a time" in time[1]


def test_each_kind_of_data_can_be_read_back(server: Server, seen: dict[str, Any]) -> None:
    """Contract: data that Pluto's read API does not return is returned here, as it was sent."""
    run = seen["kinds"]
    with server.client() as client:
        rows = client.get(f"/api/runs/data?runId={run}").json()
        alerts = client.get(f"/api/runs/alerts?runId={run}").json()["alerts"]
        files = client.get(f"/api/runs/files?runId={run}&projectName=suite").json()["files"]
        details = client.get(f"/api/runs/{run}").json()
        only = client.get(f"/api/runs/data?runId={run}&dataType=TABLE").json()
    kinds = {row["logName"]: row for row in rows["data"]}
    assert rows["total"] == 3
    assert {name: row["dataType"] for name, row in kinds.items()} == {
        "weights": "HISTOGRAM",
        "table": "TABLE",
        "words": "string-series",
    }
    histogram = json.loads(kinds["weights"]["data"])
    assert (sum(histogram["freq"]), histogram["bins"]) == (100, {"min": 0.0, "max": 99.0, "num": 64})
    assert json.loads(kinds["table"]["data"])["table"] == [["a", 1.0], ["b", 2.0]]
    assert kinds["words"]["data"] == "first words"
    assert [row["logName"] for row in only["data"]] == ["table"]
    assert [(one["title"], one["body"], one["level"]) for one in alerts] == [("loss", "loss is high", "WARN")]
    assert [(one["logName"], one["caption"]) for one in files] == [("picture", "black")]
    assert details["config"] == {"lr": 1, "later": 2}
    assert {"added", "konduktor"} <= set(details["tags"])


def test_notes_of_a_run_are_kept(server: Server, seen: dict[str, Any]) -> None:
    run = seen["kinds"]
    with server.client() as client:
        for text in ("first", "second\n<b>"):
            answer = client.post("/api/runs/notes/update", json={"runId": run, "notes": text})
            assert answer.json() == {"success": True}
        assert client.get(f"/api/runs/{run}").json()["notes"] == "second\n<b>"
        assert client.post("/api/runs/notes/update", json={"runId": run, "notes": 3}).status_code == 400


def test_the_client_works_with_the_key_of_a_project(
    server: Server, seen: dict[str, Any], tmp_path: Path
) -> None:
    """Contract: the client can write and read its own project, and all requests for another project are
    rejected."""
    key = project_key(KEY, "e2e")
    finished(server.pluto(tmp_path / "r", "log", "0", "3", PLUTO_RUN_ID="of-a-project", PLUTO_API_KEY=key))
    with server.client() as own:
        runs = own.get("/api/runs/list?projectName=e2e").json()["runs"]
        mine = next(run for run in runs if run["externalId"] == "of-a-project")
    assert mine["status"] == "COMPLETED"
    (output,) = finished(server.pluto(tmp_path / "q", "query", "e2e", PLUTO_API_KEY=key))
    assert [one["name"] for one in json.loads(output.splitlines()[-1])["projects"]] == ["e2e"]
