"""`harness attach` to a recorded job with more than WHOLE_LOGS pods, whose logs are not all read in full."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import admitted_process
import attached_jobs as jobs
import pytest
from attached_jobs import Object, results
from bundle_api import BundleApi
from tracker_server import KEY, Server, create, log_metrics

from harness.attach import logs
from harness.attach.tracker import TrackerOptions
from harness.attach.tracker_key import SecretKey
from harness.evidence.schema.bundle import Verdict
from harness.report.finalize import Outcome
from harness.tracker.shared.keys import project_key

pytestmark = pytest.mark.nightly
Attach = Callable[..., Outcome]
NONCE = "uid-train"
PODS, STEPS = logs.WHOLE_LOGS + 1, 3
LINES = [f"step {number}" for number in range(logs.TAIL_LINES)]
"""Lines that each rank logs in addition to its recorder's lines. There are so many that the recorder's first
line is not in the tail."""
COMMAND = f"torchrun --nnodes={PODS} --nproc-per-node=1 train.py"


def recorded(rank: int) -> list[str]:
    """Return the log of a rank that logged to the run."""
    process = admitted_process.Process(rank, f"a{rank:07}", NONCE)
    first = list(process.written)
    for step in range(STEPS):
        process.log(f"loss/{rank}", step, step / 8, 100 + step)
    process.end(world=PODS, restart=0)
    return [*first, *LINES, *process.written[len(first) :]]


def pod(index: int) -> Object:
    found = jobs.pod(index, 0, when=5000)
    env = {"HARNESS_NONCE": NONCE, "HARNESS_RECORDER_MODE": "admitted"}
    found["spec"]["containers"][0]["env"] = [{"name": key, "value": value} for key, value in env.items()]
    found["spec"]["containers"][0]["command"] = ["bash", "-c", COMMAND]
    return found


@pytest.fixture
def judge(
    api: BundleApi, attached: Attach, server: Server, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Verdict]:
    """Return a function that attaches, with the project's key, to a job whose ranks logged every point."""
    with server.client() as client:
        run = create(client, f"many-{id(api)}")["runId"]
        monkeypatch.setattr(admitted_process, "RUN", str(run))
        lines = [
            json.dumps({"time": 100 + step, "step": step, "data": {f"loss/{rank}": step / 8}})
            for rank in range(PODS)
            for step in range(STEPS)
        ]
        assert log_metrics(client, run, "\n".join(lines)).is_success
        client.post("/api/runs/status/update", json={"runId": run, "status": "COMPLETED"})
    api.objects["job"] = [jobs.job("train", PODS, jobs.condition("Complete"))]
    api.objects["job"][0]["spec"]["template"]["spec"] = jobs.template(COMMAND)
    api.objects["pod"] = [pod(index) for index in range(PODS)]
    api.objects["node"] = [jobs.node(f"node-{index}") for index in range(PODS)]
    for index, each in enumerate(api.objects["pod"]):
        api.logs[each["metadata"]["name"], "main"] = jobs.stamped(*recorded(index))
    api.secrets["own"] = {"api-key": base64.b64encode(project_key(KEY, "e2e").encode()).decode()}

    def run_it() -> Verdict:
        named = TrackerOptions(server.url, "e2e", str(run), SecretKey.of("own"))
        return attached(tracker=named).verdict

    return run_it


def test_every_point_of_job_of_many_pods_is_judged(judge: Callable[[], Verdict]) -> None:
    """Contract: if the pods have a recorder, the logs of more than WHOLE_LOGS pods are read in full."""
    verdict = judge()
    checks = {each.name: each.explanation for each in verdict.checks if each.result != "PASS"}
    assert verdict.verdict == "PASS", checks
    assert f"All {PODS * STEPS} points of the ranks are in run" in verdict.explanation


@pytest.mark.parametrize(("name", "limit"), [("MAX_BYTES", 1), ("MAX_LOG_BYTES", 200)])
def test_logs_beyond_the_limit_of_bytes_are_unknown(
    judge: Callable[[], Verdict], monkeypatch: pytest.MonkeyPatch, name: str, limit: int
) -> None:
    """Contract: the verdict names a log of which only the end was read, and its rank does not pass."""
    monkeypatch.setattr(logs, name, limit)
    verdict = judge()
    assert verdict.verdict == "UNKNOWN"
    assert results(verdict)["logs"] == "UNKNOWN"
    explanation = next(each.explanation for each in verdict.checks if each.name == "logs")
    assert f"only the last {logs.TAIL_LINES} lines were read" in explanation


def test_end_of_log_without_recorder_is_enough(api: BundleApi, attached: Attach) -> None:
    """Contract: logs without a recorder are not read in full, so attaching to many pods is fast."""
    api.objects["job"] = [jobs.job("train", PODS, jobs.condition("Complete"))]
    api.objects["pod"] = [jobs.pod(index, 0, when=5000) for index in range(PODS)]
    for each in api.objects["pod"]:
        api.logs[each["metadata"]["name"], "main"] = jobs.stamped(*LINES, "done")
    assert results(attached().verdict)["logs"] == "UNKNOWN"
