"""The scenarios in the Pluto client's own tests against hosted Pluto. Not a test: test_tracker_client.py runs
it.

tracker_scenarios.py    do all of it, print what was seen as one JSON document on the last line
"""

import json
from typing import Any

import numpy as np
import pluto
from pluto import query as pq

PROJECT = "suite"
PARENT = {"model": "resnet50", "lr": 0.001, "epochs": 100, "optim": {"name": "sgd", "momentum": 0.9}}


def ended(name: str, steps: int = 0, **options: Any) -> Any:
    run = pluto.init(project=PROJECT, name=name, **options)
    for step in range(steps):
        run.log({"val/loss": options.get("config", {}).get("lr", 1) * (10 - step)}, step=step)
    run.finish()
    return run


def rows(run: int) -> list[dict[str, Any]]:
    """Return the points of val/loss, as the client returns them with and without pandas."""
    found = pq.get_metrics(PROJECT, run, metric_names=["val/loss"])
    listed: list[dict[str, Any]] = found if isinstance(found, list) else found.to_dict("records")
    return listed


def refused(**options: Any) -> str:
    """Return the error of an init call that the server must reject."""
    try:
        pluto.init(project=PROJECT, name="refused", **options)
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


def forks() -> dict[str, Any]:
    parent = ended("parent", 10, config=PARENT, tags=["baseline", "fork-parent"])
    number = parent.settings._op_id
    plain = ended("plain", fork_run_id=number, fork_step=5)
    override = ended(
        "override", fork_run_id=number, fork_step=5, config={"lr": 0.01, "optim": {"momentum": 0.5}}
    )
    own = ended("own", fork_run_id=number, fork_step=5, inherit_config=False, config={"custom": True})
    tagged = ended("tagged", fork_run_id=number, fork_step=5, inherit_tags=True, tags=["child"])
    shown = pq.get_run(PROJECT, number)["displayId"]
    chain = ended("chain", fork_run_id=plain.settings._op_id, fork_step=0)
    by_name = ended("by-display-id", fork_run_id=shown, fork_step=1)
    runs = {"plain": plain, "override": override, "own": own, "tagged": tagged, "chain": chain}
    read = {name: pq.get_run(PROJECT, run.settings._op_id) for name, run in runs.items()}
    points = {
        name: [row["step"] for row in rows(run.settings._op_id)]
        for name, run in (("parent", parent), ("plain", plain), ("chain", chain), ("by_name", by_name))
    }
    return {
        "parent": number,
        "points": points,
        "asked": {name: [run.fork_run_id, run.fork_step] for name, run in runs.items()},
        "by_name": by_name.fork_run_id,
        "config": {name: run["config"] for name, run in read.items()},
        "tags": {name: run["tags"] for name, run in read.items()},
        "status": {name: run["status"] for name, run in read.items()},
        "unknown": refused(fork_run_id=987654321, fork_step=1),
        "no_step": refused(fork_run_id=number),
    }


def lists() -> dict[str, Any]:
    def names(**options: Any) -> list[str]:
        return [run["name"] for run in pq.list_runs(PROJECT, **options)]

    for name, lr in (("sweep-a", 0.3), ("sweep-b", 0.1), ("sweep-c", 0.2)):
        ended(name, 3, config={"lr": lr, "optim": {"name": name[-1]}}, tags=["sweep", name])
    sweep = {"tags": ["sweep"]}
    broken = pluto.init(project=PROJECT, name="sweep-broken", tags=["sweep"])
    broken.settings._op_status = 1
    broken.finish(code=1)
    return {
        "by_config": names(**sweep, sort="+config.lr.value"),
        "by_metric": names(**sweep, sort="-summary_metrics.val/loss"),
        "newest": names(**sweep, limit=2),
        "paged": names(**sweep, limit=2, offset=2),
        "finished": names(filters={"$and": [{"state": "finished"}, {"tags": {"$in": ["sweep"]}}]}),
        "failed": names(filters={"status": {"$nin": ["COMPLETED", "running"]}}),
        "low": names(filters={"config.lr": {"$gt": 0.05, "$lt": 0.25}}),
        "nested": names(
            filters={"$or": [{"config.optim.name": "a"}, {"config.optim.name": {"$regex": "^[cd]$"}}]}
        ),
        "not": names(filters={"$not": {"name": {"$regex": "SWEEP"}}}, search="par"),
        "metric": names(**sweep, filters={"summaryMetrics.val/loss": {"$gte": 2}}),
        "alive": names(filters={"heartbeat_at": {"$gte": "2020-01-01T00:00:00Z"}}, search="sweep"),
        "stale": names(filters={"heartbeat_at": {"$lt": "2020-01-01T00:00:00Z"}}),
        "konduktor": names(
            filters={"systemMetadata.konduktor.job_name": {"$regex": "^suite-"}}, search="sweep-a"
        ),
        "wrong": wrong(),
    }


def wrong() -> list[Any]:
    """Return the server's error messages for invalid filters that the client accepts."""
    seen: list[Any] = []
    for filters in (
        {"state": "sleeping"},
        {"config.a": {"$regex": "(?=a)"}},
        {"heartbeat_at": {"$gt": "soon"}},
    ):
        try:
            pq.list_runs(PROJECT, filters=filters)
        except pq.QueryError as error:
            seen.append([error.status_code, str(error)])
    return seen


def kinds() -> int:
    """Return the number of a run that logged one value of each kind."""
    run = pluto.init(project=PROJECT, name="kinds", config={"lr": 1})
    run.log({"weights": pluto.Histogram(np.arange(100.0))}, step=3)
    run.log({"table": pluto.Table(data=[["a", 1.0], ["b", 2.0]], columns=["name", "value"])}, step=3)
    run.log({"words": "first words"}, step=4)
    run.log({"picture": pluto.Image(np.zeros((4, 4, 3), dtype=np.uint8), caption="black")}, step=5)
    run.alert(message="loss is high", title="loss", level="WARN")
    run.update_config({"later": 2})
    run.add_tags(["added"])
    run.finish()
    return int(run.settings._op_id)


if __name__ == "__main__":
    found = {"forks": forks(), "lists": lists(), "kinds": kinds()}
    print(json.dumps(found))
