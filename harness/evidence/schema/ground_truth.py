"""The records of truth/<rank>.jsonl. The rank itself wrote them (harness/workers/truth_frames.py)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.evidence.schema.columns import ColumnsRecord
from harness.evidence.schema.record import Record, Value


class TruthStart(Record):
    """The first line of an attempt.

    A rank that is restarted begins a new attempt. Rows that are not preceded by such a line belong to
    attempt 0.
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
    """How often torchrun had restarted the ranks of this pod before. None without torchrun."""
    max_restarts: int | None = None
    """torchrun's limit for restarts of the ranks (--max-restarts)."""
    world: int | None = None
    """WORLD_SIZE in the rank's environment."""
    outside: bool = False
    """Whether the recorder around Pluto's client wrote the attempt (harness/workers/outside_client.py). If
    not, the worker itself wrote it."""
    parent: int | None = None
    """Process id of the rank, if a child process of the rank wrote the line. Otherwise None."""


class TruthRow(Record):
    """One point that the rank logged."""

    kind: Literal["row"] = "row"
    metric: str
    step: int
    value: Value
    time_ms: int


class TruthColumns(ColumnsRecord):
    """Many rows of one attempt, stored in a column file.

    This one record is written instead of one TruthRow per row. The fields are those of ColumnsRecord.
    """

    kind: Literal["columns"] = "columns"


class TruthBlock(Record):
    """A digest of unrecorded rows: those beyond the row limit (harness/workers/truth_frames.py)."""

    kind: Literal["block"] = "block"
    metric: str
    first: int
    last: int
    count: int
    sha256: str
    ordered: bool | None = None
    """Whether the metric's steps have strictly increased so far. None in bundles of an older recorder."""
    kept: bool = False
    """Whether the block contains the rows that Pluto keeps, sorted by step. Such blocks are written for a
    metric whose steps decreased or repeated, and cover all rows of the metric in the attempt. In the
    comparison with the run on the tracker, they replace the metric's other blocks and its rows."""
    again: int = 0
    """The number of points in the block that were logged several times with different values."""
    older: int = 0
    """The number of points whose last logged value Pluto does not keep, because its time is earlier."""


class TruthMetrics(Record):
    """Digests over all rows of one or more metrics, written if an attempt has rows beyond the row limit."""

    kind: Literal["metrics"] = "metrics"
    metrics: list[tuple[str, int, str]]
    """Each entry is (metric, number of rows, SHA-256 of the rows)."""


class TruthEnd(Record):
    """The last line of an attempt, with the number of rows that the rank recorded and a digest of them."""

    kind: Literal["end"] = "end"
    count: int
    sha256: str
    metrics: dict[str, tuple[int, str]] = {}
    """The digests of TruthMetrics, in bundles of an older recorder. Empty if they exceeded one frame."""


class TruthClient(Record):
    """The steps in the queue of the rank's Pluto client, by metric (harness/workers/client_state.py).

    `whole` is true if the client has deleted no points from the queue. A point that is neither in `sent` nor
    in `unsent` then never reached the client. If `whole` is false, such a point might have been sent.
    """

    kind: Literal["client"] = "client"
    whole: bool
    sent: dict[str, list[tuple[int, int]]] = {}
    """Metric → ranges of steps that the tracker acknowledged."""
    unsent: dict[str, list[tuple[int, int]]] = {}
    """Metric → ranges of steps that the tracker did not acknowledge."""
    error: str = ""
    """The reason why the latest unsent point was not sent."""


class TruthCode(Record):
    """Facts about the code that an attempt runs (harness/workers/code_digest.py)."""

    kind: Literal["code"] = "code"
    facts: list[tuple[str, str, str]] = []
    """Each entry is (kind of fact, name, value)."""


class TruthSettings(Record):
    """The settings of the rank's Pluto client that decide whether points are uploaded."""

    kind: Literal["settings"] = "settings"
    mode: str
    """The client's mode: perf, debug or noop. In the mode noop, the client sends nothing."""
    uploads: bool
    """Whether the client has an upload process (the setting sync_process_enabled)."""
    queue: str = ""
    """The file of the client's queue. Processes of a pod that share a queue share its upload process."""
    cpu_frequency: bool = True
    """False if the kernel reports no CPU frequency, and the recorder therefore gave the client 0 MHz. Without
    the recorder, `pluto.init` raises ValueError on such a machine (pluto-ml 0.0.29)."""


class TruthFault(Record):
    """A failure of the recorder that wraps Pluto's client. Some rows may not have been recorded."""

    kind: Literal["fault"] = "fault"
    text: str


class TruthInit(Record):
    """A change of the run object. The following rows belong to another `init` call of the same process."""

    kind: Literal["init"] = "init"
    number: int
    """The number of the `init` call. The first call of the process has the number 0."""
    same_run: bool = True
    """Whether the run object is attached to the same run as the process's first run object."""


class TruthLeft(Record):
    """Values that were passed to `run.log` but dropped by the client, by key and reason."""

    kind: Literal["left"] = "left"
    left: list[tuple[str, str, str, int, str, str]]
    """Each entry is (key, type of the value, reason, number of values so far, first step, last step)."""


class TruthAccount(Record):
    """The number of values passed to `run.log` (`handed`), which is the sum of `logged` and `left`."""

    kind: Literal["account"] = "account"
    handed: int
    logged: int
    """The number of values that reached the client's queue."""
    left: int
    """The number of values that the client dropped."""
    past: int = 0
    """The number of values that reached the client's queue without a call of `run.log`. They are recorded as
    rows, but not counted in `handed`."""
    unseen: str = ""
    """The reason why the client's queue could not be observed, or "". If set, `logged` is not known."""


class TruthRewrite(Record):
    """A value that Pluto's client changes or drops (harness/workers/client_rules.py).

    For each metric and reason, only the first such value is recorded.
    """

    kind: Literal["rewrite"] = "rewrite"
    metric: str
    step: str
    was: str
    kept: bool
    """Whether the value reaches the run in a changed form. If false, it is dropped."""
    why: str


class TruthBatching(Record):
    """The start of batching. From here on, the last rows can be missing in the log if the rank is killed."""

    kind: Literal["batching"] = "batching"
    rows: int
    """The number of rows in a full frame."""


class TruthGap(Record):
    """A gap in the log, where the frames between two sequence numbers are missing."""

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
