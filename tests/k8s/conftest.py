"""The cluster of each process of `make test`."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from foreign_jobs import ForeignJobs
from logged_launch import LoggedLaunch, launch, logging_cluster
from torchrun_team import Controller, Team

from harness.context import RunContext
from harness.fixtures.plugin import progress
from harness.launch import recorder_admission as admission
from harness.launch import recorder_policy as policy
from harness.provision.cluster import Ready
from harness.settings import Settings

CLUSTER = pytest.StashKey[tuple[Ready, Settings]]()
"""The session's cluster and settings, while tests need the cluster."""


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


@pytest.fixture(scope="session")
def cluster(cluster: Ready, harness_settings: Settings, request: pytest.FixtureRequest) -> Ready:
    """Return the session's cluster, and let `pytest_runtest_teardown` find it."""
    request.config.stash[CLUSTER] = cluster, harness_settings
    return cluster


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Delete the cluster of `make test` after the last test on it. An idle cluster uses a third of a CPU.

    The session's fixture then has nothing left to delete. A cluster that the user keeps is not deleted.
    """
    result = yield
    more = nextitem is None or nextitem.path.is_relative_to(Path(__file__).parent)
    stash = item.config.stash
    if not more and CLUSTER in stash and "smoke or" in item.config.option.markexpr:
        ready, settings = stash[CLUSTER]
        ready.cluster.leave(RunContext(settings=settings, progress=progress), ready)
        del stash[CLUSTER]
    return result


@pytest.fixture
def theirs(cluster: Ready, harness_settings: Settings, tmp_path: Path) -> Settings:
    """Settings of a user who has a kubeconfig of their own, and an image that the nodes have."""
    kubeconfig = tmp_path / "theirs" / "kubeconfig"
    kubeconfig.parent.mkdir()
    shutil.copy(cluster.kind.kubeconfig, kubeconfig)
    changes = {"kubeconfig": kubeconfig, "worker_image": cluster.worker.tag, "keep_cluster": False}
    return harness_settings.model_copy(update=changes)


@pytest.fixture(scope="module")
def logged_launch(cluster: Ready, harness_settings: Settings) -> Iterator[LoggedLaunch]:
    """A launch of the main job on the session's cluster with VictoriaLogs."""
    with logging_cluster(cluster, harness_settings) as ready:
        yield launch(ready, harness_settings)


@pytest.fixture(scope="module")
def foreign(
    cluster: Ready,
    harness_settings: Settings,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[ForeignJobs]:
    """Jobs of other people, in a namespace of their own. A module that looks into their pods sets PROBE."""
    name, folder = f"foreign-{secrets.token_hex(3)}", tmp_path_factory.mktemp("attach")
    probe = getattr(request.module, "PROBE", False)
    found = ForeignJobs(cluster.kube, name, cluster.worker.tag, folder, harness_settings, probe=probe)
    yield found
    found.remove()


@pytest.fixture
def policy_installed(foreign: ForeignJobs) -> Iterator[None]:
    """The policy records every new pod of the namespace."""
    admission.install(foreign.kube, [foreign.namespace])
    metadata = {"name": foreign.namespace, "labels": {policy.RECORD: "true"}}
    foreign.kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    foreign.until_recorded()
    yield
    admission.uninstall(foreign.kube)


@pytest.fixture(scope="module")
def team(cluster: Ready) -> Iterator[Team]:
    """A namespace of its own, with the CRDs installed."""
    found = Team(cluster.kube, f"torchrun-{secrets.token_hex(3)}", cluster.worker.tag)
    found.prepare()
    yield found
    found.remove()


@pytest.fixture(scope="module")
def controller(team: Team, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    """A controller that runs with its own rights alone. It ends with code 0 when it is asked to, and in all
    that time no right was missing.
    """
    folder = tmp_path_factory.mktemp("controller")
    log = folder / "log"
    found = Controller(team.account(folder), team.namespace, log)
    found.start()
    team.until_led()
    yield found
    ended = found.stop()
    text = log.read_text()
    print(text)
    assert ended == 0
    assert "forbidden: User" not in text
