"""The records of truth/<rank>.jsonl: what the rank itself recorded (harness/workers/truth_frames.py)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.evidence.schema.columns import ColumnsRecord
from harness.evidence.schema.record import Record, Value


class TruthStart(Record):
    """The first line of an attempt.

    A rank that is restarted begins a new attempt. Rows without this line belong to attempt 0.
    """

    kind: Literal["start"] = "start"
    attempt: str
    """An id that the rank generated when it started."""
    time_ms: int
    host: str | None = None
    """Hostname of the rank's pod."""
    pod: str | None = None
    """Name of the pod whose log contains the line."""
    pid: int | None = None
    """Process id inside the container. None in bundles of an older recorder."""
    restart: int | None = None
    """The number of times that torchrun had restarted the ranks of this pod before. None without torchrun."""
    max_restarts: int | None = None
    """The number of times that torchrun may restart the ranks (--max-restarts)."""
    world: int | None = None
    """WORLD_SIZE in the rank's environment."""
    outside: bool = False
    """Whether the recorder around the client wrote the attempt (harness/workers/outside_client.py), not the
    worker itself."""
    parent: int | None = None
    """Process id of the rank if this process is a child of it. None for the rank's own process."""


class TruthRow(Record):
    """One point that the rank logged."""

    kind: Literal["row"] = "row"
    metric: str
    step: int
    value: Value
    time_ms: int


class TruthColumns(ColumnsRecord):
    """Many rows of one attempt, stored in a column file. The line replaces one TruthRow for each row.

    The fields are those of ColumnsRecord.
    """

    kind: Literal["columns"] = "columns"


class TruthBlock(Record):
    """Rows beyond the row limit, of which only a digest is recorded (harness/workers/truth_frames.py)."""

    kind: Literal["block"] = "block"
    metric: str
    first: int
    last: int
    count: int
    sha256: str
    ordered: bool | None = None
    """Whether each step of the metric so far was higher than the one before. None in bundles of an older
    recorder."""
    kept: bool = False
    """Whether the block contains the rows that Pluto keeps, by step. It exists for a metric whose steps fell
    or repeated, and covers all its rows in the attempt. In the comparison with the run, such blocks replace
    the metric's other blocks and its rows."""
    again: int = 0
    """The number of points in the block that were logged with more than one value."""
    older: int = 0
    """The number of points whose last logged value is not kept, because its time is earlier."""


class TruthMetrics(Record):
    """Digests over all rows of some metrics. Written for an attempt with rows beyond the row limit."""

    kind: Literal["metrics"] = "metrics"
    metrics: list[tuple[str, int, str]]
    """(metric, number of rows, SHA-256 of the rows)."""


class TruthEnd(Record):
    """The last line of an attempt: the number of rows that the rank recorded, and their root digest."""

    kind: Literal["end"] = "end"
    count: int
    sha256: str
    metrics: dict[str, tuple[int, str]] = {}
    """The digests of TruthMetrics, in bundles of an older recorder. Empty if they did not fit one frame."""


class TruthClient(Record):
    """The state of the queue of the rank's Pluto client (harness/workers/client_state.py): steps by metric.

    If `whole` is true, a point in neither `sent` nor `unsent` never reached the client. If it is false, such
    a point may have been sent.
    """

    kind: Literal["client"] = "client"
    whole: bool
    sent: dict[str, list[tuple[int, int]]] = {}
    """Metric → ranges of steps that the tracker acknowledged."""
    unsent: dict[str, list[tuple[int, int]]] = {}
    """Metric → ranges of steps that the tracker did not acknowledge."""
    error: str = ""
    """The reason why the latest of the unsent points was not sent."""


class TruthCode(Record):
    """Facts that an attempt recorded about the code that it runs (harness/workers/code_digest.py)."""

    kind: Literal["code"] = "code"
    facts: list[tuple[str, str, str]] = []
    """(kind of fact, name, value)."""


class TruthSettings(Record):
    """The settings of the rank's Pluto client that decide whether points are uploaded."""

    kind: Literal["settings"] = "settings"
    mode: str
    """perf, debug or noop. In the mode noop, the client sends nothing."""
    uploads: bool
    """The setting sync_process_enabled: whether the client has an upload process."""
    queue: str = ""
    """The file of the client's queue. Processes of a pod that share a queue share its upload process."""


class TruthFault(Record):
    """A failure of the recorder around the client. Rows may be missing."""

    kind: Literal["fault"] = "fault"
    text: str


class TruthInit(Record):
    """A change of the run object: the rows that follow belong to another `init` call of the same process."""

    kind: Literal["init"] = "init"
    number: int
    """The number of the call, 0 for the first `init` of the process."""
    same_run: bool = True
    """Whether the run object is attached to the same run as the first one."""


class TruthLeft(Record):
    """Values that the caller passed to `run.log` and that the client dropped, by key and reason."""

    kind: Literal["left"] = "left"
    left: list[tuple[str, str, str, int, str, str]]
    """(key, type of the value, reason, number of values so far, first step, last step)."""


class TruthAccount(Record):
    """The numbers of values passed to `run.log`: `handed` is the sum of `logged` and `left`."""

    kind: Literal["account"] = "account"
    handed: int
    logged: int
    """The number of values that reached the client's queue."""
    left: int
    """The number of values that the client dropped."""
    past: int = 0
    """The number of values that reached the client's queue without `run.log`. They have rows, and are not
    part of `handed`."""
    unseen: str = ""
    """The reason why the client's queue could not be observed. `logged` is then not known."""


class TruthRewrite(Record):
    """A value that the client changes or drops (harness/workers/client_rules.py).

    Only the first value is recorded for each metric and reason.
    """

    kind: Literal["rewrite"] = "rewrite"
    metric: str
    step: str
    was: str
    kept: bool
    """True if a changed value reaches the run, false if the value is dropped."""
    why: str


class TruthBatching(Record):
    """The start of batching. From here on, the end of the log may lack rows if the rank is killed."""

    kind: Literal["batching"] = "batching"
    rows: int
    """The number of rows in a full frame."""


class TruthGap(Record):
    """A gap in the log: frames between two sequence numbers are missing."""

    kind: Literal["gap"] = "gap"
    after_seq: int
    next_seq: int


TruthLine = Annotated[
    TruthStart
    | TruthRow
    | TruthBatching
    | TruthBlock
    | TruthClient
    | TruthCode
    | TruthRewrite
    | TruthInit
    | TruthLeft
    | TruthAccount
    | TruthMetrics
    | TruthEnd
    | TruthGap
    | TruthSettings
    | TruthFault,
    Field(discriminator="kind"),
]
