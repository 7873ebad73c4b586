"""The main job passes on a real cluster. tests/k8s/test_faults.py has the ways in which it does not.

One cluster serves all tests of a session. Each launch has its own namespace, queue and nonce.
"""

from __future__ import annotations

import pytest

from harness.evidence.io.reader import Bundle
from harness.evidence.schema.processes import ProcessEnd, ProcessGroup
from harness.fixtures.plugin import Launch
from harness.judge import judge
from harness.launch.konduktor.job_file import JobFile

pytestmark = pytest.mark.e2e


def test_a_healthy_job_passes(launch: Launch, job: JobFile) -> None:
    """Each rank runs on its own node, and every point of both is in the one run."""
    outcome = launch(job)
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation
    assert all(check.result == "PASS" for check in outcome.verdict.checks)
    bundle = Bundle.open(outcome.bundle)
    assert judge(bundle) == outcome.verdict
    events = [event for _, event in bundle.processes()]
    ranks = {event.id for event in events if isinstance(event, ProcessGroup)}
    used = [event.gpu for event in events if isinstance(event, ProcessEnd) and event.id in ranks]
    assert used == [False, False]


def test_several_processes_per_node_are_all_judged(launch: Launch, job: JobFile) -> None:
    """World size 4 on two nodes: points of four ranks, and two termination messages."""
    job = job.with_(run=job.document["run"].replace("--nproc_per_node=1", "--nproc_per_node=2"))
    outcome = launch(job)
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation
    manifest = Bundle.open(outcome.bundle).manifest
    assert manifest is not None
    assert manifest.expected is not None
    assert manifest.expected.ranks == 4
