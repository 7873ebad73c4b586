"""The evidence bundle: the folder on disk between everything that acts and everything that judges.

    runs/<utc>-<nonce>/
      manifest.json        Manifest: what was launched with what, and how long each stage took
      objects/<kind>.jsonl Observation: every state seen of jobset, workload, job, pod, node,
                           localqueue, clusterqueue, and of what surrounds the launch: namespace, service,
                           DNS, control plane, … (kinds.SURROUNDINGS); of Secrets and ConfigMaps the
                           metadata alone
      events.jsonl         Observation of core/v1 Events
      inspections.jsonl    Inspection: containers from inside, when their ranks should have met
      exits.jsonl          ContainerExit: how the commands of ranks ended, where their containers are held
      logs/<pod>-<container>.log   "<RFC 3339 time> <line>", from the first line to the last
      truth/<rank>.jsonl   of each attempt of the rank TruthStart, TruthCode …, TruthRow …, TruthRewrite …,
                           TruthBlock …, TruthClient, TruthCode …, then TruthEnd: what the rank itself says it
                           logged
      truth/<rank>.outside.jsonl   the same by the recorder around Pluto's client, where the worker also
                           records by itself
      tracker/runs.jsonl, attachments.jsonl, points.jsonl, writers.jsonl
                           TrackerRun, Attachment, Point, RunWriter
      tracker/summary.json TrackerSummary: counts, so that a file cut short is noticed
      controllers/, kind/  logs of controllers, export of a cluster that failed
      verdict.json         Verdict
      report.html          all of it for people (harness/report/page.py); no judge reads it
      ctrf.json, junit.xml the verdict and each check as a test, for CI (harness/report/suite.py); no evidence
                           either

Times are RFC 3339 UTC strings unless the name ends in _ms (milliseconds since the epoch) or seconds.
Everything is written as it happens; a bundle cut off at any moment is readable.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

SCHEMA_VERSION = 2
"""Version 2 renamed causes and checks (harness/evidence/renamed.py) and added attempts and members."""


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


Value = Annotated[float, BeforeValidator(float), PlainSerializer(_number)]
"""A metric value: a double. In JSON, non-finite values are the strings NaN, Infinity, -Infinity."""


class Record(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="constants")


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
    """A recorder around Pluto's client was mounted (harness/launch/recorder.py)."""

    @property
    def tracked_as(self) -> str | None:
        """Return the job's name on the tracker."""
        return self.job_name or self.object_name


class Expected(Record):
    """What must be true for a PASS, known before launch."""

    num_nodes: int
    ranks: int
    """World size: num_nodes × processes per node."""
    run_id: str
    """The shared PLUTO_RUN_ID (Pluto's externalId)."""
    project: str
    min_nodes_used: int = 1
    """Distinct Kubernetes nodes that the ranks must run on."""
    queue: str | None = None


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
    container: str
    exit_code: int


class Process(Record):
    pid: int
    parent: int
    command: list[str]
    """Empty for a process that is ending."""
    ticks: int = 0
    """CPU time that it used during the two seconds of the look, in hundredths of a second."""
    reaped: int = 0
    """CPU time of its children that have ended, in hundredths of a second."""


class RendezvousSnapshot(Record):
    """A running container from inside. `error` says why it could not be inspected."""

    at: str
    pod: str
    processes: list[Process] = []
    listening: list[int] = []
    """TCP ports."""
    connected: list[str] = []
    """Remote ends of established TCP connections, "address:port"."""
    resolved: dict[str, list[str] | None] = {}
    """Name → its addresses in the container. [] when it does not resolve, None when that is not known."""
    error: str | None = None


class TruthStart(Record):
    """The first line of an attempt.

    A rank that is restarted begins a new attempt. Rows without this line are of attempt 0.
    """

    kind: Literal["start"] = "start"
    attempt: str
    """An id that the rank made when it started."""
    time_ms: int
    host: str | None = None
    """Hostname of its pod."""
    pod: str | None = None
    """Name of the pod whose log holds it."""
    restart: int | None = None
    """How often torchrun had restarted the ranks of this pod before. None without torchrun."""
    max_restarts: int | None = None
    """How often torchrun may restart them (--max-restarts)."""
    outside: bool = False
    """Recorded around the client's calls (harness/workers/outside_client.py), not by the worker itself."""


class TruthRow(Record):
    kind: Literal["row"] = "row"
    metric: str
    step: int
    value: Value
    time_ms: int


class TruthBlock(Record):
    """Rows past the row limit, as a digest only (harness/workers/truth_frames.py)."""

    kind: Literal["block"] = "block"
    metric: str
    first: int
    last: int
    count: int
    sha256: str


class TruthEnd(Record):
    """The rank's last line: it recorded `count` rows with this root digest, and ended."""

    kind: Literal["end"] = "end"
    count: int
    sha256: str
    metrics: dict[str, tuple[int, str]] = {}


class TruthClient(Record):
    """What the rank's Pluto client reports (harness/workers/client_state.py): ranges of steps by metric.

    If `whole`, a point that is in neither range was never given to the client. Otherwise it may have been
    sent.
    """

    kind: Literal["client"] = "client"
    whole: bool
    sent: dict[str, list[tuple[int, int]]] = {}
    """Acknowledged by the tracker."""
    unsent: dict[str, list[tuple[int, int]]] = {}
    error: str = ""
    """Why the latest of the unsent points was not sent."""


class TruthCode(Record):
    """Part of what an attempt says of the code that it runs (harness/workers/code_digest.py)."""

    kind: Literal["code"] = "code"
    facts: list[tuple[str, str, str]] = []
    """(what, name, value)."""


class TruthFault(Record):
    """The recorder around the client failed, so rows may be missing."""

    kind: Literal["fault"] = "fault"
    text: str


class TruthRewrite(Record):
    """What the client was going to make of a value that it was given (harness/workers/client_rules.py).

    The first one of each metric and reason.
    """

    kind: Literal["rewrite"] = "rewrite"
    metric: str
    step: str
    was: str
    kept: bool
    """Whether a value comes into the run, though another one."""
    why: str


class TruthGap(Record):
    """Frames missing from the log between two sequence numbers."""

    kind: Literal["gap"] = "gap"
    after_seq: int
    next_seq: int


TruthLine = Annotated[
    TruthStart
    | TruthRow
    | TruthBlock
    | TruthClient
    | TruthCode
    | TruthRewrite
    | TruthEnd
    | TruthGap
    | TruthFault,
    Field(discriminator="kind"),
]


class TrackerRun(Record):
    """One run on the tracker that this launch touched, or that has its id."""

    run_id: int
    external_id: str | None = None
    project: str
    name: str = ""
    status: str
    created_at: str
    display_id: str | None = None
    status_history: list[dict[str, Any]] = []


class Attachment(Record):
    """One accepted create/resume call: a process attached itself to a run."""

    run_id: int
    at: str
    resumed: bool
    name: str | None = None
    hostname: str | None = None
    """Pod hostname, e.g. <jobset>-workers-0-1."""
    rank: int | None = None
    """RANK of the process, as the client tells it: under torchrun the global rank."""
    job_name: str | None = None
    peer: str | None = None
    launch: str | None = None
    """Nonce of the launch whose key it came with. None: another key, or a tracker that does not tell."""


class Point(Record):
    """One raw row as the tracker stored it, in arrival order. A re-sent row appears twice."""

    run_id: int
    metric: str
    step: int
    value: Value
    time_ms: int
    received_at: str
    sender: str | None = None
    """X-Run-Name of the process that sent it."""
    peer: str | None = None
    launch: str | None = None
    """As in Attachment."""


class RunWriter(Record):
    """All requests of one kind that one sender wrote into a run with."""

    run_id: int
    kind: str
    """attach, metrics, logs, data, files, status, heartbeat, names, tags, config, alert or graph. "claim": a
    launch said, before it started, that it will write into this run (harness/tracker/claims.py)."""
    launch: str | None = None
    """As in Attachment."""
    sender: str | None = None
    """X-Run-Name."""
    peer: str | None = None
    requests: int
    rows: int
    """Rows, names or files in these requests; 1 for each request that has none."""
    first: str
    last: str


class TrackerFailure(Record):
    """Requests that the tracker could not serve, as it reports itself."""

    reason: str
    count: int
    first: str
    last: str


class TrackerSummary(Record):
    source: Literal["embedded", "hosted"]
    fetched_at: str
    runs: int
    attachments: int | None
    """None: this tracker keeps no attachments (hosted Pluto)."""
    points: int
    writers: int | None = None
    """None: this tracker does not tell who wrote into a run."""
    truncated: bool = False
    error: str | None = None
    failures: list[TrackerFailure] = []
    """Since the tracker started, so they may belong to other launches too."""


VerdictWord = Literal["PASS", "FAIL", "UNKNOWN"]


class Check(Record):
    name: str
    result: VerdictWord
    cause: str | None = None
    ranks: list[int] = []
    explanation: str = ""
    evidence: list[str] = []
    """file:line inside the bundle."""


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
