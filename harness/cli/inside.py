"""Check from inside the pods of a running or hung job whether its ranks can meet: `harness netcheck RUN`.

The package harness/workers/netcheck goes into each running pod on the stdin of an exec, and stays in memory
there. Every pod says which ports it uses; then all begin at once, on a port that none of them uses. The API
server says what no pod can: which pods do not run, and why.
"""

from __future__ import annotations

import base64
import io
import json
import secrets
import subprocess
import threading
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from harness.cli.shell import cluster_of
from harness.context import RunContext
from harness.core.errors import HarnessError, UsageError
from harness.core.kubernetes import Object, condition
from harness.evidence.reader import Bundle
from harness.workers.netcheck import Diagnosis
from harness.workers.netcheck.finding import FAILED, Finding, failed, in_order, ok, unknown

DEADLINE = 10.0
"""Seconds for all ranks to be heard. Their pods run, so nobody is waited for."""
START_SECONDS = 30.0
"""Seconds for an exec to start, on a busy node too."""
SLACK_SECONDS = 20.0
"""Seconds after netcheck's own deadline: rank 0 may tell the others until then."""
NOWHERE = "192.0.2.1"
"""The address of a pod that has none (RFC 5737): nobody has it."""
BOOT = """import base64, os, sys
sys.version_info >= (3, 9) or sys.exit("netcheck needs Python 3.9; this is " + sys.version.split()[0])
held = os.memfd_create("netcheck")
os.write(held, base64.b64decode(sys.stdin.readline()))
sys.path.insert(0, "/proc/self/fd/%d" % held)
from netcheck.inside import main
sys.exit(main())"""
"""Nothing is written to the container's disk, which may be read-only or full."""


@dataclass(frozen=True)
class Seen:
    """What was found out: `pods` is each rank's pod and its state, `rows` each rank's diagnosis."""

    nodes: int
    pods: Mapping[int, str]
    running: frozenset[int]
    results: Mapping[int, Diagnosis]
    errors: Mapping[int, str]
    """Why a running pod gave no diagnosis."""

    def diagnosis(self, rank: int) -> Diagnosis:
        """Return a rank's diagnosis, with what the API server knows of the pods. Raises UsageError."""
        if rank not in self.results:
            state = self.errors.get(rank) or self.pods.get(rank, "no such rank")
            there = ", ".join(map(str, sorted(self.results))) or "none"
            raise UsageError(f"rank {rank} gave no diagnosis: {state}", hint=f"ranks that did: {there}")
        own = replace(self.results[rank], rank=rank)  # of all pairs, rank 0 tells the others
        kept = [each for each in own.findings if each.step != "pods"]
        findings = tuple(in_order([*self.findings(), *kept]))
        bad = next((each for each in findings if each.status == FAILED), None)
        if bad is None:
            return replace(own, findings=findings)
        absent = tuple(sorted(set(range(self.nodes)) - self.running))
        missing = absent or own.missing
        return replace(
            own, verdict=FAILED, cause=bad.cause, ranks=bad.ranks, missing=missing, findings=findings
        )

    def findings(self) -> list[Finding]:
        """Return the step `pods`, as the API server and the execs prove it."""
        absent = sorted(set(range(self.nodes)) - self.running)
        found = [failed("peer.never_came", f"rank {rank}: {self.pods[rank]}", [rank]) for rank in absent]
        found += [
            unknown("pods", f"rank {rank}: netcheck does not run there: {self.errors[rank]}", [rank])
            for rank in sorted(self.errors)
        ]
        return found or [ok("pods", f"{self.nodes} of {self.nodes} pods run")]

    def as_dict(self, rank: int) -> dict[str, Any]:
        """Return a rank's diagnosis for `--json`, with the state of every pod."""
        return {
            **self.diagnosis(rank).as_dict(),
            "pods": {str(number): state for number, state in self.pods.items()},
            "errors": {str(number): text for number, text in self.errors.items()},
        }


def look(bundle: Bundle, context: RunContext, deadline: float = DEADLINE) -> Seen:
    """Check in all pods of a launch that run. Raises UsageError when none does, or its cluster is gone."""
    kube, target = cluster_of(bundle, context.settings)
    manifest = bundle.manifest
    launch, expected = (manifest.launch, manifest.expected) if manifest else (None, None)
    if launch is None or expected is None:
        raise UsageError(
            f"{bundle.path} has launched nothing yet", hint="`harness status` says what it waits for"
        )
    namespace, known = launch.namespace, bundle.pods()
    objects = {
        rank: kube.get("v1", "Pod", known[rank].name, namespace) if rank in known else None
        for rank in range(expected.num_nodes)
    }
    pods = {rank: state(pod, known[rank].name if rank in known else None) for rank, pod in objects.items()}
    there = {rank: pod for rank, pod in objects.items() if pod is not None and runs(pod)}
    if not there:
        said = "; ".join(f"rank {rank}: {each}" for rank, each in pods.items())
        raise UsageError(f"no pod of {bundle.path} runs: {said}", hint="netcheck looks into pods that run")
    base = [context.settings.kubectl_bin, *target, "-n", namespace, "exec", "-i"]
    commands = {
        rank: [*base, pod["metadata"]["name"], "-c", container(pod), "--"] for rank, pod in there.items()
    }
    context.progress(f"netcheck in {len(there)} of {expected.num_nodes} pods")
    addresses = [(pod or {}).get("status", {}).get("podIP") or NOWHERE for pod in objects.values()]
    told = {
        "nodes": expected.num_nodes,
        "deadline": deadline,
        "peers": addresses if launch.kind == "DaemonSet" else [],  # its pods have no names of their own
    }
    results, errors = _together(commands, told)
    return Seen(expected.num_nodes, pods, frozenset(there), results, errors)


def runs(pod: Object) -> bool:
    """Return whether the first container of a pod runs, the one of the rank."""
    statuses = pod["status"].get("containerStatuses") or []
    name = container(pod)
    return any(each["name"] == name and "running" in (each.get("state") or {}) for each in statuses)


def container(pod: Object) -> str:
    return str(pod["spec"]["containers"][0]["name"])


def state(pod: Object | None, name: str | None) -> str:
    """Return in words what the API server says of a pod."""
    if pod is None:
        return f"pod {name} is gone" if name else "it has no pod"
    said = f"pod {pod['metadata']['name']} is {pod['status'].get('phase', 'of an unknown phase')}"
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return f"{said}: {scheduled.get('reason')}: {scheduled.get('message')}"
    for each in pod["status"].get("containerStatuses") or []:
        for kind in ("waiting", "terminated"):
            if detail := (each.get("state") or {}).get(kind):
                code = f", exit code {detail['exitCode']}" if "exitCode" in detail else ""
                return f"{said}: {detail.get('reason')}{code}: {detail.get('message') or 'no more is said'}"
    return f"{said} on {pod['spec'].get('nodeName')}"


def free_port(first: int, used: Sequence[int]) -> int:
    """Return the first port from `first` on that no pod uses. The rules for it are most like the job's."""
    taken = set(used)
    ports: Iterable[int] = (*range(first, 65536), *range(1024, first))
    return next(port for port in ports if port not in taken)


def package() -> bytes:
    """Return netcheck as a zip file that Python can import from."""
    folder = Path(str(resources.files("harness"))) / "workers" / "netcheck"
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.glob("*.py")):
            archive.writestr(f"netcheck/{path.name}", path.read_bytes())
    return made.getvalue()


class _Exec:
    """netcheck in one pod: started, and waiting for how to check."""

    def __init__(self, command: Sequence[str], sent: str) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        words = [*command, "python3", "-c", BOOT]
        try:
            self._process = subprocess.Popen(words, text=True, **pipes)  # type: ignore[call-overload]
        except FileNotFoundError:
            raise HarnessError(f"there is no {command[0]}", hint="`harness doctor --fix`") from None
        self._sent = sent

    def ready(self) -> dict[str, Any]:
        """Bring the package, and return what the pod says of itself. Raises ValueError with what is wrong."""
        return self._answer(self._sent, START_SECONDS)

    def diagnosis(self, told: Mapping[str, Any]) -> Diagnosis:
        """Say how to check, and return the diagnosis. Raises ValueError with what is wrong."""
        return Diagnosis.of(self._answer(json.dumps(told), told["deadline"] + SLACK_SECONDS))

    def _answer(self, line: str, seconds: float) -> dict[str, Any]:
        over = threading.Timer(seconds, self._process.kill)
        over.start()
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
            if answer:
                return dict(json.loads(answer))
        except BrokenPipeError:
            pass
        finally:
            over.cancel()
        said = self._process.stderr.read().strip().splitlines() if self._process.wait() >= 0 else []
        raise ValueError(said[-1] if said else f"no answer within {seconds:.0f} s")

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def _together(
    commands: Mapping[int, Sequence[str]], told: Mapping[str, Any]
) -> tuple[dict[int, Diagnosis], dict[int, str]]:
    """Run netcheck with these commands at the same time. Returns diagnoses, and errors in words, by rank."""
    sent = base64.b64encode(package()).decode()
    errors: dict[int, str] = {}

    def tried(rank: int, what: Any, *arguments: Any) -> Any:
        try:
            return what(*arguments)
        except ValueError as error:
            errors[rank] = str(error)
            return None

    started = {rank: _Exec(command, sent) for rank, command in commands.items()}
    try:
        with ThreadPoolExecutor(len(started)) as pool:
            said = dict(zip(started, pool.map(lambda r: tried(r, started[r].ready), started), strict=True))
            ready = {rank: each for rank, each in said.items() if each is not None}
            if not ready:
                return {}, errors
            used = [port for each in ready.values() for port in each["ports"]]
            port = free_port(min(each["master_port"] for each in ready.values()) + 1, used)
            how = {**told, "port": port, "run": f"inside-{secrets.token_hex(4)}"}

            def check(rank: int) -> Diagnosis | None:
                defaults = {"NODE_RANK": str(rank), "NNODES": str(told["nodes"])}
                found: Diagnosis | None = tried(rank, started[rank].diagnosis, {**how, "defaults": defaults})
                return found

            found = dict(zip(ready, pool.map(check, ready), strict=True))
    finally:
        for each in started.values():
            each.end()
    return {rank: each for rank, each in found.items() if each is not None}, errors
