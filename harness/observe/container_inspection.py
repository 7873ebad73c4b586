"""Inspect running containers: their processes, TCP connections, and DNS lookups of the rendezvous host."""

from __future__ import annotations

import base64
import ipaddress
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import yaml
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream
from kubernetes.stream.ws_client import ERROR_CHANNEL
from pydantic import ValidationError
from urllib3.exceptions import HTTPError

from harness.core.clock import now
from harness.core.concurrency import within
from harness.core.errors import UsageError
from harness.core.kubernetes import Kube, Object
from harness.core.own_processes import OWN_PROCESSES
from harness.core.websockets import refuse_redirects
from harness.evidence import torchrun_processes
from harness.evidence.schema.bundle import ProbeResult, Process, RendezvousSnapshot

NETCHECK = "/opt/harness/netcheck"
"""The directory where harness/launch/mounts/netcheck.py mounts netcheck."""
EXEC_SECONDS = 15
RESOLVE_SECONDS = 6
ASK_SECONDS = 10
LOOK_SECONDS = 30
MAX_OUTPUT = 16 << 20
"""The maximum size of a script's output in bytes. A container's own `bash` can print anything."""
LONG = 300
"""The maximum length of a recorded command-line argument, in characters. Longer arguments, such as scripts
and settings, are replaced by "…"."""
_LOOK = (
    OWN_PROCESSES
    + """declare -A was parent
each() {
  { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 0
  set -- "$1" ${stat##*) }
  $look $1 $3 $((${13} + ${14})) $((${15} + ${16})) $2
}
first() { was[$1]=$3 parent[$1]=$2; }
last() {
  took=$(($3 - ${was[$1]:-0})); unset "was[$1]"
  [ $1 = $$ ] || [ $2 = $$ ] || echo "process $1 $2 $took $4 $5 $(base64 -w0 /proc/$1/cmdline)"
}
look=first; own_each each; sleep 2
look=last; own_each each 2>/dev/null
for pid in "${!was[@]}"; do echo "process $pid ${parent[$pid]} 0 0 -"; done
cat /proc/net/tcp /proc/net/tcp6 2>/dev/null"""
)
_RESOLVE = f'timeout {RESOLVE_SECONDS} getent ahosts "$1"; echo "code $?"'
_ASK = f"""cd {NETCHECK} && python=$(command -v python3 || command -v python) &&
timeout {ASK_SECONDS} "$python" -B -m netcheck.ask "$1" "$2" """
_ESTABLISHED, _LISTEN = "01", "0A"


def inspect_pods(
    kube: Kube, pods: list[Object], *, network: bool = True, container: str = ""
) -> list[RendezvousSnapshot]:
    """Inspect the container named `container` in every pod, in parallel. Return one snapshot per pod.

    In a pod without such a container, the pod's first container is inspected. If `network` is true, the
    rendezvous address is also resolved and probed, which takes a few more seconds.

    A daemon thread per pod is used, because the Kubernetes client's `exec` has no timeout and blocks forever
    if the API server is frozen.
    """
    pods_by_name = {pod["metadata"]["name"]: pod for pod in pods}
    snapshots = within(
        LOOK_SECONDS, lambda name: _inspect(kube, pods_by_name[name], container, network), pods_by_name
    )
    timeout_error = f"no response within {LOOK_SECONDS} s"
    return [
        snapshots.get(name) or RendezvousSnapshot(at=now(), pod=name, error=timeout_error)
        for name in pods_by_name
    ]


def _inspect(kube: Kube, pod: Object, container: str, network: bool) -> RendezvousSnapshot:
    name = pod["metadata"]["name"]
    names = [str(each["name"]) for each in pod["spec"]["containers"]]
    own = container if container in names else names[0]
    try:
        snapshot = parse(name, _exec(kube, pod, own, _LOOK))
        agents = [agent for agent in torchrun_processes.agents(snapshot) if agent.host] if network else []
        hosts = {agent.host for agent in agents}
        resolved = {host: _addresses(_exec(kube, pod, own, _RESOLVE, host)) for host in hosts}
        places = {(agent.host, agent.port) for agent in agents if agent.port.isdecimal()}
        probes = {
            f"{host}:{port}": answer
            for host, port in places
            if (answer := _probe_result(_exec(kube, pod, own, _ASK, host, port))) is not None
        }
        return snapshot.model_copy(update={"resolved": resolved, "asked": probes})
    except (ApiException, HTTPError, OSError, ValueError) as error:
        return RendezvousSnapshot(at=now(), pod=name, error=_why(error))


def _why(error: Exception) -> str:
    """Return an error's message. For a refused `exec`, this is only the API server's message."""
    inner = re.search(r'"message":"(.*?)","', str(error))
    return f"{type(error).__name__}: {(inner[1] if inner else str(error))[:LONG]}"


def _exec(kube: Kube, pod: Object, container: str, script: str, *arguments: str) -> str:
    """Run a bash script in a container of the pod and return its output. Raises OSError if the script did not
    run.

    Each call creates a new client, because `stream` modifies the client.
    """
    try:
        kube.websocket_options()
    except UsageError as error:
        raise OSError(error.message) from None
    refuse_redirects()
    core = client.CoreV1Api(client.ApiClient(kube.configuration))
    channels = stream(
        core.connect_get_namespaced_pod_exec,
        pod["metadata"]["name"],
        pod["metadata"]["namespace"],
        container=container,
        command=["bash", "-c", script, "bash", *arguments],
        **dict.fromkeys(("stdin", "stderr", "tty"), False),
        stdout=True,
        _request_timeout=EXEC_SECONDS,
        _preload_content=False,
    )
    try:
        channels.sock.recv_data_frame = _limited(channels.sock.recv_data_frame)
        channels.run_forever(timeout=EXEC_SECONDS)
        status = yaml.safe_load(channels.read_channel(ERROR_CHANNEL)) or {}
    finally:
        channels.close()
    # The error channel contains the container runtime's error or the script's exit code.
    if status.get("status") == "Failure" and status.get("reason") != "NonZeroExitCode":
        raise OSError(status.get("message"))
    return str(channels.read_all())


def _limited(receive: Callable[..., tuple[int, Any]]) -> Callable[..., tuple[int, Any]]:
    """Wrap `receive` so that it raises OSError after MAX_OUTPUT bytes or EXEC_SECONDS.

    Otherwise, the Kubernetes client would read for as long as data arrives, even after its own timeout.
    """
    remaining, deadline = MAX_OUTPUT, time.monotonic() + EXEC_SECONDS

    def limited(control_frame: bool = False) -> tuple[int, Any]:
        nonlocal remaining
        opcode, frame = receive(control_frame)
        remaining -= len(frame.data)
        if remaining < 0 or time.monotonic() > deadline:
            raise OSError(
                f"the command's output exceeded {MAX_OUTPUT >> 20} MiB, or the command ran longer than "
                f"{EXEC_SECONDS} s"
            )
        return opcode, frame

    return limited


def parse(pod: str, output: str) -> RendezvousSnapshot:
    """Return a snapshot with the processes and connections in the output of the inspection script.

    Raises ValueError if the output is malformed.
    """
    processes, listening, connected = [], set[int](), set[str]()
    for line in output.splitlines():
        words = line.split()
        if words[:1] == ["process"] and len(words) in (6, 7):
            pid, parent, ticks, reaped = map(int, words[1:5])
            text = base64.b64decode("".join(words[6:])).decode(errors="replace").rstrip("\0")
            command = [word if len(word) <= LONG else "…" for word in text.split("\0") if text]
            state = "" if words[5] == "-" else words[5]
            processes.append(
                Process(pid=pid, parent=parent, ticks=ticks, reaped=reaped, state=state, command=command)
            )
        elif len(words) > 3 and words[3] == _LISTEN:
            listening.add(int(words[1].rpartition(":")[2], 16))
        elif len(words) > 3 and words[3] == _ESTABLISHED:
            connected.add(_endpoint(words[2]))
    return RendezvousSnapshot(
        at=now(), pod=pod, processes=processes, listening=sorted(listening), connected=sorted(connected)
    )


def _endpoint(text: str) -> str:
    """Convert an address from /proc, such as "0100007F:04D2", to "127.0.0.1:1234".

    /proc shows addresses as little-endian 32-bit words.
    """
    address, _, port = text.partition(":")
    raw = b"".join(bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8))
    ip = ipaddress.ip_address(raw)
    return f"{getattr(ip, 'ipv4_mapped', None) or ip}:{int(port, 16)}"


def _probe_result(output: str) -> ProbeResult | None:
    """Parse the netcheck probe's result. Returns None if the container cannot run netcheck."""
    try:
        return ProbeResult.model_validate_json(output.strip())
    except ValidationError:
        return None


def _addresses(output: str) -> list[str] | None:
    *lines, last = output.strip().splitlines() or [""]
    if last == "code 127":
        return None
    return sorted(set(_firsts(lines)))


def _firsts(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if line.split():
            yield line.split()[0]
