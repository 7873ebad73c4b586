"""Store a job's code in Secrets in the job's namespace.

The job's pods fetch the code from these Secrets, even if no client is running.
"""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass

from harness.cli.torchrun.jobs import Jobs, call_api
from harness.core.errors import HarnessError, UsageError
from harness.core.kubernetes import Object, condition
from harness.core.progress import Progress
from harness.torchrun_controller.api import names
from harness.torchrun_sync.job_sync import MAX_SCANS, Fleet, always_changes
from harness.torchrun_sync.packing import pack
from harness.torchrun_sync.pod.stored_archive import split
from harness.torchrun_sync.pods import target
from harness.torchrun_sync.sender import Changed
from harness.torchrun_sync.tree import Tree, Walker

SHOWN = 3
POLL_SECONDS = 0.5
POD_CREATED_SECONDS = 20.0
"""The maximum number of seconds to wait until the controller has created the pod that stores a job's code."""
POD_RUNNING_SECONDS = 300.0
"""The maximum number of seconds to wait until the pod that stores the code is running, including the time to
pull its image and to bind its volume claim."""
PART_BYTES = 1_000_000
"""The maximum number of bytes of code in one Secret. Kubernetes limits the size of a Secret to 1 MiB."""


@dataclass(frozen=True)
class Packed:
    """A snapshot of the code in a folder, packed for storage in Secrets."""

    tree: Tree
    parts: tuple[bytes, ...] | None
    """The packed code, divided into one part per Secret. None if the code is too large for Secrets."""


def pack_code(walker: Walker, generation: int) -> Packed:
    """Return the folder's code, divided into parts. Raises HarnessError if a file keeps changing."""
    changed = ""
    for _ in range(MAX_SCANS):
        tree = walker.scan()
        try:
            archive = pack(tree, generation, PART_BYTES * names.MAX_PARTS)
        except Changed as change:
            changed = change.path
            continue
        return Packed(tree, None if archive is None else tuple(split(archive, PART_BYTES)))
    raise always_changes(changed)


@dataclass(frozen=True)
class CodeStore:
    """Creates, replaces and deletes the Secrets that contain the code of jobs in one namespace."""

    jobs: Jobs
    progress: Progress

    def store(self, job: Object, packed: Packed, generation: int, walker: Walker) -> bool:
        """Create or replace the Secrets with a job's code, and annotate the job.

        Return whether the code is stored.

        Code that is too large for Secrets is sent to the pod that stores the code, if the job has such a pod.
        If the code cannot be stored, the previously stored code is deleted, so that later pods wait for a
        sync instead of running that code.
        """
        parts, reason = packed.parts or (), ""
        if packed.parts is None:
            reason = self._send_to_archive_pod(job, packed, generation, walker)
        try:
            for index, part in enumerate(parts):
                self._put(job, index, part)
        except HarnessError as error:
            parts = ()
            reason = f"{error.message}; permission to get, create, patch and delete Secrets is required"
        for index in range(len(parts), parts_of(job)):
            if self._is_ours(job, index):
                self._delete(job, index)
        self.jobs.annotate(
            job["metadata"]["name"],
            {
                names.PARTS_ANNOTATION: str(len(parts)),
                names.GENERATION_ANNOTATION: str(generation),
                names.STORED_ANNOTATION: "false" if reason else "true",
            },
        )
        if parts:
            self.progress(
                f"code {packed.tree.digest[:12]} is kept in the cluster: {packed.tree.size / 1e6:.1f} MB, "
                f"{sum(map(len, parts)) / 1e6:.1f} MB compressed"
            )
        elif not reason:
            digest, size = packed.tree.digest[:12], packed.tree.size / 1e6
            self.progress(
                f"code {digest} is kept in the cluster, by the pod {_archive_pod(job)}: {size:.1f} MB"
            )
        if reason:
            self.progress(
                f"the code is not kept in the cluster, so later pods will wait for a sync: {reason}"
            )
        return not reason

    def _send_to_archive_pod(self, job: Object, packed: Packed, generation: int, walker: Walker) -> str:
        """Send the code to the pod that stores it.

        Return "", or the reason why the code could not be sent.
        """
        limit = PART_BYTES * names.MAX_PARTS // 1_000_000
        large = (
            f"the compressed code is larger than {limit} MB; its largest files are {_largest(packed.tree)}"
        )
        kube, namespace, name = self.jobs.kube, self.jobs.namespace, _archive_pod(job)
        start, announced = time.monotonic(), False
        while True:
            pod = call_api(lambda: kube.get("v1", "Pod", name, namespace))
            archive_target = target(pod) if pod else None
            if archive_target is not None:
                break
            waited = time.monotonic() - start
            if pod is None and (waited > POD_CREATED_SECONDS or self._has_none(job)):
                return (
                    f"{large}. List data files in .torchrunignore, or move them to a volume claim. If the "
                    "queue sets "
                    "storage.workspace.enabled, a pod stores the code of a job with several nodes"
                )
            if waited > POD_RUNNING_SECONDS:
                phase = (pod or {}).get("status", {}).get("phase")
                return (
                    f"{large}. The pod {name}, which should store the code, is {phase} "
                    f"after {POD_RUNNING_SECONDS:g} s"
                )
            if pod is not None and not announced:
                self.progress(f"waiting for the pod {name}, which stores the code")
                announced = True
            time.sleep(POLL_SECONDS)
        ready = job["metadata"]["annotations"][names.WORKSPACE_ANNOTATION]
        with Fleet(
            {name: archive_target.open(kube, namespace)}, progress=self.progress, ready=ready
        ) as fleet:
            synced = fleet.sync(walker, generation=generation)
        return "" if synced.tree == packed.tree.digest else "a file changed during the upload; sync again"

    def _has_none(self, job: Object) -> bool:
        """Return whether the controller has reconciled the job without creating a pod to store its code."""
        now = self.jobs.get(job["metadata"]["name"])
        reason, status = condition(now, "WorkspaceReady").get("reason"), now.get("status") or {}
        return bool(status.get("jobID")) or status.get("phase") == "Queued" or reason == names.UPLOADING

    def _put(self, job: Object, index: int, part: bytes) -> None:
        metadata = job["metadata"]
        name = names.workspace_part(metadata["name"], index)
        existing = self._find(job, index)
        owner_uid = _job_uid(existing)
        if existing is not None and owner_uid is None:
            raise UsageError(
                f"Secret {name} already exists, but does not belong to a TorchrunJob; rename the Secret or "
                "the job"
            )
        # This Secret was left behind by a deleted job with the same name.
        if existing is not None and owner_uid != metadata["uid"]:
            self._delete(job, index)
        owner = {
            "apiVersion": names.API,
            "kind": names.JOB_KIND,
            "name": metadata["name"],
            "uid": metadata["uid"],
        }
        document = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": f"{names.GROUP}/workspace",
            "metadata": {
                "name": name,
                "namespace": self.jobs.namespace,
                "labels": {names.JOB_LABEL: metadata["name"], names.PART_LABEL: metadata["uid"]},
                "ownerReferences": [owner],
            },
            "data": {names.PART_KEY: base64.b64encode(part).decode()},
        }
        call_api(lambda: self.jobs.kube.apply(document))

    def _find(self, job: Object, index: int) -> Object | None:
        name = names.workspace_part(job["metadata"]["name"], index)
        return call_api(lambda: self.jobs.kube.get("v1", "Secret", name, self.jobs.namespace))

    def _is_ours(self, job: Object, index: int) -> bool:
        try:
            return _job_uid(self._find(job, index)) == str(job["metadata"]["uid"])
        except HarnessError:  # A client that cannot read a Secret cannot have created it.
            return False

    def _delete(self, job: Object, index: int) -> None:
        name = names.workspace_part(job["metadata"]["name"], index)
        call_api(lambda: self.jobs.kube.delete("v1", "Secret", name, self.jobs.namespace))


def _archive_pod(job: Object) -> str:
    """Return the name of the pod that stores a job's code."""
    return f"{names.archive_server(job['metadata']['name'])}-0"


def _largest(tree: Tree) -> str:
    """Return the paths and sizes of the largest files in a folder's tree, as text."""
    files = sorted(tree.by_digest().values(), key=lambda entry: -int(entry["size"]))[:SHOWN]
    return ", ".join(f"{entry['path']} {entry['size'] / 1e6:.1f} MB" for entry in files)


def _job_uid(secret: Object | None) -> str | None:
    """Return the UID of the job whose code a Secret contains, or None if the Secret does not contain code."""
    return ((secret or {}).get("metadata", {}).get("labels") or {}).get(names.PART_LABEL)


def parts_of(job: Object) -> int:
    """Return the number of Secrets in which a job's code is stored."""
    count = (job["metadata"].get("annotations") or {}).get(names.PARTS_ANNOTATION) or "0"
    return int(count) if count.isdecimal() else 0


def is_stored(job: Object) -> bool:
    """Return whether a job's current code is stored in the cluster, either in Secrets or in a pod."""
    return (job["metadata"].get("annotations") or {}).get(names.STORED_ANNOTATION) == "true"


def generation_of(job: Object) -> int:
    """Return the latest generation of a job's code that was stored in the cluster, or 0 if none was."""
    generation = (job["metadata"].get("annotations") or {}).get(names.GENERATION_ANNOTATION) or "0"
    return int(generation) if generation.isdecimal() else 0
