"""What `harness status` found is one model, rendered as text and as JSON."""

from __future__ import annotations

from harness.cli.cluster_status import Status
from harness.cli.launch_status_text import LaunchStatus, PodStatus

NONE = Status(
    cluster="c",
    created_by_harness=False,
    phase=None,
    kept=None,
    used=False,
    kubeconfig=None,
    containers=[],
    paused=False,
    healthy=False,
    trouble=None,
    others=["c", "d"],
    disk={"free": 3 << 30, "cache": 2 << 20},
)


def test_status_without_a_cluster_suggests_harness_up() -> None:
    """Contract: what to do, the room on the disk and other clusters; nothing that could not be asked."""
    lines = NONE.text().splitlines()
    assert lines[0] == "cluster      c: none (`harness up` creates one)"
    assert lines[-1] == "others       d (--cluster-name)"
    assert "free; cache" in lines[-2]
    assert not {"nodes", "controllers", "queues", "launches"} & set(NONE.document())
    assert NONE.document()["phase"] is None


def test_a_healthy_cluster_with_a_launch() -> None:
    """Contract: every part that was asked is in both renderings, also when it is empty."""
    launch = LaunchStatus(
        namespace="n",
        kind="StatefulSet",
        name="j",
        state="1 of 1 pods ready",
        queue="Admitted: yes",
        pods=[PodStatus(name="p", ranks=[0, 1], state="Running on w")],
    )
    fields = {"created_by_harness": True, "phase": "ready", "healthy": True, "kept": True, "used": True}
    asked = {"nodes": {"w": "v1"}, "controllers": {"s/d": 1}, "queues": {}, "launches": [launch]}
    found = NONE.model_copy(update={**fields, **asked})
    assert found.text().splitlines()[:6] == [
        "cluster      c: healthy, ready, kept, in use",
        "node         w  v1",
        "controller   s/d  1 ready",
        "launch       n  StatefulSet j  1 of 1 pods ready",
        "  queue      Admitted: yes",
        "  pod        p  ranks 0 and 1  Running on w",
    ]
    assert found.document()["queues"] == {}
    assert found.document()["launches"] == [launch.model_dump()]


def test_a_cluster_that_is_of_no_use() -> None:
    """Contract: paused, not healthy and not the harness's own are told apart."""
    ours = NONE.model_copy(update={"created_by_harness": True, "phase": "ready", "trouble": "no answer"})
    assert "not healthy, ready: no answer" in ours.text()
    assert "paused" in ours.model_copy(update={"paused": True}).text()
    assert "not created by the harness" in NONE.model_copy(update={"containers": ["x"]}).text()
