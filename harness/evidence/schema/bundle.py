"""The evidence bundle: the folder on disk that connects the code of a launch with the code of the judges.

    runs/<utc>-<nonce>/
      manifest.json        Manifest: what was launched, with which versions, and how long each stage took
      objects/<kind>.jsonl Observation: every observed state of jobset, workload, job, pod, node,
                           localqueue and clusterqueue, and of the objects around the launch: namespace,
                           service, DNS, control plane, … (kinds.SURROUNDINGS). Of Secrets and ConfigMaps
                           only the metadata is recorded
      events.jsonl         Observation of core/v1 Events
      inspections.jsonl    RendezvousSnapshot: containers seen from inside, at the rendezvous or at the end
      netcheck.jsonl       NetcheckRecord: the diagnosis of netcheck in each pod, if it ran
      acceptance.jsonl     AcceptanceRecord: each result of an acceptance test, and each pod's report
      processes.jsonl      ProcessLine: the processes in ranks' containers, the rank and world size of each,
                           and how it ended
      dry-runs.jsonl       DryRun: the API server's response for an object that a controller did not create
      device-holders.jsonl DeviceHolder: the pods that hold the devices a pod of the launch waits for
      exits.jsonl          ContainerExit: how ranks' commands ended in containers that are kept alive
      logs/<pod>-<container>.log   "<RFC 3339 time> <line>", from the first line to the last
      truth/<rank>.jsonl   the rank's own record of the points it logged. Each attempt has TruthStart,
                           TruthCode …, TruthRow …, TruthRewrite …, TruthBlock …, TruthClient, TruthCode …,
                           then TruthEnd
      truth/<rank>.columns, tracker/points.columns
                           many rows in columns; a line of kind "columns" refers to them (columns.py)
      truth/<rank>.outside.jsonl   the same record by the recorder around Pluto's client, if the worker
                           also records by itself
      tracker/runs.jsonl, attachments.jsonl, points.jsonl, writers.jsonl
                           TrackerRun, Attachment, Point, RunWriter
      tracker/summary.json TrackerSummary: counts, so that a truncated file is noticed
      controllers/, kind/  logs of controllers; the export of a cluster that failed
      verdict.json         Verdict
      report.html          a report of the bundle for people (harness/report/html/page.py); no judge reads it
      ctrf.json, junit.xml the verdict and each check as a test, for CI (harness/report/ci/cases.py);
                           no judge reads them

Times are RFC 3339 UTC strings unless the name ends in _ms (milliseconds since the epoch) or seconds.
Each record is written as soon as it exists, so a bundle that was cut off at any moment is readable.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from harness.core.bounds import MAX_RANKS
from harness.evidence.schema.record import Record

SCHEMA_VERSION = 2
"""Version 2 renamed causes and checks (harness/evidence/schema/upgrade.py) and added attempts and members."""


Purpose = Literal["training", "netcheck", "nodes", "ddp"]
"""What the pods of a launch run: a training that logs with Pluto, netcheck, or acceptance tests. `nodes`
tests each node by itself, `ddp` the collectives over all nodes.
"""


class Stage(Record):
    """One timed step of a run. `error` is set when the stage ended the run."""

    name: str
    started_at: str
    seconds: float
    ok: bool = True
    error: str | None = None
    cause: str | None = None
    """The cause (docs/causes.md), if the stage itself determined it."""


class Launch(Record):
    """The launched workload. `object_name` is read back from the cluster, never assumed."""

    launcher: str
    namespace: str
    kind: str
    object_name: str | None = None
    uid: str | None = None
    container: str = "konduktor-container"
    job_name: str | None = None
    """The job name that the ranks' clients send to the tracker. None means `object_name`."""
    held: bool = False
    """The controller restarts containers that end, so init keeps each container alive after its command
    (exits.jsonl)."""
    recorder: bool = False
    """A recorder around Pluto's client was mounted (harness/launch/mounts/recorder.py)."""
    accounts: list[str] = []
    """The data that the recorder accounts for in full: "keys" (TruthAccount). Empty in bundles of an older
    harness."""
    processes: bool = False
    """The worlds, processes and ends of ranks are recorded: by the recorder (processes.jsonl), or without it
    by the workers themselves."""
    netcheck: Literal["before", "alone"] | None = None
    """netcheck ran in each pod: before the command, or alone in a job that logs nothing with Pluto."""
    acceptance: Literal["nodes", "ddp"] | None = None
    """Acceptance tests ran in each pod, and nothing was logged with Pluto."""
    training: bool = False
    """The ranks run a trainer whose checkpoints are audited (harness/workers/training/audit.py)."""
    max_nodes: int | None = None
    """For a training: the most nodes to which its StatefulSet may be scaled. None means a fixed number of
    nodes."""
    reach: float | None = None
    """For a training: how far the least validation loss may be above the known entropy of the texts, as a
    fraction."""
    same_as: str | None = None
    """For a training: the bundle whose final weights the training must reproduce."""
    same_as_weights: str | None = None
    """SHA-256 of these weights."""
    upload: str | None = None
    """For a training: the s3://BUCKET/PREFIX to which its run must be uploaded at the end."""
    resume_from: str | None = None
    """For a training: the s3://BUCKET/PREFIX of the run that it must continue."""

    @property
    def tracked_as(self) -> str | None:
        """Return the job's name on the tracker."""
        return self.job_name or self.object_name


class Expected(Record):
    """The requirements for a PASS, known before the launch."""

    num_nodes: int = Field(le=MAX_RANKS)
    ranks: int = Field(le=MAX_RANKS)
    """World size: num_nodes × processes per node. At most MAX_RANKS, because judges iterate over all
    ranks."""
    most_ranks: int | None = Field(default=None, le=MAX_RANKS)
    """The most ranks that were expected at any time, if the number of nodes is not fixed. `num_nodes` and
    `ranks` are then the numbers at the end of the wait. None means `ranks`."""
    ranks_given: bool = True
    """Whether the job file contains the number of ranks. If not, the job computes it at run time, and the
    recorded world size is used."""
    run_id: str
    """The shared PLUTO_RUN_ID (Pluto's externalId)."""
    project: str
    min_nodes_used: int = 1
    """The least number of distinct Kubernetes nodes on which the ranks must run."""
    ranks_that_log: list[int] | None = None
    """The ranks that log. The others must run to their end and log nothing. None means that every rank
    logs."""
    queue: str | None = None
    node_names: list[str] = []
    """Kubernetes nodes that must report a result, if acceptance tests run on each of them."""
    device: Literal["cpu", "cuda"] | None = None
    """The device that acceptance tests must test: cuda if the pods request GPUs."""


class SentCode(Record):
    """The code that the harness sent to the ranks. The check `code` compares the code that ran with it."""

    files: dict[str, str] = {}
    """Path in the container → SHA-256 of the file there."""
    mounted: list[str] = []
    """Those of `files` that are not in the image but mounted over it."""
    whole: list[str] = []
    """Folders that only the harness fills. Code in them that is not in `files` must not run."""
    image: str = ""
    """The image in the pods' spec."""
    ours: bool = False
    """The harness built the image, and the image contains its own tag."""
    image_id: str | None = None
    """The image's id, which the pods' status must show. None means not known or not comparable."""
    versions: dict[str, str] = {}
    """Known versions of packages in the image: pluto."""


class Retry(Record):
    """An operation of the harness that was tried again."""

    at: str
    what: str
    reason: str


class DiskUse(Record):
    """A user of space on a disk that was full."""

    what: str
    bytes: int
    command: str
    """The command that frees the space."""


class Manifest(Record):
    """The launch: its job, its requirements, the versions of the stack, and its stages."""

    schema_version: int = SCHEMA_VERSION
    nonce: str
    command: list[str] = []
    job: str | None = None
    """The name in the job file. The name of the launched object is `launch.object_name`."""
    started_at: str
    launched_at: str | None = None
    """The time just before the job was submitted. A run that was created earlier is a stale run."""
    ended_at: str | None = None
    """The end of the launch, written last. None means that the harness itself was cut off."""
    interrupted: str | None = None
    """The reason why the harness stopped early: "SIGINT", or the message of a deadline."""
    deadline_seconds: float | None = None
    versions: dict[str, str] = {}
    cluster: dict[str, Any] = {}
    expected: Expected | None = None
    launch: Launch | None = None
    code: SentCode | None = None
    """None means that the harness of this bundle did not record the code, so there is no check `code`."""
    watched: list[str] = []
    """The kinds of objects (their files below objects/) that were listed once before the launch and watched
    from then on. Empty in bundles of an older harness."""
    stages: list[Stage] = []
    in_stage: str | None = None
    """The current stage. In a bundle that was cut off, it is the stage that the harness had reached."""
    retries: list[Retry] = []
    disk: list[DiskUse] = []
    """The largest users of a disk that was full, the largest first."""
    log_gaps: list[str] = []
    """Logs that are incomplete: "<pod>-<container>: reason"."""


class Observation(Record):
    """One watch event. `object` is the Kubernetes object as the API server sent it."""

    received_at: str
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: dict[str, Any]


class ContainerExit(Record):
    """The end of the command in a rank's container, as its init reported it. The container may still run."""

    at: str
    pod: str
    uid: str | None = None
    """The pod's uid. A pod that was deleted by force may end after a new pod of the same name was created."""
    container: str
    exit_code: int


class DryRun(Record):
    """A request that a controller did not make, sent by the harness as a server-side dry run."""

    at: str
    kind: str
    name: str
    user: str | None = None
    """The controller's user, which the request impersonated. None means the user of the harness."""
    awaited: bool = True
    """Whether the launch waited for an object of this kind. If not, the request creates the launched object
    under another name."""
    message: str | None = None
    """The message with which the API server refused the request. None means that it would be accepted."""


class DeviceHolder(Record):
    """A foreign pod that holds devices of a node while a pod of the launch waits for the same resource."""

    at: str
    node: str
    resource: str
    """The resource's name, for example nvidia.com/gpu."""
    namespace: str
    pod: str
    owner: str = ""
    """Kind and name of the pod's controller. Empty if it has none."""
    amount: int
    """The number of devices that the pod requests."""
    allocatable: int
    """The number of devices that the node has for all pods."""

    @property
    def sentence(self) -> str:
        """Return a sentence that names the pod, its controller and the number of devices."""
        owner = f" of {self.owner}" if self.owner else ""
        return f"{self.namespace}/{self.pod}{owner} holds {self.amount} of {self.allocatable} on {self.node}"


class Process(Record):
    """A process in a container, as its /proc shows it."""

    pid: int
    parent: int
    command: list[str]
    """Empty for a process that is ending."""
    ticks: int = 0
    """CPU time used during the two seconds of the inspection, in hundredths of a second."""
    reaped: int = 0
    """CPU time of its children that have ended, in hundredths of a second."""
    state: str = ""
    """The state letter of /proc/PID/stat: T means stopped by a signal, t by a debugger."""


class Asked(Record):
    """The result of a netcheck probe of an address from a container (harness/workers/netcheck/ask.py)."""

    outcome: str
    """"ok" or a cause."""
    text: str = ""


class RendezvousSnapshot(Record):
    """The inside of a running container. `error` is the reason why the container could not be inspected."""

    at: str
    pod: str
    at_end: bool = False
    """Whether the snapshot was taken at the end of the wait, of a rank that had not ended. If not, it was
    taken at the rendezvous."""
    processes: list[Process] = []
    listening: list[int] = []
    """TCP ports on which a process listens."""
    connected: list[str] = []
    """Remote addresses of established TCP connections, as "address:port"."""
    resolved: dict[str, list[str] | None] = {}
    """Name → its addresses in the container. [] means that it does not resolve, None that this is not
    known."""
    asked: dict[str, Asked] = {}
    """Address of a rendezvous, as "host:port" → the result of the netcheck probe. Addresses that were not
    probed are absent."""
    error: str | None = None


VerdictWord = Literal["PASS", "FAIL", "UNKNOWN"]


class Check(Record):
    """The result of one check (docs/reference/checks.md)."""

    name: str
    result: VerdictWord
    cause: str | None = None
    ranks: list[int] = []
    explanation: str = ""
    evidence: list[str] = []
    """file:line inside the bundle."""
    advice: str = ""
    """What to do about the result. If empty, the advice of docs/causes.md on the cause applies."""


class Verdict(Record):
    """The verdict on the launch, and the checks on which it is based."""

    schema_version: int = SCHEMA_VERSION
    verdict: VerdictWord
    cause: str | None = None
    ranks: list[int] = []
    explanation: str
    evidence: list[str] = []
    next: list[str] = []
    consequences: list[str] = []
    checks: list[Check] = []
