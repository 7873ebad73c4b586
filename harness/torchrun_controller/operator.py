"""The operator: kopf watches, and its events do nothing but wake (waking.py)."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import kopf

from harness.torchrun_controller import names
from harness.torchrun_controller.models import FINISHED
from harness.torchrun_controller.reconcile import Key, Reconciler
from harness.torchrun_controller.session import connected
from harness.torchrun_controller.waking import Waking

log = logging.getLogger(__name__)
SERVER_SECONDS, CLIENT_SECONDS = 600, 660
"""A watch ends by itself, first on the server's side. Without a limit a frozen one is never noticed."""
ROUND_SECONDS = 30
"""Every job that is open is looked at so often, should an event be lost."""
MOVE_SECONDS = 5
LOGIN_SECONDS = 5
"""Between two logins: one that is refused again and again is not asked for without a pause."""


class Operator:
    """Watches jobs, queues, and what is made for them."""

    def __init__(
        self,
        reconciler: Reconciler,
        namespace: str | None = None,
        moves: Callable[[], None] = lambda: None,
    ) -> None:
        """`moves` is called every few seconds while the event loop turns."""
        self.reconciler, self.namespace, self.moves = reconciler, namespace, moves
        self.waking = Waking(reconciler.look)
        self.registry = kopf.OperatorRegistry()
        self._register()

    async def run(self, stop: threading.Event, ready: threading.Event | None = None) -> None:
        """Run until `stop` is set."""
        async with asyncio.TaskGroup() as group:
            running = (self.waking.run(), self._rounds(), self._move())
            own = [group.create_task(each) for each in running]
            try:
                await kopf.operator(
                    registry=self.registry,
                    settings=settings(),
                    standalone=True,
                    clusterwide=self.namespace is None,
                    namespaces=[self.namespace] if self.namespace else [],
                    stop_flag=stop,
                    ready_flag=ready,
                )
            finally:
                # kopf hears signals itself, and leaves a thread that waits for the flag.
                stop.set()
                for task in own:
                    task.cancel()

    async def _move(self) -> None:
        while True:
            self.moves()
            await asyncio.sleep(MOVE_SECONDS)

    async def _rounds(self) -> None:
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            try:
                jobs = await asyncio.to_thread(self.reconciler.cluster.jobs, self.namespace)
            except Exception as error:
                log.warning("the round of all jobs: %s", str(error)[:200])
                continue
            self._phases({(job["metadata"]["namespace"], job["metadata"]["name"]): job for job in jobs})
            for job in jobs:
                if (job.get("status") or {}).get("phase") not in FINISHED:
                    self.waking.wake(_key(job))

    def _phases(self, jobs: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
        """Count these jobs, and no others: a watch that was cut tells nothing of what went meanwhile."""
        phases = self.reconciler.metrics.phases
        for gone in phases.keys() - jobs.keys():
            del phases[gone]
        phases.update({key: _phase(job) for key, job in jobs.items()})

    def _register(self) -> None:
        kube, metrics = self.reconciler.cluster.kube, self.reconciler.metrics
        last = 0.0

        async def login(**_: Any) -> kopf.AiohttpSession:
            nonlocal last
            now = asyncio.get_running_loop().time()
            if last:
                await asyncio.sleep(max(0.0, last + LOGIN_SECONDS - now))
            last = asyncio.get_running_loop().time()
            return connected(kube, metrics.answered)

        async def job(*, body: kopf.Body, type: str | None = None, **_: Any) -> None:
            key = (body["metadata"]["namespace"], body["metadata"]["name"])
            if type == "DELETED":
                metrics.phases.pop(key, None)
            else:
                metrics.phases[key] = _phase(body)
            self.waking.wake(_key(body))

        async def queue(*, body: kopf.Body, **_: Any) -> None:
            metadata = body["metadata"]
            self.waking.wake(Key("queue", metadata["namespace"], metadata["name"]))
            for waiting in await asyncio.to_thread(self.reconciler.cluster.jobs, metadata["namespace"]):
                if (waiting.get("status") or {}).get("phase") in (None, "Pending"):
                    self.waking.wake(_key(waiting))

        async def part(*, body: kopf.Body, **_: Any) -> None:
            """A JobSet, a pod or a claim: its label names the job."""
            metadata = body["metadata"]
            name = (metadata.get("labels") or {}).get(names.JOB_LABEL)
            if name:
                self.waking.wake(Key("job", metadata["namespace"], name))

        async def workload(*, body: kopf.Body, **_: Any) -> None:
            for owner in body["metadata"].get("ownerReferences") or []:
                if owner["kind"] == "JobSet":
                    self.waking.wake(Key("job", body["metadata"]["namespace"], owner["name"]))

        async def local_queue(*, body: kopf.Body, **_: Any) -> None:
            self.waking.wake(Key("queue", body["metadata"]["namespace"], body["metadata"]["name"]))

        registry, ours = self.registry, {names.JOB_LABEL: kopf.PRESENT}
        kopf.on.login(registry=registry)(login)
        kopf.on.event(names.GROUP, names.VERSION, "torchrunjobs", registry=registry)(job)
        kopf.on.event(names.GROUP, names.VERSION, "torchrunqueues", registry=registry)(queue)
        kopf.on.event("jobset.x-k8s.io", "v1alpha2", "jobsets", registry=registry, labels=ours)(part)
        kopf.on.event("", "v1", "pods", registry=registry, labels=ours)(part)
        if not self.reconciler.cluster.kai:
            kopf.on.event("kueue.x-k8s.io", "v1beta2", "workloads", registry=registry)(workload)
            kopf.on.event("kueue.x-k8s.io", "v1beta2", "localqueues", registry=registry)(local_queue)


def settings() -> kopf.OperatorSettings:
    """Return kopf's settings: no Events of its own, no annotations, every watch and request with a limit."""
    found = kopf.OperatorSettings()
    found.posting.enabled = False
    found.scanning.disabled = True
    found.watching.server_timeout = SERVER_SECONDS
    found.watching.client_timeout = CLIENT_SECONDS
    found.watching.connect_timeout = 10
    found.networking.request_timeout = 30
    found.networking.connect_timeout = 10
    return found


def _key(job: Mapping[str, Any]) -> Key:
    return Key("job", job["metadata"]["namespace"], job["metadata"]["name"])


def _phase(job: Mapping[str, Any]) -> str:
    return str((job.get("status") or {}).get("phase") or "Unknown")
