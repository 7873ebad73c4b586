"""The records of truth/<rank>.jsonl: what a rank itself says it logged (harness/workers/truth_frames.py)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.evidence.schema.columns import ColumnsRecord
from harness.evidence.schema.record import Record, Value


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
    pid: int | None = None
    """Process id inside the container. None in bundles of an older recorder."""
    restart: int | None = None
    """How often torchrun had restarted the ranks of this pod before. None without torchrun."""
    max_restarts: int | None = None
    """How often torchrun may restart them (--max-restarts)."""
    world: int | None = None
    """WORLD_SIZE of its environment."""
    outside: bool = False
    """Recorded around the client's calls (harness/workers/outside_client.py), not by the worker itself."""
    parent: int | None = None
    """The process of the rank whose child this one is. None for the rank's own process."""


class TruthRow(Record):
    kind: Literal["row"] = "row"
    metric: str
    step: int
    value: Value
    time_ms: int


class TruthColumns(ColumnsRecord):
    """Rows of one attempt, in columns. Where there are many, it stands for a TruthRow each.

    It has the fields of ColumnsRecord.
    """

    kind: Literal["columns"] = "columns"


class TruthBlock(Record):
    """Rows past the row limit, as a digest only (harness/workers/truth_frames.py)."""

    kind: Literal["block"] = "block"
    metric: str
    first: int
    last: int
    count: int
    sha256: str
    ordered: bool | None = None
    """Whether the steps of the metric had only risen up to here. None in bundles of an older recorder."""
    kept: bool = False
    """What Pluto keeps of a metric whose steps fell or came again: all its rows of the attempt, by step.

    Such blocks stand for the other blocks and the rows of that metric in the comparison with the run.
    """
    again: int = 0
    """Points of it that were logged with several values."""
    older: int = 0
    """Points of which the value that was logged last does not stay, because its time is earlier."""


class TruthMetrics(Record):
    """All rows of some metrics of an attempt with rows past the row limit."""

    kind: Literal["metrics"] = "metrics"
    metrics: list[tuple[str, int, str]]
    """(metric, number of rows, SHA-256 of them)."""


class TruthEnd(Record):
    """The rank's last line: it recorded `count` rows with this root digest, and ended."""

    kind: Literal["end"] = "end"
    count: int
    sha256: str
    metrics: dict[str, tuple[int, str]] = {}
    """What TruthMetrics says, of an older recorder. Empty where they were too many for one frame."""


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


class TruthSettings(Record):
    """How the rank made Pluto's client, as far as that decides whether its points are uploaded."""

    kind: Literal["settings"] = "settings"
    mode: str
    """perf, debug, or noop, which sends nothing."""
    uploads: bool
    """sync_process_enabled: whether the client has a process that uploads."""
    queue: str = ""
    """The file of its queue. The processes of a pod that share one share the uploading process."""


class TruthFault(Record):
    """The recorder around the client failed, so rows may be missing."""

    kind: Literal["fault"] = "fault"
    text: str


class TruthInit(Record):
    """The rows that follow were logged with the run object of another `init` of the same process."""

    kind: Literal["init"] = "init"
    number: int
    """0 for the first init of the process."""
    same_run: bool = True
    """Whether it is attached to the run of the first."""


class TruthLeft(Record):
    """Values that the caller handed to `run.log` and that the client left out, by key and reason."""

    kind: Literal["left"] = "left"
    left: list[tuple[str, str, str, int, str, str]]
    """(key, type of the value, reason, how many so far, first step, last step)."""


class TruthAccount(Record):
    """How many values the process handed to `run.log`: `handed` is `logged` and `left` together."""

    kind: Literal["account"] = "account"
    handed: int
    logged: int
    """Came into the client's queue."""
    left: int
    past: int = 0
    """Came into the client's queue without `run.log`. They have rows, and are not in `handed`."""
    unseen: str = ""
    """Why the client's queue could not be watched, so that `logged` is not known."""


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


class TruthBatching(Record):
    """From here on the rank recorded so fast that a kill may hide rows it was about to log."""

    kind: Literal["batching"] = "batching"
    rows: int
    """The number of rows for which a frame waits."""


class TruthGap(Record):
    """Frames missing from the log between two sequence numbers."""

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
