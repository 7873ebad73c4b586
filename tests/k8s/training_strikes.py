"""Strike a training on a cluster at chosen moments: its ranks, torchruns, pods, nodes, memory and disk."""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core import processes
from harness.launch.workloads import training_volumes
from harness.provision.cluster import Ready
from harness.settings import Settings

RUN = "train"
_KILL = """
import os, signal
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        words = open(f"/proc/{pid}/cmdline").read().split("\\0")
        given = open(f"/proc/{pid}/environ").read().split("\\0")
    except OSError:
        continue
    rank = any(one.startswith("LOCAL_RANK=") for one in given)
    agent = any(word.endswith("/torchrun") for word in words[:2])
    if "training.train_framework" in words and (rank if %r == "rank" else agent):
        os.kill(int(pid), signal.SIGKILL)
        print("killed", pid)
"""
_FILL_MEMORY = """
import os
def rank(pid):
    try:
        words = open(f"/proc/{pid}/cmdline").read().split("\\0")
        given = open(f"/proc/{pid}/environ").read().split("\\0")
    except OSError:
        return False
    return "training.train_framework" in words and any(one.startswith("LOCAL_RANK=") for one in given)
victim = next(filter(rank, sorted(filter(str.isdigit, os.listdir("/proc")), key=int)))
open(f"/proc/{victim}/oom_score_adj", "w").write("1000")
try:
    with open("/dev/shm/filling", "wb", buffering=0) as filling:
        while rank(victim):
            filling.write(bytes(1 << 20))
finally:
    os.unlink("/dev/shm/filling")
print("killed by the kernel: out of memory", victim)
"""
"""Its pages belong to the container, and to no process: the kernel ends the rank that was offered to it."""


@dataclass(frozen=True)
class Strike:
    """`what`: rank, torchrun, pod, forced, memory, machine or disk. `node`: the index of its pod.

    Written "WHAT:NODE@WHEN". `machine` is that node of Kubernetes without power for a moment, and `disk`
    fills the volume of the outputs until a rank of that pod could not write. With `scale`, `node` is the new
    number of pods.

    When: "named:K" (the K-th checkpoint got its name), "writing:K" (the K-th is being written), "met" (all
    have met), "met:N" (a world of N ranks made steps), "step:N" (rank 0 printed it).
    """

    what: str
    node: int
    when: str

    @classmethod
    def of(cls, text: str) -> Strike:
        """Read WHAT:NODE@WHEN."""
        found = re.fullmatch(r"(rank|torchrun|pod|forced|scale|memory|machine|disk):(\d+)@(.+)", text)
        assert found, text
        return cls(found[1], int(found[2]), found[3])


class Striker:
    """Strikes one launch, one strike after the other, in a thread. `struck` says what each did."""

    def __init__(
        self, cluster: Ready, settings: Settings, strikes: Sequence[Strike], volumes: str = ""
    ) -> None:
        self._cluster, self._settings, self._strikes = cluster, settings, strikes
        self._volumes, self._before = volumes, set(_namespaces(cluster))
        self._seen: dict[str, set[str]] = {"writing": set(), "named": set()}
        self._over = threading.Event()
        self.struck: list[str] = []
        self._thread = threading.Thread(target=self._strike_all, daemon=True)

    def __enter__(self) -> Striker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _strike_all(self) -> None:
        namespace = ""
        while not namespace and not self._over.is_set():
            namespace = next(iter(set(_namespaces(self._cluster)) - self._before), "")
            time.sleep(0.1)
        for strike in self._strikes:
            while not self._over.is_set() and not self._reached(strike.when, namespace):
                time.sleep(0.002)
            if self._over.is_set():
                return
            self.struck.append(self._strike(strike, namespace))

    def _reached(self, when: str, namespace: str) -> bool:
        kind, _, number = when.partition(":")
        if kind in self._seen:
            folder = self._folder(namespace) / training_volumes.OUTPUTS / RUN
            pattern = ".epoch-*" if kind == "writing" else "epoch-*"
            self._seen[kind] |= {path.name for path in folder.glob(pattern)}
            return len(self._seen[kind]) >= int(number)
        words = [self._settings.kubectl_bin, "--kubeconfig", str(self._cluster.cluster.kubeconfig)]
        log = processes.run([*words, "-n", namespace, "logs", "train-llm-0"], timeout=30, check=False).stdout
        if kind == "met":
            if number:
                return "[TRAIN] step" in log.partition(f"met {number} ranks on cpu")[2]
            return "ranks on cpu" in log
        return any(int(step) >= int(number) for step in re.findall(r"\[TRAIN\] step (\d+)/", log))

    def _folder(self, namespace: str) -> Path:
        shared = self._cluster.cluster.shared_folder
        assert shared is not None
        return shared.local_path / (self._volumes or namespace)

    def _strike(self, strike: Strike, namespace: str) -> str:
        words = [self._settings.kubectl_bin, "--kubeconfig", str(self._cluster.cluster.kubeconfig)]
        if strike.what == "scale":
            scale = ["scale", "statefulset/train-llm", f"--replicas={strike.node}"]
            done = processes.run([*words, "-n", namespace, *scale], timeout=60)
            return f"{strike}: {done.stdout.strip()}"
        pod = self._pod(strike.node, namespace)
        if strike.what in ("pod", "forced"):
            force = ["--force", "--grace-period=0"] if strike.what == "forced" else []
            done = processes.run(
                [*words, "-n", namespace, "delete", "pod", pod, "--wait=false", *force], timeout=60
            )
        elif strike.what == "machine":
            return f"{strike}: {self._cut_power(pod, namespace)}"
        elif strike.what == "disk":
            return f"{strike}: {self._fill_disk(pod, namespace)}"
        else:
            script = _FILL_MEMORY if strike.what == "memory" else _KILL % strike.what
            done = processes.run(
                [*words, "-n", namespace, "exec", pod, "--", "python3", "-c", script], timeout=60
            )
        return f"{strike}: {done.stdout.strip()}"

    def _cut_power(self, pod: str, namespace: str) -> str:
        """Kill the machine of a pod, and let it boot."""
        found = self._cluster.kube.get("v1", "Pod", pod, namespace)
        assert found is not None
        machine = str(found["spec"]["nodeName"])
        for words in (["kill", machine], ["start", machine]):
            processes.run(["docker", *words], timeout=60)
        return f"killed {machine}, and started it again"

    def _fill_disk(self, pod: str, namespace: str) -> str:
        """Fill the volume of the outputs until a rank says that it could not write, then make room."""
        words = [self._settings.kubectl_bin, "--kubeconfig", str(self._cluster.cluster.kubeconfig)]
        filling = self._folder(namespace) / training_volumes.OUTPUTS / "filling"
        try:
            with filling.open("wb", buffering=0) as file:
                for size in (1 << 20, 1 << 12):
                    fill(file.fileno(), size)
            while not self._over.is_set():
                log = processes.run([*words, "-n", namespace, "logs", pod], timeout=30, check=False).stdout
                if os.strerror(errno.ENOSPC) in log or "PytorchStreamWriter failed" in log:
                    return "killed by a full disk, which was emptied"
                time.sleep(0.1)
            return "nobody noticed the full disk"
        finally:
            filling.unlink()

    def _pod(self, node: int, namespace: str) -> str:
        """Return the pod of a node: a Job's have a random end."""
        pods = self._cluster.kube.objects("v1", "Pod", namespace, selector="app=train-llm")
        living = [pod["metadata"] for pod in pods if not pod["metadata"].get("deletionTimestamp")]
        return next(
            str(one["name"]) for one in living if re.match(rf"train-llm-{node}(-|$)", str(one["name"]))
        )


def fill(file: int, size: int) -> None:
    """Write blocks of `size` bytes until the disk has no more room for one."""
    while True:
        try:
            os.write(file, bytes(size))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return


def _namespaces(cluster: Ready) -> list[str]:
    """Return the namespaces that have a training."""
    return [
        str(one["metadata"]["namespace"])
        for one in cluster.kube.objects("v1", "Pod", selector="app=train-llm")
    ]
