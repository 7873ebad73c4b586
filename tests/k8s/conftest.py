"""The cluster of each process of `make test`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.provision.cluster import Ready
from harness.settings import Settings


@pytest.fixture(scope="session")
def harness_settings(harness_settings: Settings, request: pytest.FixtureRequest) -> Settings:
    """Return the session's settings, with a cluster for each process of pytest-xdist but the first.

    The tests of one process stop what those of the other need.
    """
    worker = getattr(request.config, "workerinput", {}).get("workerid", "gw0")
    if worker == "gw0" or harness_settings.kubeconfig is not None:
        return harness_settings
    name = f"{harness_settings.cluster_name}-{worker}"
    return harness_settings.model_copy(update={"cluster_name": name})


@pytest.fixture
def theirs(cluster: Ready, harness_settings: Settings, tmp_path: Path) -> Settings:
    """Settings of a user who has a kubeconfig of their own, and an image that the nodes have."""
    kubeconfig = tmp_path / "theirs" / "kubeconfig"
    kubeconfig.parent.mkdir()
    shutil.copy(cluster.kind.kubeconfig, kubeconfig)
    changes = {"kubeconfig": kubeconfig, "worker_image": cluster.worker.tag, "keep_cluster": False}
    return harness_settings.model_copy(update=changes)
