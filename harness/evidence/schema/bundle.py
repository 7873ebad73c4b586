"""The evidence bundle: the directory that the launch code writes and the judge reads.

    runs/<utc>-<nonce>/
      manifest.json        Manifest: what was launched, with which versions, and how long each stage took
      objects/<kind>.jsonl Observation: every observed state of jobset, workload, job, pod, node,
                           localqueue and clusterqueue, and of the objects around the launch: namespace,
                           service, DNS, control plane, … (kinds.SURROUNDINGS). Of Secrets and ConfigMaps
                           only the metadata is recorded
      events.jsonl         Observation of core/v1 Events
      inspections.jsonl    RendezvousSnapshot: processes and connections in containers, at the rendezvous or
                           at the end
      netcheck.jsonl       NetcheckRecord: the diagnosis of netcheck in each pod, if it ran
      acceptance.jsonl     AcceptanceRecord: each result of an acceptance test, and each pod's report
      processes.jsonl      ProcessLine: the processes in ranks' containers, the rank and world size of each
                           process, and how the process ended
      dry-runs.jsonl       DryRun: the API server's response for an object that a controller did not create
      device-holders.jsonl DeviceHolder: pods with devices that one of the launch's pods is waiting for
      exits.jsonl          ContainerExit: how ranks' commands ended in containers that are kept alive
      logs/<pod>-<container>.log   the complete log, each line as "<RFC 3339 time> <line>"
      truth/<rank>.jsonl   the rank's own record of the points it logged. Each attempt has TruthStart,
                           TruthCode …, TruthRow …, TruthRewrite …, TruthBlock …, TruthClient, TruthCode …,
                           then TruthEnd
      truth/<rank>.columns, tracker/points.columns
                           large numbers of rows; a line of kind "columns" refers to them (columns.py)
      truth/<rank>.outside.jsonl   the record by the recorder around the Pluto client, if the worker also
                           writes its own record to truth/<rank>.jsonl
      tracker/runs.jsonl, attachments.jsonl, points.jsonl, writers.jsonl, digests.jsonl
                           TrackerRun, Attachment, Point, RunWriter, DigestReport
      tracker/summary.json TrackerSummary: record counts, to detect truncated files
      controllers/, kind/  logs of controllers; output of `kind export logs` for a failed cluster
      verdict.json         Verdict
      report.html          a page for people (harness/report/html/page.py); no judge reads it
      ctrf.json, junit.xml the verdict and each check as a test, for CI (harness/report/ci/suite.py);
                           no judge reads them

Times are RFC 3339 UTC strings unless the field's name ends in _ms (milliseconds since the epoch) or seconds.
Each record is written as soon as it exists, so a bundle is readable even if the harness was killed.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from harness.core.input_limits import MAX_RANKS
from harness.evidence.schema.record import Record

SCHEMA_VERSION = 2
"""The version of the bundle's format. Version 2 renamed causes and checks
(harness/evidence/schema/renamed_ids.py) and added attempts and members."""


Purpose = Literal["training", "netcheck", "nodes", "ddp"]
"""What the pods of a launch run: a training job that logs with Pluto, netcheck, or acceptance tests. "nodes"
tests each node separately, and "ddp" tests collective operations across all nodes.
"""


class Stage(Record):
    """A stage of a launch, with its duration. `error` is set if an error in this stage ended the launch."""

    name: str
    started_at: str
    seconds: float
    ok: bool = True
    error: str | None = None
    cause: str | None = None
    """The cause of the error (docs/causes.md), if the stage determined one."""


class PodGroup(Record):
    """A group of an attached job's pods, and how to determine their node indexes.

    For example, the pods of one replicated job in a JobSet form a group.
    """

    labels: dict[str, str] = {}
    """The labels that all pods in this group have."""
    owner: str | None = None
    """The uid of the pods' controller, for kinds whose pods do not have a label with the job's name."""
    first: int = 0
    """The node index of the group's first pod."""
    strides: dict[str, int] = {}
    """Maps each label or annotation that contains an index to the amount by which a pod's node index
    increases when that index increases by one."""
    names: dict[str, int] = {}
    """Maps the names of pods that have no label or annotation with an index to their node indexes."""


class Launch(Record):
    """The launched workload. `object_name` is the name of its object in the cluster."""

    launcher: str
    namespace: str
    kind: str
    object_name: str | None = None
    uid: str | None = None
    attached: bool = False
    """Whether the harness only read the job and did not launch it (`harness attach`)."""
    pods: list[PodGroup] = []
    """For an attached job: the groups of pods that run ranks. For a launched job, the workload's kind
    determines these pods."""
    container: str = "konduktor-container"
    job_name: str | None = None
    """The job name that the ranks' clients send to the tracker. None means `object_name`."""
    held: bool = False
    """Whether init keeps each container alive after its command has ended, because the controller would
    restart terminated containers. The exit codes are in exits.jsonl."""
    recorder: bool = False
    """Whether a recorder around the Pluto client was mounted (harness/launch/mounts/recorder.py)."""
    accounts: list[str] = []
    """The kinds of data for which the recorder counts every item. "keys" means the values that were passed to
    `run.log` (TruthAccount). Empty in bundles from older harness versions."""
    processes: bool = False
    """Whether the ranks' worlds, processes and terminations are recorded, either by the recorder
    (processes.jsonl) or, if there is none, by the workers."""
    netcheck: Literal["before", "alone"] | None = None
    """"before" if netcheck ran in each pod before the command, or "alone" if it ran in a job that does not
    log with Pluto."""
    acceptance: Literal["nodes", "ddp"] | None = None
    """The acceptance tests that ran in each pod, or None. Such a launch does not log with Pluto."""
    training: bool = False
    """Whether the ranks run a trainer whose checkpoints are audited (harness/workers/training/audit.py)."""
    max_nodes: int | None = None
    """For training: the maximum number of nodes to which the StatefulSet can be scaled. None means a fixed
    number of nodes."""
    reach: float | None = None
    """For training: how far the lowest validation loss may exceed the known entropy of the generated texts.

    The value is a fraction of the entropy.
    """
    same_as: str | None = None
    """For training: the bundle whose final weights this training run must reproduce."""
    same_as_weights: str | None = None
    """The SHA-256 of the final weights in the bundle that `same_as` names."""
    upload: str | None = None
    """For training: the s3://BUCKET/PREFIX to which the training run must be uploaded at the end."""
    resume_from: str | None = None
    """For training: the s3://BUCKET/PREFIX of the training run that must be continued."""

    @property
    def tracked_as(self) -> str | None:
        """Return the name under which the job logs to the tracker."""
        return self.job_name or self.object_name


class Expected(Record):
    """What a launch must achieve for a PASS verdict, as known before the launch."""

    num_nodes: int = Field(le=MAX_RANKS)
    ranks: int = Field(le=MAX_RANKS)
    """The world size: num_nodes × processes per node. At most MAX_RANKS, because the judge iterates over all
    ranks."""
    most_ranks: int | None = Field(default=None, le=MAX_RANKS)
    """The highest number of ranks expected at any time, if the number of nodes is not fixed. `num_nodes` and
    `ranks` then apply to the end of the launch. None means the same number as `ranks`."""
    ranks_given: bool = True
    """Whether the job file contains the number of ranks. If not, the job computes it at run time, and the
    judge uses the recorded world size."""
    ranks_from: str = ""
    """For an attached job: where the harness read the number of ranks, or why the number is not known."""
    run_id: str
    """The shared PLUTO_RUN_ID (Pluto's externalId)."""
    project: str
    tracker_run: int | None = None
    """The tracker's own id of the shared run, if an attached job is known to log to it. It then replaces
    `run_id` and `project`, because such a run need not have an external id."""
    min_nodes_used: int = 1
    """The minimum number of distinct Kubernetes nodes on which the ranks must run."""
    ranks_that_log: list[int] | None = None
    """The ranks that log. All other ranks must finish without logging anything. None means that all ranks
    log."""
    queue: str | None = None
    node_names: list[str] = []
    """The Kubernetes nodes that must report results, if acceptance tests run on each of them."""
    device: Literal["cpu", "cuda"] | None = None
    """The device that acceptance tests must test: "cuda" if the pods request GPUs."""


class SentCode(Record):
    """The code that the harness sent to the ranks. The `code` check compares it with the code that ran."""

    files: dict[str, str] = {}
    """The SHA-256 of each sent file, keyed by the file's path in the container."""
    mounted: list[str] = []
    """The paths in `files` that are mounted into the container. All other files are in the image."""
    whole: list[str] = []
    """Directories to which only the harness adds files. Code in them must not run unless it is listed in
    `files`."""
    image: str = ""
    """The image in the pod spec."""
    ours: bool = False
    """Whether the harness built the image. The tag of such an image is also stored inside the image."""
    image_id: str | None = None
    """The image id that the pods' status must contain. None means that the ids cannot be compared."""
    versions: dict[str, str] = {}
    """Package versions in the image, if known. The only package is pluto."""


class Replaced(Record):
    """A package that the user replaced (`--replace`)."""

    name: str
    spec: str
    """The requested version, range or path."""
    version: str
    digest: str
    """The SHA-256 of the wheel or of the Go module, or of the hashes that the package index lists. "" if it
    is not known."""
    origin: str
    """Where the package comes from: the package index, the path of a wheel, sdist or checkout, or the path of
    a repository with a ref."""
    locked: str | None = None
    """The version in the lock file. None means that the lock file does not contain the package."""


class Retry(Record):
    """One retry of an operation of the harness, with the reason."""

    at: str
    what: str
    reason: str


class DiskUse(Record):
    """One of the files or directories that use the most space on a full disk."""

    what: str
    bytes: int
    command: str
    """A command that frees the space."""


class Manifest(Record):
    """The content of manifest.json.

    It describes the launched job, its requirements, the versions of all components, and the stages of the
    launch.
    """

    schema_version: int = SCHEMA_VERSION
    nonce: str
    command: list[str] = []
    job: str | None = None
    """The job's name in the job file. The launched object can have another name, which is
    `launch.object_name`."""
    started_at: str
    launched_at: str | None = None
    """The time just before the job was submitted. A run that was created on the tracker before this time is
    stale."""
    ended_at: str | None = None
    """The time at which the launch ended. It is written last, so None means that the harness was killed
    earlier."""
    interrupted: str | None = None
    """The reason why the harness stopped early: "SIGINT", or the message of a deadline."""
    deadline_seconds: float | None = None
    versions: dict[str, str] = {}
    replaced: list[Replaced] = []
    """The packages that differ from the lock file because the user replaced them."""
    cluster: dict[str, Any] = {}
    expected: Expected | None = None
    launch: Launch | None = None
    code: SentCode | None = None
    """The code that was sent to the ranks. It is None in bundles from older harness versions, for which the
    `code` check is omitted."""
    attached_at: str | None = None
    """For an attached job: the time at which the harness had read its objects. Changes before this time are
    known only if the objects still show them."""
    unread: dict[str, str] = {}
    """The object kinds (file names in objects/) that an attached harness could not read, with the reasons."""
    watched: list[str] = []
    """The object kinds (file names in objects/) that were listed before the launch and watched from then on.
    Empty in bundles from older harness versions."""
    stages: list[Stage] = []
    in_stage: str | None = None
    """The current stage. If the harness was killed, this is the last stage that it reached."""
    retries: list[Retry] = []
    disk: list[DiskUse] = []
    """The files and directories that used the most space on a disk that was full, largest first."""
    log_gaps: list[str] = []
    """The incomplete logs, each as "<pod>-<container>: reason"."""


class Observation(Record):
    """One watch event. `object` is the Kubernetes object in the event."""

    received_at: str
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: dict[str, Any]


class ContainerExit(Record):
    """The exit code of a rank's command, reported by init. The container may still be running."""

    at: str
    pod: str
    uid: str | None = None
    """The pod's uid. The name is not unique, because a force-deleted pod can end after a new pod with the
    same name was created."""
    container: str
    exit_code: int


class DryRun(Record):
    """A server-side dry run, sent by the harness, of a request that a controller should have made."""

    at: str
    kind: str
    name: str
    user: str | None = None
    """The controller's user that the request impersonated. None means the harness's own user."""
    awaited: bool = True
    """Whether the launch was waiting for an object of this kind. If false, the request was to create a copy
    of the launched object under another name."""
    message: str | None = None
    """The message with which the API server refused the request. None means that the request was accepted."""


class DeviceHolder(Record):
    """A pod outside the launch that uses devices on a node while one of the launch's pods waits for them."""

    at: str
    node: str
    resource: str
    """The resource's name, for example nvidia.com/gpu."""
    namespace: str
    pod: str
    owner: str = ""
    """The kind and name of the pod's controller, or "" if the pod does not have a controller."""
    amount: int
    """The number of devices that the pod requests."""
    allocatable: int
    """The total number of devices that the node can allocate to pods."""

    @property
    def sentence(self) -> str:
        """Return a sentence that names the pod, its controller and the number of devices."""
        owner = f" of {self.owner}" if self.owner else ""
        return f"{self.namespace}/{self.pod}{owner} holds {self.amount} of {self.allocatable} on {self.node}"


class Process(Record):
    """A process in a container, read from /proc in the container."""

    pid: int
    parent: int
    command: list[str]
    """The command line. Empty for a process that is exiting."""
    ticks: int = 0
    """CPU time used by the process during the two-second inspection, in hundredths of a second."""
    reaped: int = 0
    """CPU time that the process's terminated children have used, in hundredths of a second."""
    state: str = ""
    """The state letter in /proc/PID/stat. T means stopped by a signal, t means stopped by a debugger."""


class ProbeResult(Record):
    """The result of a netcheck probe from a container to an address (harness/workers/netcheck/ask.py)."""

    outcome: str
    """The result: "ok" or a cause."""
    text: str = ""


class RendezvousSnapshot(Record):
    """The processes and connections in a running container. `error` is set if the inspection failed."""

    at: str
    pod: str
    at_end: bool = False
    """Whether the snapshot was taken when the harness stopped waiting, in a container that had not ended by
    then. If false, the snapshot was taken earlier during the launch."""
    processes: list[Process] = []
    listening: list[int] = []
    """TCP ports on which a process is listening."""
    connected: list[str] = []
    """Remote addresses of established TCP connections, as "address:port"."""
    resolved: dict[str, list[str] | None] = {}
    """The addresses to which each hostname resolves in the container. [] means that the name does not
    resolve, and None that it could not be looked up."""
    asked: dict[str, ProbeResult] = {}
    """The result of the netcheck probe of each rendezvous address ("host:port"). Only probed addresses are
    listed."""
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
    """References to lines in the bundle that support the result, each as file:line."""
    advice: str = ""
    """What the user should do about the result. If empty, the advice for the cause in docs/causes.md
    applies."""


class Verdict(Record):
    """The content of verdict.json.

    It consists of the verdict on the launch, and the results of the checks on which the verdict is based.
    """

    schema_version: int = SCHEMA_VERSION
    verdict: VerdictWord
    cause: str | None = None
    ranks: list[int] = []
    explanation: str
    evidence: list[str] = []
    next: list[str] = []
    consequences: list[str] = []
    checks: list[Check] = []
