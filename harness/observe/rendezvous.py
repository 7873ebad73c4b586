"""Find out whether the ranks ever meet, by a look inside their containers at the rendezvous deadline.

torchrun says nothing while it waits for others, and waits for ten minutes. So when every pod of the job has
run for the deadline of the rendezvous, the processes, connections and name service of each container are
recorded. Where a torchrun still waits, nothing more will come. The judges say what was wrong.
"""

from __future__ import annotations

import base64
import ipaddress
import math
import threading
from collections.abc import Callable, Iterable, Iterator

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream
from pydantic import ValidationError
from urllib3.exceptions import HTTPError

from harness.core.clock import CLOCK, Clock, now
from harness.core.deadlines import Deadline
from harness.core.kubernetes import Kube, Object
from harness.evidence import torchrun
from harness.evidence.schema import Asked, Observation, Process, RendezvousSnapshot

NETCHECK = "/opt/harness/netcheck"
"""Where harness/launch/netcheck.py mounts it."""
EXEC_SECONDS = 15
RESOLVE_SECONDS = 6
ASK_SECONDS = 10
LOOK_SECONDS = 30
LONG = 300
"""Longest argument that is recorded. Longer ones are scripts and settings."""
AGAIN_SECONDS = 5
PATIENCE = 1.5
"""Multiple of the deadline after which a torchrun that is still starting counts as late for good.

The job's own end comes later, and would only say that time was over.
"""
_LOOK = """declare -A was parent
each() {
  for d in /proc/[0-9]*; do
    { read -r stat <"$d/stat"; } 2>/dev/null || continue
    set -- ${stat##*) }
    $look ${d#/proc/} $2 $((${12} + ${13})) $((${14} + ${15}))
  done
}
first() { was[$1]=$3 parent[$1]=$2; }
last() {
  took=$(($3 - ${was[$1]:-0})); unset "was[$1]"
  [ $1 = $$ ] || [ $2 = $$ ] || echo "process $1 $2 $took $4 $(base64 -w0 /proc/$1/cmdline)"
}
look=first; each; sleep 2
look=last; each 2>/dev/null
for pid in "${!was[@]}"; do echo "process $pid ${parent[$pid]} 0 0"; done
cat /proc/net/tcp /proc/net/tcp6 2>/dev/null"""
_RESOLVE = f'timeout {RESOLVE_SECONDS} getent ahosts "$1"; echo "code $?"'
_ASK = f"""cd {NETCHECK} && python=$(command -v python3 || command -v python) &&
timeout {ASK_SECONDS} "$python" -B -m netcheck.ask "$1" "$2" """
_ESTABLISHED, _LISTEN = "01", "0A"


class RendezvousMonitor:
    """Takes watch deliveries of pods. `reason()` is None while the ranks may still meet, or have met."""

    def __init__(
        self,
        kube: Kube,
        nodes: int,
        seconds: float,
        record: Callable[[RendezvousSnapshot], None],
        clock: Clock = CLOCK,
    ) -> None:
        """Create a monitor. `seconds` count from when the last pod of the `nodes` nodes began to run."""
        self._kube = kube
        self._nodes = nodes
        self._seconds = seconds
        self._record = record
        self._clock = clock
        self._lock = threading.RLock()
        self._pods: dict[str, Object] = {}
        self._began: dict[str, float] = {}
        self._next: float | None = 0.0
        self._reason: str | None = None

    def observe(self, kind: str, observation: Observation) -> None:
        if kind != "pod":
            return
        pod, uid = observation.object, observation.object["metadata"]["uid"]
        with self._lock:
            if observation.type == "DELETED":
                self._pods.pop(uid, None)
                self._began.pop(uid, None)
                return
            self._pods[uid] = pod
            if pod["status"].get("phase") not in (None, "Pending"):
                self._began.setdefault(uid, self._clock.monotonic())

    def reason(self) -> str | None:
        """Return in one sentence why the ranks will not meet, or None.

        The look inside takes some seconds, when it is due.
        """
        if self._next is not None and self._clock.monotonic() >= self._next and (pods := self._due()):
            self._judge(self._look(pods))
        return self._reason

    def _look(self, pods: list[Object]) -> list[RendezvousSnapshot]:
        """Look into all containers at once, by threads that die with the process.

        The client of `exec` has no timeout, and one that speaks to a frozen API server never comes back.
        """
        seen: dict[str, RendezvousSnapshot] = {}

        def look(pod: Object) -> None:
            seen[pod["metadata"]["name"]] = self._inspect(pod)

        threads = [threading.Thread(target=look, args=(pod,), daemon=True) for pod in pods]
        for thread in threads:
            thread.start()
        deadline = Deadline.after(LOOK_SECONDS)
        for thread in threads:
            thread.join(deadline.left)
        late = f"no answer within {LOOK_SECONDS} s"
        names = [pod["metadata"]["name"] for pod in pods]
        return [seen.get(name) or RendezvousSnapshot(at=now(), pod=name, error=late) for name in names]

    def _judge(self, seen: list[RendezvousSnapshot]) -> None:
        """Decide what the look inside shows.

        A torchrun that is busy is still starting, and is looked at again.
        """
        waiting = torchrun.without_ranks(seen)
        if any(waiting.values()) and not self._past(PATIENCE * self._seconds):
            self._next = self._clock.monotonic() + AGAIN_SECONDS
            return
        self._next = None
        for inspection in seen:
            self._record(inspection)
        if waiting:
            where = ", ".join(waiting)
            self._reason = f"the ranks did not meet within {self._seconds:.0f} s: torchrun waits in {where}"

    def _due(self) -> list[Object]:
        """Return the running pods, once every pod has had its time."""
        with self._lock:
            if len(self._began) < self._nodes or len(self._began) < len(self._pods):
                return []
            if not self._past(self._seconds):
                return []
            return [pod for pod in self._pods.values() if pod["status"].get("phase") == "Running"]

    def _past(self, seconds: float) -> bool:
        """Return whether all pods have run for so many seconds."""
        with self._lock:
            return self._clock.monotonic() - max(self._began.values(), default=math.inf) >= seconds

    def _inspect(self, pod: Object) -> RendezvousSnapshot:
        name = pod["metadata"]["name"]
        try:
            seen = parse(name, self._exec(pod, _LOOK))
            agents = [agent for agent in torchrun.agents(seen) if agent.host]
            hosts = {agent.host for agent in agents}
            resolved = {host: _addresses(self._exec(pod, _RESOLVE, host)) for host in hosts}
            places = {(agent.host, agent.port) for agent in agents if agent.port.isdecimal()}
            asked = {
                f"{host}:{port}": answer
                for host, port in places
                if (answer := _asked(self._exec(pod, _ASK, host, port))) is not None
            }
            return seen.model_copy(update={"resolved": resolved, "asked": asked})
        except (ApiException, HTTPError, OSError, ValueError) as error:
            return RendezvousSnapshot(at=now(), pod=name, error=f"{type(error).__name__}: {str(error)[:300]}")

    def _exec(self, pod: Object, script: str, *arguments: str) -> str:
        """Return the output of a bash script in the pod's container.

        It uses a client of its own, because `stream` changes its client.
        """
        core = client.CoreV1Api(client.ApiClient(self._kube.configuration))
        return str(
            stream(
                core.connect_get_namespaced_pod_exec,
                pod["metadata"]["name"],
                pod["metadata"]["namespace"],
                container=pod["spec"]["containers"][0]["name"],
                command=["bash", "-c", script, "bash", *arguments],
                **dict.fromkeys(("stdin", "stderr", "tty"), False),
                stdout=True,
                _request_timeout=EXEC_SECONDS,
            )
        )


def parse(pod: str, output: str) -> RendezvousSnapshot:
    """Parse what the script in the container printed."""
    processes, listening, connected = [], set[int](), set[str]()
    for line in output.splitlines():
        words = line.split()
        if words[:1] == ["process"] and len(words) in (5, 6):
            pid, parent, ticks, reaped = map(int, words[1:5])
            text = base64.b64decode("".join(words[5:])).decode(errors="replace").rstrip("\0")
            shown = [word if len(word) <= LONG else "…" for word in text.split("\0") if text]
            processes.append(Process(pid=pid, parent=parent, ticks=ticks, reaped=reaped, command=shown))
        elif len(words) > 3 and words[3] == _LISTEN:
            listening.add(int(words[1].rpartition(":")[2], 16))
        elif len(words) > 3 and words[3] == _ESTABLISHED:
            connected.add(_endpoint(words[2]))
    return RendezvousSnapshot(
        at=now(), pod=pod, processes=processes, listening=sorted(listening), connected=sorted(connected)
    )


def _endpoint(text: str) -> str:
    """Return an address as text: "0100007F:04D2" → "127.0.0.1:1234".

    Words have 32 bits in the machine's little-endian order.
    """
    address, _, port = text.partition(":")
    raw = b"".join(bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8))
    ip = ipaddress.ip_address(raw)
    return f"{getattr(ip, 'ipv4_mapped', None) or ip}:{int(port, 16)}"


def _asked(output: str) -> Asked | None:
    """Return what netcheck said, or None: the container cannot run it."""
    try:
        return Asked.model_validate_json(output.strip())
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
