"""Run the pods of a Job without a cluster, as Docker containers of the worker image.

The pod template is the same as in a launch (harness/launch/workloads/indexed_job.py), with the init process
around the command, the recorder's ConfigMap, changed scripts and the environment. Each pod is a container
with its own address, process namespace and file system. If a container fails or the Job's deadline passes,
the other containers receive SIGTERM, as they would with a Job controller and backoffLimit 0. The programs
write their journals to a folder on this machine.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.core import processes
from harness.core.clock import now
from harness.core.errors import HarnessError, ToolError
from harness.core.kubernetes import Object
from harness.launch.workloads.indexed_job import IndexedJobWorkload

NAME = "trainer"
"""The name of the Job and its headless Service. grammar.yaml contains the DNS name of the first pod,
trainer-0.trainer."""
JOURNALS = "/witness"
GRACE_SECONDS = 30
CPU_SHARES = 256
"""The CPU weight of each container. It is below the default of 1024, so that programs do not slow down other
processes."""
DOCKER_SECONDS = 120.0


@dataclass
class Container:
    """A pod's container. Times are RFC 3339 timestamps."""

    index: int
    name: str
    created_at: str = ""
    started_at: str = ""
    finished_at: str = ""
    address: str = ""
    exit_code: int = -1
    out_of_memory: bool = False
    ended_at: str | None = None
    """The time at which the pod received SIGTERM because another pod failed or the deadline passed."""
    timed_out: bool = False
    """Whether the Job's deadline passed before the pod ended."""
    log: list[str] = field(default_factory=list)
    """The log lines, each with a timestamp."""
    message: str = ""
    """The container's termination message."""


def workload(script: str, nodes: int, image: str) -> IndexedJobWorkload:
    """Return an Indexed Job whose pods run a shell script, as in a manifest written by a user."""
    container = {"name": "worker", "image": image, "command": ["bash", "-c"], "args": [script]}
    template = {
        "metadata": {"labels": {"app": NAME}},
        "spec": {"subdomain": NAME, "restartPolicy": "Never", "containers": [container]},
    }
    spec = {"completionMode": "Indexed", "completions": nodes, "parallelism": nodes, "backoffLimit": 0}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": NAME},
        "spec": {**spec, "template": template},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": NAME}},
    }
    return IndexedJobWorkload(job, (service,), "a generated program")


@dataclass
class Pods:
    """A Job's pods. `folder` is an empty folder that only this Job uses."""

    job: Object
    """The Job as it would be applied to a cluster."""
    config_maps: Sequence[Object]
    secrets: Mapping[str, str] = field(repr=False)
    """The data in the launch's Secret."""
    nonce: str
    folder: Path
    journals: Path
    hidden: str | None = None
    """The path in the image of a Python file whose import must fail."""

    def run(self, seconds: float) -> list[Container]:
        """Run all pods until they end, or until the deadline passes after `seconds`.

        Raises HarnessError if a Docker command fails.
        """
        nodes = int(self.job["spec"]["completions"])
        pods = [Container(index, f"{NAME}-{self.nonce}-{index}") for index in range(nodes)]
        failed = threading.Lock()

        def ended(pod: Container) -> None:
            try:
                code = _docker("wait", pod.name, seconds=seconds).strip()
            except ToolError:
                pod.timed_out = True
                self._end([pod])
                return
            if code != "0" and failed.acquire(blocking=False):
                self._end([other for other in pods if other is not pod])

        try:
            for pod in pods:
                self._start(pod, pods[0])
            with ThreadPoolExecutor(nodes) as pool:
                list(pool.map(ended, pods))
            for pod in pods:
                self._read_outcome(pod)
        except ToolError as error:
            raise HarnessError(f"the pods of {self.nonce} did not run to completion: {error}") from None
        finally:
            _docker("rm", "--force", "--volumes", *(pod.name for pod in pods), check=False)
        return pods

    def _start(self, pod: Container, first: Container) -> None:
        spec = self.job["spec"]["template"]["spec"]
        container = spec["containers"][0]
        message = self.folder / f"message-{pod.index}"
        message.touch()
        words = ["--name", pod.name, "--hostname", f"{NAME}-{pod.index}", "--domainname", NAME]
        words += [
            word
            for name, text in self._environment(container, pod).items()
            for word in ("--env", f"{name}={text}")
        ]
        volumes = {volume["name"]: self._volume(volume) for volume in spec.get("volumes") or []}
        for mount in container.get("volumeMounts") or []:
            source = volumes[mount["name"]] / mount.get("subPath", "")
            words += ["--volume", f"{source}:{mount['mountPath']}:ro"]
        words += ["--volume", f"{message}:/dev/termination-log", "--volume", f"{self.journals}:{JOURNALS}"]
        if self.hidden is not None:
            (self.folder / "hidden.py").write_text("raise ImportError('not in this image')\n")
            words += ["--volume", f"{self.folder}/hidden.py:{self.hidden}:ro"]
        if pod is not first:
            words += ["--add-host", f"{NAME}-0.{NAME}:{first.address}"]
        pod.created_at = now()
        _docker(
            "run",
            "--detach",
            f"--cpu-shares={CPU_SHARES}",
            *words,
            container["image"],
            *container["command"],
            *(container.get("args") or []),
        )
        pod.address = _docker(
            "inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", pod.name
        ).strip()

    def _environment(self, container: Object, pod: Container) -> dict[str, str]:
        """Return the container's environment, with the values from the launch's Secret."""
        environment = {"JOB_COMPLETION_INDEX": str(pod.index)}
        for entry in container.get("env") or []:
            reference = entry.get("valueFrom", {}).get("secretKeyRef")
            environment[entry["name"]] = self.secrets[reference["key"]] if reference else str(entry["value"])
        return environment

    def _volume(self, volume: Object) -> Path:
        """Write the files of a ConfigMap volume as a kubelet does, and return their folder."""
        folder, source = self.folder / str(volume["name"]), volume["configMap"]
        if folder.exists():
            return folder
        config_map = next(one for one in self.config_maps if one["metadata"]["name"] == source["name"])
        data = {key: text.encode() for key, text in (config_map.get("data") or {}).items()}
        data |= {key: base64.b64decode(text) for key, text in (config_map.get("binaryData") or {}).items()}
        for item in source.get("items") or [{"key": key, "path": key} for key in data]:
            path = folder / item["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data[item["key"]])
        return folder

    def _end(self, pods: Sequence[Container]) -> None:
        """Stop the containers of pods with SIGTERM, followed by SIGKILL after GRACE_SECONDS."""
        for other in pods:
            other.ended_at = now()
        if pods:
            with suppress(ToolError):
                _docker("stop", "--time", str(GRACE_SECONDS), *(other.name for other in pods))

    def _read_outcome(self, pod: Container) -> None:
        """Set the container's times, exit code, log and termination message, as reported by Docker."""
        state = json.loads(_docker("inspect", "--format", "{{json .State}}", pod.name))
        pod.started_at, pod.finished_at = _moment(state["StartedAt"]), _moment(state["FinishedAt"])
        pod.exit_code, pod.out_of_memory = int(state["ExitCode"]), bool(state["OOMKilled"])
        if pod.ended_at is not None and pod.ended_at > pod.finished_at:
            pod.ended_at = None
        result = processes.run(["docker", "logs", "--timestamps", pod.name], timeout=DOCKER_SECONDS)
        pod.log = sorted(
            (result.stdout + result.stderr).splitlines(), key=lambda line: line.partition(" ")[0]
        )
        pod.message = (self.folder / f"message-{pod.index}").read_text()[:4096]


def _moment(text: str) -> str:
    """Return a Docker timestamp in the format of `clock.now`, with six decimal places."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    return f"{whole}.{fraction[:6]:0<6}Z"


def _docker(*words: Any, seconds: float = DOCKER_SECONDS, check: bool = True) -> str:
    return processes.run(["docker", *map(str, words)], timeout=seconds, check=check).stdout
