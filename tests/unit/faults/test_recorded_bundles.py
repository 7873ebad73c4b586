"""A small copy of a bundle holds all that a judge reads, and nothing that identifies the machine."""

from __future__ import annotations

import json
from pathlib import Path

import bundles
from bundles import at

from harness.evidence import Bundle
from harness.faults.recorded_bundles import extract, record
from harness.judge import judge

BOOTS = ("2f9e1c5a-7a56-4a3a-9d53-0f6f3c1f7a11", "c7a1d5f0-1b52-4c3e-8a44-93a1f0b2d6e7")


def node(job: bundles.Job, when: float, boot: str, manager: str) -> None:
    written = [{"manager": manager, "operation": "Update", "time": at(when)}]
    metadata = {"name": "e2e-worker2", "uid": "n", "labels": {"at": str(when)}, "managedFields": written}
    info = {"bootID": boot, "machineID": "the-machine", "systemUUID": "the-system"}
    job.see("node", when, {"kind": "Node", "metadata": metadata, "spec": {}, "status": {"nodeInfo": info}})


def test_a_copy_says_what_changed_and_who_changed_it(tmp_path: Path) -> None:
    """Contract: the judges list the same changes of a copy, and its boot ids differ without being known."""
    job = bundles.healthy()
    node(job, 1, BOOTS[0], "kubelet")
    node(job, 9, BOOTS[1], "kubectl-label")
    whole = job.write(tmp_path / "whole")
    archive = tmp_path / "copy.tar.xz"
    record(whole.path, archive, {})
    copy = Bundle.open(extract(archive, tmp_path / "copy"))

    def explanation(bundle: Bundle) -> str:
        return next(check.explanation for check in judge(bundle).checks if check.name == "disturbances")

    for text in (explanation(whole), explanation(copy)):
        assert "edited by kubectl-label (metadata.labels)" in text
        assert "rebooted (boot id" in text
    kept = json.dumps([seen.object for seen in copy.history("node")])
    assert not any(word in kept for word in (*BOOTS, "the-machine", "the-system"))
