"""Read a bundle, even if its writer was killed.

Records that cannot be read are listed in `damaged` instead of raising an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from harness.core.errors import UsageError
from harness.core.user_files import MAX_RECORD_BYTES, NotRegularError
from harness.evidence import worlds
from harness.evidence.io import column_files
from harness.evidence.io.files import (
    NotInsideError,
    bounded_lines,
    inside,
    last_lines,
    names_inside,
    open_inside,
)
from harness.evidence.kubernetes.objects import ObjectState, Pod
from harness.evidence.kubernetes.typed_objects import typed
from harness.evidence.kubernetes.workload_pods import members
from harness.evidence.schema.acceptance import AcceptanceRecord
from harness.evidence.schema.bundle import (
    SCHEMA_VERSION,
    ContainerExit,
    DeviceHolder,
    DryRun,
    Manifest,
    Observation,
    RendezvousSnapshot,
    Verdict,
)
from harness.evidence.schema.columns import Columns
from harness.evidence.schema.ground_truth import TruthColumns, TruthLine, TruthStart
from harness.evidence.schema.netcheck import NetcheckRecord
from harness.evidence.schema.processes import PROCESS_LINE, ProcessLine
from harness.evidence.schema.renamed_ids import upgraded
from harness.evidence.schema.tracker import (
    Attachment,
    DigestReport,
    Point,
    RunWriter,
    TrackerRun,
    TrackerSummary,
)
from harness.evidence.schema.training import (
    AUDIT,
    RESUMED_FROM,
    UPLOAD,
    TrainingAudit,
    TrainingTransfer,
)

_T = TypeVar("_T")
_M = TypeVar("_M", bound=BaseModel)
_OBSERVATION: TypeAdapter[Observation] = TypeAdapter(Observation)
_TRUTH: TypeAdapter[TruthLine | TruthColumns] = TypeAdapter(
    Annotated[TruthLine | TruthColumns, Field(discriminator="kind")]
)
_RUN: TypeAdapter[TrackerRun] = TypeAdapter(TrackerRun)
_ATTACHMENT: TypeAdapter[Attachment] = TypeAdapter(Attachment)
_INSPECTION: TypeAdapter[RendezvousSnapshot] = TypeAdapter(RendezvousSnapshot)
_DIGESTS: TypeAdapter[DigestReport] = TypeAdapter(DigestReport)
_WRITER: TypeAdapter[RunWriter] = TypeAdapter(RunWriter)
_NETCHECK: TypeAdapter[NetcheckRecord] = TypeAdapter(NetcheckRecord)
_ACCEPTANCE: TypeAdapter[AcceptanceRecord] = TypeAdapter(AcceptanceRecord)
_DEVICE_HOLDER: TypeAdapter[DeviceHolder] = TypeAdapter(DeviceHolder)
_DRY_RUN: TypeAdapter[DryRun] = TypeAdapter(DryRun)
_EXIT: TypeAdapter[ContainerExit] = TypeAdapter(ContainerExit)


class Bundle:
    """A bundle on disk. Each file is read on first access.

    Small files are kept in memory. Logs, ground truth and points can be large, so they are read on every
    access.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._damaged: dict[str, None] = {}
        self._columns = column_files.ColumnFiles(path, self._damage)
        self._states: dict[str, list[ObjectState]] = {}
        self._odd: set[tuple[str, str]] = set()
        self._objects: dict[str, dict[str, list[ObjectState]]] = {}

    @classmethod
    def open(cls, path: Path) -> Bundle:
        """Open a bundle. Raises UsageError if `path` is not a directory."""
        if not path.is_dir():
            raise UsageError(
                f"there is no evidence bundle at {path}", hint="list the bundles with `harness runs`"
            )
        return cls(path.resolve())

    @property
    def damaged(self) -> list[str]:
        """Return "FILE:LINE REASON" for each record that could not be parsed, among those read so far."""
        return list(self._damaged)

    def has(self, relative_path: str) -> bool:
        """Return whether a file exists in the bundle.

        A symbolic link that points out of the bundle is recorded as damage.
        """
        try:
            return inside(self.path, relative_path).is_file()
        except NotInsideError as error:
            self._damage(relative_path, str(error.strerror))
            return False

    def names(self, folder: str, suffix: str) -> list[str]:
        """Return the sorted names of the files with this suffix in a folder of the bundle."""
        try:
            inside(self.path, folder)
        except NotInsideError as error:
            self._damage(folder, str(error.strerror))
        return names_inside(self.path, folder, suffix)

    def lines(self, relative_path: str) -> Iterator[tuple[int, bytes]]:
        """Yield a file's numbered lines, or nothing if the file does not exist.

        A last line without a line ending is recorded as damage.
        """
        try:
            with open_inside(self.path, relative_path) as file:
                for number, line in enumerate(bounded_lines(file, MAX_RECORD_BYTES), 1):
                    if len(line) > MAX_RECORD_BYTES:
                        self._damage(
                            f"{relative_path}:{number}", f"the line has more than {MAX_RECORD_BYTES} bytes"
                        )
                        continue
                    if not line.endswith(b"\n"):
                        self._damage(f"{relative_path}:{number}", "the last line is truncated")
                    yield number, line
        except FileNotFoundError:
            return
        except OSError as error:
            self._damage(relative_path, error.strerror or "unreadable")

    def _damage(self, ref: str, reason: str) -> None:
        self._damaged[f"{ref} {reason}"] = None

    def _records(self, relative_path: str, adapter: TypeAdapter[_T]) -> Iterator[tuple[int, _T]]:
        for number, line in self.lines(relative_path):
            try:
                yield number, adapter.validate_json(line)
            except ValidationError:
                self._damage(f"{relative_path}:{number}", "is not a valid record")

    def _document(self, relative_path: str, model: type[_M]) -> _M | None:
        try:
            with open_inside(self.path, relative_path) as file:
                document = json.loads(file.read(MAX_RECORD_BYTES))
            version = document.get("schema_version") if isinstance(document, dict) else None
            if isinstance(version, int) and version > SCHEMA_VERSION:
                reason = (
                    f"was written by a newer harness: its schema version is {version}, but this harness "
                    "supports versions up to "
                    f"{SCHEMA_VERSION}"
                )
                self._damage(relative_path, reason)
                return None
            return model.model_validate(upgraded(document))
        except FileNotFoundError:
            return None
        except (NotInsideError, NotRegularError) as error:
            self._damage(relative_path, str(error.strerror))
            return None
        except (OSError, ValueError, RecursionError):
            self._damage(relative_path, "cannot be read")
            return None

    @cached_property
    def manifest(self) -> Manifest | None:
        return self._document("manifest.json", Manifest)

    @cached_property
    def summary(self) -> TrackerSummary | None:
        return self._document("tracker/summary.json", TrackerSummary)

    @cached_property
    def training_audit(self) -> TrainingAudit | None:
        return self._document(AUDIT, TrainingAudit)

    @cached_property
    def training_upload(self) -> TrainingTransfer | None:
        return self._document(UPLOAD, TrainingTransfer)

    @cached_property
    def training_resumed_from(self) -> TrainingTransfer | None:
        return self._document(RESUMED_FROM, TrainingTransfer)

    @cached_property
    def recorded_verdict(self) -> Verdict | None:
        """Return the verdict that the harness recorded at the end of the launch. The judge never reads it."""
        return self._document("verdict.json", Verdict)

    def history(self, kind: str) -> list[ObjectState]:
        """Return the recorded states of all objects of a kind, in the order in which they were observed.

        For the kind "event", these are the core/v1 Events.
        """
        path = "events.jsonl" if kind == "event" else f"objects/{kind}.jsonl"
        if path not in self._states:
            self._states[path] = [
                self._typed(ObjectState(f"{path}:{number}", record.type, record.received_at, record.object))
                for number, record in self._records(path, _OBSERVATION)
            ]
        return self._states[path]

    def read_objects(self) -> None:
        """Read the objects of all kinds, so that `damaged` lists all problems in them."""
        for name in self.names("objects", ".jsonl"):
            self.history(name.removesuffix(".jsonl"))
        self.history("event")

    def _typed(self, state: ObjectState) -> ObjectState:
        """Remove fields with values of the wrong type from an object.

        Each kind of problem is recorded as damage once per file.
        """
        file = state.ref.partition(":")[0]
        for problem in typed(state.object):
            field = (file, problem)
            if field not in self._odd:
                self._odd.add(field)
                self._damage(state.ref, problem)
        return state

    def objects(self, kind: str) -> dict[str, list[ObjectState]]:
        """Map the uid of each object of the given kind to the object's states, ordered by resource version.

        Each resource version appears only once.
        """
        if kind not in self._objects:
            by_uid: dict[str, dict[tuple[int, bool], ObjectState]] = {}
            for state in self.history(kind):
                by_uid.setdefault(state.uid, {})[(state.version, state.type == "DELETED")] = state
            self._objects[kind] = {uid: [states[k] for k in sorted(states)] for uid, states in by_uid.items()}
        return self._objects[kind]

    def last(self, kind: str) -> dict[str, ObjectState]:
        """Map the uid of each object of the given kind to the object's last state."""
        return {uid: states[-1] for uid, states in self.objects(kind).items()}

    def pods(self) -> dict[int, Pod]:
        """Map each node index of the launched workload to its latest pod."""
        return {index: pods[-1] for index, pods in self.pod_attempts().items()}

    def pod_attempts(self) -> dict[int, list[Pod]]:
        """Map each node index of the launched workload to all its pods, oldest first."""
        return self._members

    @cached_property
    def _members(self) -> dict[int, list[Pod]]:
        launch = self.manifest.launch if self.manifest else None
        return members(launch, self.objects("pod").values()) if launch else {}

    def ranks(self) -> dict[int, Pod]:
        """Map each rank to its pod, using the recorded processes.

        If no world of the job's size was recorded, node i is assumed to run the ranks i·p to i·p+p-1, where p
        is the number of processes per node.
        """
        expected = self.manifest.expected if self.manifest else None
        if expected is None or expected.num_nodes < 1:
            return {}
        pods = self.pods()
        world = worlds.whole(self.lives(pods), expected.num_nodes)
        if world is not None and worlds.fits(world, expected):
            return {rank: pods[node] for rank, node in sorted(world.nodes.items())}
        per_node = max(1, expected.ranks // expected.num_nodes)
        return {index * per_node + local: pod for index, pod in pods.items() for local in range(per_node)}

    def lives(self, pods: Mapping[int, Pod]) -> dict[int, list[worlds.RankLife]]:
        """Map each node index to the last recorded lifetime of each rank in that node's pod.

        The result is empty if the launch does not record processes.
        """
        launch = self.manifest.launch if self.manifest else None
        if launch is None or not launch.processes:
            return {}
        if launch.recorder:
            return {index: one.lives for index, one in worlds.of_nodes(self.processes(), pods).items()}
        starts = {
            rank: [line for _, line in self.truth_parts(rank) if isinstance(line, TruthStart)]
            for rank in self._ranks_with_truth()
        }
        return worlds.lives_from_ground_truth(starts, {pod.name: index for index, pod in pods.items()})

    def _ranks_with_truth(self) -> list[int]:
        """Return the ranks that have ground truth, in ascending order."""
        names = (name.removesuffix(".jsonl") for name in self.names("truth", ".jsonl"))
        return sorted(int(name) for name in names if name.isascii() and name.isdecimal())

    def inspections(self) -> list[tuple[int, RendezvousSnapshot]]:
        """Return the snapshots of processes and connections in containers, in recorded order, with line
        numbers."""
        return list(self._records("inspections.jsonl", _INSPECTION))

    def netchecks(self) -> list[tuple[int, NetcheckRecord]]:
        """Return the diagnoses that netcheck printed in the pods, in recorded order, with line numbers."""
        return list(self._records("netcheck.jsonl", _NETCHECK))

    def accepted(self) -> list[tuple[int, AcceptanceRecord]]:
        """Return the results of the acceptance tests in the pods, in recorded order, with line numbers."""
        return list(self._records("acceptance.jsonl", _ACCEPTANCE))

    def dry_runs(self) -> list[tuple[int, DryRun]]:
        """Return the dry-run results for objects that a controller should have created, in recorded order.

        Each result is paired with its line number.
        """
        return list(self._records("dry-runs.jsonl", _DRY_RUN))

    def device_holders(self) -> list[tuple[int, DeviceHolder]]:
        """Return the pods that use devices for which one of the launch's pods is waiting, with line
        numbers."""
        return list(self._records("device-holders.jsonl", _DEVICE_HOLDER))

    def exits(self) -> list[tuple[int, ContainerExit]]:
        """Return the exits of commands in containers that stay alive afterwards, with line numbers."""
        return self._exits

    @cached_property
    def _exits(self) -> list[tuple[int, ContainerExit]]:
        return list(self._records("exits.jsonl", _EXIT))

    def processes(self) -> list[tuple[int, ProcessLine]]:
        """Return the events recorded by processes, in log order, with line numbers."""
        return self._processes

    @cached_property
    def _processes(self) -> list[tuple[int, ProcessLine]]:
        return list(self._records("processes.jsonl", PROCESS_LINE))

    def truth(self, rank: int, suffix: str = "") -> Iterator[tuple[int, TruthLine]]:
        """Yield a rank's ground truth with line numbers.

        If `suffix` is ".outside", yield the ground truth from the recorder that wraps the Pluto client
        instead.

        Rows in a column file are yielded individually. Each has the number of the line that names the column
        file.
        """
        return column_files.truth_lines(self.truth_parts(rank, suffix))

    def truth_parts(self, rank: int, suffix: str = "") -> Iterator[tuple[int, TruthLine | Columns]]:
        """Yield a rank's ground truth with line numbers. Rows in a column file are yielded as `Columns`."""
        path = f"truth/{rank}{suffix}.jsonl"
        for number, line in self._records(path, _TRUTH):
            if not isinstance(line, TruthColumns):
                yield number, line
            elif (columns := self._columns.read(f"{path}:{number}", line)) is not None:
                yield number, columns

    def runs(self) -> list[tuple[int, TrackerRun]]:
        """Return the tracker's runs with line numbers."""
        return list(self._records("tracker/runs.jsonl", _RUN))

    def attachments(self) -> list[tuple[int, Attachment]]:
        """Return the create and resume requests by which processes attached to runs, in order, with line
        numbers."""
        return list(self._records("tracker/attachments.jsonl", _ATTACHMENT))

    def points(self) -> Iterator[tuple[int, Point]]:
        """Yield all points in the tracker, with line numbers. Each metric's points are in arrival order."""
        return column_files.points(self.point_parts())

    def point_parts(self) -> Iterator[tuple[int, column_files.PointPart]]:
        """Yield all points in the tracker, with line numbers.

        Points in a column file are yielded as (record, columns).
        """
        path = "tracker/points.jsonl"
        for number, line in self.lines(path):
            try:
                record = column_files.point_record(line)
            except ValidationError:
                self._damage(f"{path}:{number}", "is not a valid record")
                continue
            if isinstance(record, Point):
                yield number, record
            elif (columns := self._columns.read(f"{path}:{number}", record)) is not None:
                yield number, (record, columns)

    def writers(self) -> list[tuple[int, RunWriter]]:
        """Return the writers of all runs, sorted by run and time, with line numbers."""
        return list(self._records("tracker/writers.jsonl", _WRITER))

    def digests(self) -> list[tuple[int, DigestReport]]:
        """Return the digest reports that recorders sent to the tracker, in the order of their arrival."""
        return list(self._records("tracker/digests.jsonl", _DIGESTS))

    def log(self, pod: str, container: str) -> str:
        """Return the path of a container's log within the bundle."""
        return f"logs/{pod}-{container}.log"

    def log_lines(self, relative_path: str) -> Iterator[bytes]:
        """Yield the lines of a log, for searches.

        A log that cannot be read yields no lines and is not recorded as damage.
        """
        try:
            with open_inside(self.path, relative_path) as file:
                yield from bounded_lines(file, MAX_RECORD_BYTES)
        except OSError:
            return

    def tail(self, relative_path: str, count: int = 200) -> list[tuple[int, str]]:
        """Return the last `count` lines of a log, with line numbers.

        A last line without a line ending is recorded as damage.
        """
        try:
            with open_inside(self.path, relative_path) as file:
                total, lines = last_lines(file, count)
        except FileNotFoundError:
            return []
        except OSError as error:
            self._damage(relative_path, error.strerror or "unreadable")
            return []
        if lines and not lines[-1].endswith(b"\n"):
            self._damage(f"{relative_path}:{total}", "the last line is truncated")
        numbers = range(total - len(lines) + 1, total + 1)
        return [
            (number, line.decode(errors="replace").rstrip("\n"))
            for number, line in zip(numbers, lines, strict=True)
        ]
