"""One launch on a cluster with VictoriaLogs, and konduktor's command line in its namespace."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from harness import run as running
from harness.context import RunContext
from harness.core.kubernetes import Kube
from harness.evidence.io.reader import Bundle
from harness.fixtures.plugin import progress
from harness.launch.konduktor.job_file import JobFile
from harness.launch.namespaces import namespace_of
from harness.provision.cluster import Ready
from harness.provision.controllers import victoria_logs
from harness.provision.kind.cluster import KindCluster
from harness.settings import Settings

BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class LoggedLaunch:
    """The bundle of a launch that passed, the name of its JobSet, and its cluster and namespace."""

    bundle: Bundle
    job: str
    cluster: str
    namespace: str

    def konduktor(self, *words: str) -> list[str]:
        """Return a command line of konduktor in the namespace of the launch."""
        where = ["--cluster-name", self.cluster, "--namespace", self.namespace]
        return [str(BIN / "harness"), "konduktor", *where, *words]


@contextmanager
def logging_cluster(cluster: Ready, settings: Settings) -> Iterator[Ready]:
    """Yield the cluster with VictoriaLogs. Remove it again unless it was there, and what the block kept."""
    kube, kind = cluster.kube, KindCluster(settings)
    there = kube.get("v1", "Namespace", victoria_logs.NAMESPACE) is not None
    before = kind.state()
    with running.cluster(
        RunContext(settings=settings.model_copy(update={"logs": True}), progress=progress)
    ) as it:
        yield it
        after = kind.state()
        if before is not None and after is not None:
            kind.save(replace(after, kept=before.kept))
    if not there:
        remove(kube)


def remove(kube: Kube) -> None:
    """Delete VictoriaLogs and its collector, and wait until they are gone."""
    for kind in ("ClusterRole", "ClusterRoleBinding"):
        kube.delete("rbac.authorization.k8s.io/v1", kind, victoria_logs.ROLE)
    kube.delete("v1", "Namespace", victoria_logs.NAMESPACE)
    kube.wait(
        f"the end of namespace {victoria_logs.NAMESPACE}",
        "v1",
        "Namespace",
        lambda seen: "still there" if victoria_logs.NAMESPACE in seen else None,
        seconds=90,
    )


def launch(ready: Ready, settings: Settings) -> LoggedLaunch:
    """Launch the main job, which passes."""
    job = JobFile.load(Path("jobs/multinode.yaml"))
    outcome = running.launch(job, RunContext(settings=settings, progress=progress), ready)
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation
    bundle = Bundle.open(outcome.bundle)
    assert bundle.manifest is not None
    assert bundle.manifest.launch is not None
    name = str(bundle.manifest.launch.object_name)
    return LoggedLaunch(bundle, name, ready.cluster.name, namespace_of(bundle.manifest.nonce))
