"""One rank with the real Pluto client. Not a test: test_tracker_pluto.py runs it.

tracker_client.py log RANK STEPS   log loss/nodeR for each step, and what else a rank may log
tracker_client.py query PROJECT    print what pluto.query reads, as one JSON document
"""

import json
import math
import sys
from pathlib import Path


def log(rank: int, steps: int) -> None:
    import pluto

    run = pluto.init(name=f"node{rank}", config={f"rank{rank}": rank})
    for step in range(steps):
        run.log({f"loss/node{rank}": 1 / (step + 1), "shared/loss": rank + step / 8}, step=step)
    if rank == 0:
        run.log({"odd/nan": math.nan, "odd/inf": math.inf, "odd/minus": -math.inf, "odd/big": 2**70}, step=0)
        run.log({"note": "a string", "histogram": pluto.Histogram([1, 2, 2, 3])}, step=1)
        Path("report.txt").write_text("kept")
        run.log({"report": pluto.Artifact("report.txt")}, step=1)
    print("a line of output")
    run.finish()


def query(project: str) -> None:
    from pluto import query as pq

    listed = pq.list_runs(project)
    run = pq.get_run(project, listed[0]["id"])
    files = pq.get_files(project, run["id"])
    found = {
        "projects": pq.list_projects(),
        "runs": listed,
        "run": run,
        "same": pq.get_run(project, run["displayId"])["id"],
        "names": pq.get_metric_names(project, [run["id"]]),
        "loss": pq.get_metrics(project, run["id"], ["loss/node0"]),
        "window": pq.get_metrics(project, run["displayId"], ["loss/node0"], step_min=2, step_max=3),
        "two": pq.get_metrics(project, run["id"], ["loss/node0", "loss/node1"]),
        "odd": [point for point in pq.get_metrics(project, run["id"]) if point["metric"].startswith("odd/")],
        "statistics": pq.get_statistics(project, run["id"], ["loss/node0"]),
        "compare": pq.compare_runs(project, [run["id"]], "loss/node0"),
        "leaderboard": pq.leaderboard(project, "loss/node0"),
        "files": files,
        "logs": pq.get_logs(project, run["id"]),
    }
    if files:
        found["downloaded"] = pq.download_file(project, run["id"], files[0]["logName"], "back").read_text()
        Path("more.txt").write_text("more")
        pq.upload_file(project, run["id"], "more", "more.txt")
        found["uploaded"] = pq.download_file(project, run["id"], "more", "more.back").read_text()
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1] == "log":
        log(int(sys.argv[2]), int(sys.argv[3]))
    else:
        query(sys.argv[2])
