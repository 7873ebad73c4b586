"""The evidence bundle: the folder on disk between everything that acts and everything that judges.

    runs/<utc>-<nonce>/
      manifest.json        Manifest: what was launched with what, and how long each stage took
      objects/<kind>.jsonl Observation: every state seen of jobset, workload, job, pod, node,
                           localqueue, clusterqueue, and of what surrounds the launch: namespace, service,
                           DNS, control plane, … (kinds.SURROUNDINGS); of Secrets and ConfigMaps the
                           metadata alone
      events.jsonl         Observation of core/v1 Events
      inspections.jsonl    RendezvousSnapshot: containers from inside, at the rendezvous or the end
      netcheck.jsonl       NetcheckRecord: what netcheck said in each pod, where it ran
      acceptance.jsonl     AcceptanceRecord: each acceptance test as it was made, and each pod's report
      processes.jsonl      ProcessLine: which processes ran in ranks' containers, the world that each believed
                           in, and how it ended
      dry-runs.jsonl       DryRun: what the API server says of an object that a controller did not create
      device-holders.jsonl DeviceHolder: which pods hold the devices that a pod of the launch waits for
      exits.jsonl          ContainerExit: how the commands of ranks ended, where their containers are held
      logs/<pod>-<container>.log   "<RFC 3339 time> <line>", from the first line to the last
      truth/<rank>.jsonl   of each attempt of the rank TruthStart, TruthCode …, TruthRow …, TruthRewrite …,
                           TruthBlock …, TruthClient, TruthCode …, then TruthEnd: what the rank itself says it
                           logged
      truth/<rank>.columns, tracker/points.columns
                           many rows in columns: a line of kind "columns" says which (columns.py)
      truth/<rank>.outside.jsonl   the same by the recorder around Pluto's client, where the worker also
                           records by itself
      tracker/runs.jsonl, attachments.jsonl, points.jsonl, writers.jsonl
                           TrackerRun, Attachment, Point, RunWriter
      tracker/summary.json TrackerSummary: counts, so that a file cut short is noticed
      controllers/, kind/  logs of controllers, export of a cluster that failed
      verdict.json         Verdict
      report.html          all of it for people (harness/report/html/page.py); no judge reads it
      ctrf.json, junit.xml the verdict and each check as a test, for CI (harness/report/ci/cases.py);
                           no evidence either

Times are RFC 3339 UTC strings unless the name ends in _ms (milliseconds since the epoch) or seconds.
Everything is written as it happens; a bundle cut off at any moment is readable.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from harness.core.bounds import MAX_RANKS
from harness.evidence.schema.record import Record

SCHEMA_VERSION = 2
"""Version 2 renamed causes and checks (harness/evidence/schema/upgrade.py) and added attempts and members."""


Purpose = Literal["training", "netcheck", "nodes", "ddp"]
"""What the pods of a launch run: a training that logs with Pluto, netcheck, or acceptance tests. These test
each node by itself, or the collectives over all of them.
"""


class Stage(Record):
    """One timed step of a run. `error` is set when the stage ended the run."""

    name: str
    started_at: str
    seconds: float
    ok: bool = True
    error: str | None = None
    cause: str | None = None
    """The cause (docs/causes.md) that the stage itself could name."""


class Launch(Record):
    """What was launched. `object_name` is read back from the cluster, never assumed."""

    launcher: str
    namespace: str
    kind: str
    object_name: str | None = None
    uid: str | None = None
    container: str = "konduktor-container"
    job_name: str | None = None
    """The job name that the ranks' clients give the tracker. None: `object_name`."""
    held: bool = False
    """Its controller restarts what ends, so containers stay when their command has ended (exits.jsonl)."""
    recorder: bool = False
    """A recorder around Pluto's client was mounted (harness/launch/mounts/recorder.py)."""
    accounts: list[str] = []
    """What the recorder closes accounts of: "keys". Empty in bundles of an older harness."""
    processes: bool = False
    """Worlds, processes and ends are accounted for: by that recorder (processes.jsonl), or without it by what
    workers record themselves."""
    netcheck: Literal["before", "alone"] | None = None
    """netcheck ran in each pod: before the command, or alone, in a job that logs nothing with Pluto."""
    acceptance: Literal["nodes", "ddp"] | None = None
    """Acceptance tests ran in each pod, and nothing was logged with Pluto."""
    training: bool = False
    """The ranks are those of a trainer whose checkpoints are audited (harness/workers/training/audit.py)."""
    max_nodes: int | None = None
    """Of a training: most nodes that its StatefulSet may be scaled to. None: the number of nodes is fixed."""
    reach: float | None = None
    """Of a training: how far the loss may end above the known entropy of its texts, as a fraction."""
    same_as: str | None = None
    """Of a training: the bundle whose weights it must end with."""
    same_as_weights: str | None = None
    """SHA-256 of these weights."""
    upload: str | None = None
    """Of a training: the s3://BUCKET/PREFIX that its run must be in at the end."""
    resume_from: str | None = None
    """Of a training: the s3://BUCKET/PREFIX whose run it must go on with."""

    @property
    def tracked_as(self) -> str | None:
        """Return the job's name on the tracker."""
        return self.job_name or self.object_name


class Expected(Record):
    """What must be true for a PASS, known before launch."""

    num_nodes: int = Field(le=MAX_RANKS)
    ranks: int = Field(le=MAX_RANKS)
    """World size: num_nodes × processes per node. Judges look at each rank, so a bundle has no more."""
    most_ranks: int | None = Field(default=None, le=MAX_RANKS)
    """The most ranks that were expected at a time, where the number of nodes is not fixed. `num_nodes` and
    `ranks` are then those at the end of the wait. None: `ranks`."""
    ranks_given: bool = True
    """Whether the file says how many. Otherwise the job computes it, and the recorded world counts."""
    run_id: str
    """The shared PLUTO_RUN_ID (Pluto's externalId)."""
    project: str
    min_nodes_used: int = 1
    """Distinct Kubernetes nodes that the ranks must run on."""
    ranks_that_log: list[int] | None = None
    """The others must run to their end and log nothing. None: every rank logs."""
    queue: str | None = None
    node_names: list[str] = []
    """Kubernetes nodes that must answer, where acceptance tests run on each of them."""
    device: Literal["cpu", "cuda"] | None = None
    """What acceptance tests are to test: cuda where the pods ask for GPUs."""


class SentCode(Record):
    """The code that the harness gave to the ranks. The check `code` compares what ran with it."""

    files: dict[str, str] = {}
    """Path in the container → SHA-256 of the file there."""
    mounted: list[str] = []
    """Those of them that are not in the image, but mounted over it."""
    whole: list[str] = []
    """Folders in which nothing else may run, because the harness alone filled them."""
    image: str = ""
    """The image that the pods ask for."""
    ours: bool = False
    """The harness built it, and wrote this tag into it."""
    image_id: str | None = None
    """Its id, which the pods' status must show. None: not known, or not comparable."""
    versions: dict[str, str] = {}
    """What is known to be in it: pluto."""


class Retry(Record):
    at: str
    what: str
    reason: str


class DiskUse(Record):
    """Who holds space of a disk that was found full."""

    what: str
    bytes: int
    command: str
    """It frees that space."""


class Manifest(Record):
    schema_version: int = SCHEMA_VERSION
    nonce: str
    command: list[str] = []
    job: str | None = None
    """The name in the job file. The name of the launched object is `launch.object_name`."""
    started_at: str
    launched_at: str | None = None
    """Just before the job was submitted. A run that was created earlier is a stale run."""
    ended_at: str | None = None
    """Set last. None: the harness itself was cut off."""
    interrupted: str | None = None
    """Why the harness stopped early: "SIGINT", or the message of a deadline."""
    deadline_seconds: float | None = None
    versions: dict[str, str] = {}
    cluster: dict[str, Any] = {}
    expected: Expected | None = None
    launch: Launch | None = None
    code: SentCode | None = None
    """None: the harness of this bundle did not record it, so there is no check `code`."""
    watched: list[str] = []
    """The kinds of objects (their files below objects/) that were listed once before the launch and watched
    from then on. Empty in a bundle of a harness that did not record it."""
    stages: list[Stage] = []
    in_stage: str | None = None
    """The stage under way. It shows how far a harness that was cut off had come."""
    retries: list[Retry] = []
    disk: list[DiskUse] = []
    """When a disk was found full: what held most of it, the largest first."""
    log_gaps: list[str] = []
    """Logs known to be incomplete: "<pod>-<container>: reason"."""


class Observation(Record):
    """One watch delivery. `object` is the Kubernetes object as the API server gave it."""

    received_at: str
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: dict[str, Any]


class ContainerExit(Record):
    """The end of a rank container's command, as its init reported it. The container may still be there."""

    at: str
    pod: str
    uid: str | None = None
    """Of the pod. A pod that was deleted by force may end after another one has come under its name."""
    container: str
    exit_code: int


class DryRun(Record):
    """A request of a controller that did not come, repeated by the harness as a server-side dry run."""

    at: str
    kind: str
    name: str
    user: str | None = None
    """In whose name the API server was asked: the controller's. None: in that of the harness."""
    awaited: bool = True
    """Whether an object of this kind was awaited. Otherwise it is the launched object under another name."""
    message: str | None = None
    """The sentence with which the API server refused it. None: it would be accepted."""


class DeviceHolder(Record):
    """A foreign pod that holds devices of a node while a pod of the launch waits for the same resource."""

    at: str
    node: str
    resource: str
    """As nvidia.com/gpu."""
    namespace: str
    pod: str
    owner: str = ""
    """Kind and name of its controller. Empty: nothing controls it."""
    amount: int
    """How many devices it requests."""
    allocatable: int
    """How many the node has for all pods."""

    @property
    def sentence(self) -> str:
        """Return who holds how many."""
        owner = f" of {self.owner}" if self.owner else ""
        return f"{self.namespace}/{self.pod}{owner} holds {self.amount} of {self.allocatable} on {self.node}"


class Process(Record):
    pid: int
    parent: int
    command: list[str]
    """Empty for a process that is ending."""
    ticks: int = 0
    """CPU time that it used during the two seconds of the look, in hundredths of a second."""
    reaped: int = 0
    """CPU time of its children that have ended, in hundredths of a second."""
    state: str = ""
    """The letter of /proc/PID/stat: T is stopped by a signal, t by a debugger."""


class Asked(Record):
    """What netcheck, asked in a container, says of an address (harness/workers/netcheck/ask.py)."""

    outcome: str
    """ok, or a cause."""
    text: str = ""


class RendezvousSnapshot(Record):
    """A running container from inside. `error` says why it could not be inspected."""

    at: str
    pod: str
    at_end: bool = False
    """Whether it was taken when the wait was over and the rank had not ended, not at the rendezvous."""
    processes: list[Process] = []
    listening: list[int] = []
    """TCP ports."""
    connected: list[str] = []
    """Remote ends of established TCP connections, "address:port"."""
    resolved: dict[str, list[str] | None] = {}
    """Name → its addresses in the container. [] when it does not resolve, None when that is not known."""
    asked: dict[str, Asked] = {}
    """Address of a rendezvous, "host:port" → what netcheck says of it. Not there when it was not asked."""
    error: str | None = None


VerdictWord = Literal["PASS", "FAIL", "UNKNOWN"]


class Check(Record):
    name: str
    result: VerdictWord
    cause: str | None = None
    ranks: list[int] = []
    explanation: str = ""
    evidence: list[str] = []
    """file:line inside the bundle."""
    advice: str = ""
    """What to do about it. Empty: what docs/causes.md says of the cause."""


class Verdict(Record):
    schema_version: int = SCHEMA_VERSION
    verdict: VerdictWord
    cause: str | None = None
    ranks: list[int] = []
    explanation: str
    evidence: list[str] = []
    next: list[str] = []
    consequences: list[str] = []
    checks: list[Check] = []
