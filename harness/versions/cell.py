"""Launch a job with one combination of package versions in a `harness run` process, and return its outcome.

FOLDER/ledger.jsonl              one line per finished launch, written immediately
FOLDER/cells/NAME-N/harness.log  the progress messages of the launch
FOLDER/cells/NAME-N/runs/        the bundle of the launch
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from harness.core import proxies
from harness.core.clock import now
from harness.core.errors import HarnessError, UsageError
from harness.core.replacements import CONTROLLERS
from harness.core.user_files import read_bytes
from harness.evidence.io.reader import Bundle
from harness.evidence.io.redaction import Redactor
from harness.evidence.schema.bundle import Check, Replaced
from harness.faults.harness_process import Command, launch_environment
from harness.launch import replaced_packages
from harness.launch.workload_file import load as load_workload
from harness.provision.images.build import WORKER
from harness.provision.konduktor import LOCK
from harness.settings import CLUSTER_NAME, Settings
from harness.versions.candidates import Candidate

Result = Literal["PASS", "FAIL", "UNKNOWN", "not installable"]
Model = TypeVar("Model", bound=BaseModel)
AFTER_WAIT_SECONDS: Final = 1200.0
"""Number of seconds, in addition to `wait_seconds`, that a launch may take to build and install packages."""
_BAD_USAGE: Final = 64
_SETTINGS: Final = ("workers", "kubernetes", "kubeconfig", "context", "scripts", "recorder", "netcheck")
_MAX_NAME: Final = 100


@dataclass(frozen=True)
class Cell:
    """One combination of versions, with at most one candidate per package."""

    candidates: tuple[Candidate, ...]

    @property
    def name(self) -> str:
        """Return a name for use in folder names, such as konduktor-nightly-0.1.0-pluto-ml-0.0.28."""
        texts = "-".join(f"{one.package}-{one.version}" for one in self.candidates)
        return re.sub(r"[^A-Za-z0-9.-]+", "_", texts)[:_MAX_NAME] or "locked"

    @property
    def replace(self) -> dict[str, str]:
        """Return the launch's `replace` setting, without packages that keep their locked version."""
        return {one.package: one.spec for one in self.candidates if one.spec}

    @property
    def controllers(self) -> dict[str, str]:
        """Return the entries of `replace` that require a separate cluster, which are JobSet and Kueue."""
        return {name: spec for name, spec in self.replace.items() if name in CONTROLLERS}

    @property
    def options(self) -> list[str]:
        """Return the options of `harness run` that launch this cell."""
        return [word for pair in self.replace.items() for word in ("--replace", "=".join(pair))]


class Outcome(BaseModel):
    """The outcome of a cell's launch."""

    key: str
    """The key that identifies the job and the cell (`Launcher.key`)."""
    cell: dict[str, str]
    """Maps each package's name to its version."""
    attempt: int
    """The number of the cell's launch, starting at 1."""
    result: Result
    """The verdict. "not installable" means that the packages cannot be resolved, built or installed.

    UNKNOWN is also used if the harness failed or was stopped before there was a verdict.
    """
    exit_code: int | None = None
    cause: str | None = None
    ranks: list[int] = []
    explanation: str = ""
    """The explanation of the verdict, or the harness's last message if there is no verdict."""
    checks: list[Check] = []
    started_at: str
    seconds: float
    """The duration of the harness process in seconds."""
    bundle: str | None = None
    """The absolute path of the bundle, or None if the harness did not write one."""
    log: str = ""
    """The absolute path of the harness's log."""
    versions: dict[str, str] = {}
    """The versions of the stack's components, as recorded in the bundle."""
    replaced: list[Replaced] = []

    @property
    def passed(self) -> bool:
        return self.result == "PASS" and self.exit_code == 0

    @property
    def report(self) -> Path | None:
        """Return the path of the report, or None if there is no report."""
        path = Path(self.bundle, "report.html") if self.bundle else None
        return path if path is not None and path.is_file() else None


def read_records(path: Path, model: type[Model], expected: str, hint: str) -> list[Model]:
    """Return the records in a ledger, one JSON document per line, or [] if the file does not exist.

    A truncated last line is removed from the file. Raises UsageError if any other line is not a valid record.
    """
    records = []
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    whole = [line for line in lines if line.endswith(b"\n")]
    for number, line in enumerate(whole, 1):
        try:
            records.append(model.model_validate_json(line))
        except ValidationError:
            raise UsageError(f"{path}, line {number}: expected {expected}", hint=hint) from None
    if len(whole) < len(lines):
        path.write_bytes(b"".join(whole))
    return records


def append_record(path: Path, record: BaseModel) -> None:
    """Append a record to a ledger."""
    with path.open("ab") as file:
        file.write(record.model_dump_json().encode() + b"\n")


class Ledger:
    """The outcomes of all launches so far, including those from earlier processes. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Read the ledger with `read_records`, which raises UsageError for an invalid line."""
        self.path = path
        self._lock = threading.Lock()
        self.outcomes = read_records(
            path, Outcome, "an outcome of a launch", "remove this line; the launch is then repeated"
        )

    def of(self, key: str) -> list[Outcome]:
        """Return a cell's outcomes, in the order of its attempts."""
        with self._lock:
            return sorted((one for one in self.outcomes if one.key == key), key=lambda one: one.attempt)

    def add(self, outcome: Outcome) -> None:
        """Append an outcome to the ledger's file."""
        with self._lock:
            self.outcomes.append(outcome)
            append_record(self.path, outcome)


def cluster_name(settings: Settings, controllers: Mapping[str, str]) -> str:
    """Return the name of the cluster for these controller versions, such as pluto-e2e-jobset-v0.11.1.

    Raises UsageError if the name is too long.
    """
    name = "-".join(
        [settings.cluster_name, *(f"{each}-{spec}" for each, spec in controllers.items())]
    ).lower()
    if not re.fullmatch(CLUSTER_NAME, name):
        raise UsageError(
            f"{name}, the name of the cluster for {', '.join(controllers)}, is too long",
            hint="choose a shorter --cluster-name",
        )
    return name


class Launcher:
    """Launches cells on the cluster in the settings. The caller creates this cluster and keeps it.

    Cells with other versions of JobSet or Kueue are launched on the cluster named by `cluster_name`.

    `launch` may be called from several threads. `stop` interrupts all launches in progress, as Ctrl-C would.
    """

    def __init__(self, job: Path, settings: Settings, folder: Path, is_concurrent: bool = False) -> None:
        """Read the job. `is_concurrent` means that cells are launched concurrently.

        Raises UsageError if the job is not valid.
        """
        self._job = job
        self._workload = load_workload(job)
        self._settings = settings
        self._folder = folder
        self._is_concurrent = is_concurrent
        self._facts = _facts(job, settings)
        self._redactor = Redactor(_secrets(settings))
        self._lock = threading.Lock()
        self._running: set[Command] = set()
        self._stopped = False

    def check(self, packages: Sequence[str]) -> None:
        """Raise UsageError if the job or the cluster does not allow replacing one of the packages."""
        if conflicts := sorted(set(packages) & set(self._settings.replace)):
            raise UsageError(
                f"[tool.harness.replace] or HARNESS_REPLACE also sets the version of {', '.join(conflicts)}",
                hint="remove the entry from that setting, because each launch uses a different version",
            )
        replace = self._settings.replace | dict.fromkeys(packages, "latest")
        replaced_packages.check(self._workload, self._settings.model_copy(update={"replace": replace}))

    def key(self, cell: Cell) -> str:
        """Return 16 hex digits derived from the job, the versions, the checkouts and the lock files.

        Two launches with the same key can differ only by chance.
        """
        parts = [*self._facts, *sorted(one.identity for one in cell.candidates)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def launch(self, cell: Cell, attempt: int = 1) -> Outcome:
        """Launch a cell, and wait for its outcome.

        Raises HarnessError if the launcher was stopped. If the calling thread is interrupted, the harness
        process is stopped in a way that lets it clean up. The bundle is kept.
        """
        if self._stopped:
            raise HarnessError("the launches were stopped")
        folder = self._own_folder(f"{cell.name}-{attempt}")
        runs, log = folder / "runs", folder / "harness.log"
        started_at, start = now(), time.monotonic()
        words = ["run", str(self._job), "--json", *cell.options]
        own = {"cluster_name": cluster_name(self._settings, cell.controllers)}
        settings = self._settings.model_copy(update=own)
        command = Command(*words, env=launch_environment(settings, runs, self._is_concurrent))
        problem = ""
        try:
            with command:
                self._note(command)
                try:
                    command.end(self._settings.wait_seconds + AFTER_WAIT_SECONDS)
                except subprocess.TimeoutExpired:
                    problem = "the harness did not finish in time and was stopped"
        finally:
            log.write_text(self._redactor.text(command.stderr))
            with self._lock:
                self._running.discard(command)
        if self._stopped:
            raise HarnessError("the launches were stopped")
        return with_evidence(
            Outcome(
                key=self.key(cell),
                cell={one.package: one.version for one in cell.candidates},
                attempt=attempt,
                result="UNKNOWN",
                exit_code=command.process.returncode,
                explanation=problem or _sentence(self._redactor.text(command.stderr)),
                started_at=started_at,
                seconds=round(time.monotonic() - start, 2),
                log=str(log),
            ),
            runs,
            cell,
        )

    def stop(self) -> None:
        """Stop the launches in progress, and do not start any more."""
        with self._lock:
            self._stopped = True
            for command in self._running:
                if command.process.poll() is None:
                    command.interrupt()

    def last_lines(self) -> list[str]:
        """Return the last progress line of each launch in progress."""
        with self._lock:
            return [command.lines[-1].rstrip() for command in self._running if command.lines]

    def _note(self, command: Command) -> None:
        with self._lock:
            self._running.add(command)
            if self._stopped:
                command.interrupt()

    def _own_folder(self, name: str) -> Path:
        """Create and return an empty folder. If a folder with this name exists, add a number to the name."""
        for number in range(1, 10_000):
            folder = self._folder / "cells" / (name if number == 1 else f"{name}-again-{number}")
            try:
                folder.mkdir(parents=True)
                return folder
            except FileExistsError:
                continue
        raise HarnessError(f"{self._folder} has too many launches of {name}", hint="use another folder")


def _facts(job: Path, settings: Settings) -> list[str]:
    """Return everything on which the outcome of a launch depends, except for the package versions."""
    files = [read_bytes(job, "job file"), WORKER.lock.read_bytes(), LOCK.read_bytes()]
    used = settings.model_dump(mode="json", include={*_SETTINGS, "replace", "expect"})
    return [*(hashlib.sha256(data).hexdigest() for data in files), json.dumps(used, sort_keys=True)]


def _secrets(settings: Settings) -> list[str]:
    key = settings.pluto_api_key
    return [*([key.get_secret_value()] if key else []), *proxies.secrets()]


def _sentence(stderr: str) -> str:
    """Return the harness's last error message without its hint, or the last line if there is no error."""
    lines = [line for line in stderr.strip().splitlines() if line.strip()]
    messages = [number for number, line in enumerate(lines) if line.startswith("harness: ")]
    if not messages:
        return lines[-1] if lines else "the harness ended without printing a message"
    message = [line for line in lines[messages[-1] :] if not line.startswith("  → ")]
    return " ".join(line.strip() for line in message).removeprefix("harness: ")


def with_evidence(outcome: Outcome, runs: Path, cell: Cell) -> Outcome:
    """Return the outcome, supplemented with the data in the launch's bundle.

    The verdict counts only if the harness ended by itself, and the launch used the cell's package versions.
    """
    latest = runs / "latest"
    if not latest.exists():
        is_usage_error = outcome.exit_code == _BAD_USAGE
        return outcome.model_copy(update={"result": "not installable"}) if is_usage_error else outcome
    bundle = Bundle.open(latest.resolve())
    changes: dict[str, object] = {"bundle": str(bundle.path)}
    manifest, verdict = bundle.manifest, bundle.recorded_verdict
    if manifest is not None:
        changes |= {"versions": manifest.versions, "replaced": manifest.replaced}
    if verdict is not None and outcome.exit_code is not None and outcome.exit_code >= 0:
        changes |= {"result": verdict.verdict, "cause": verdict.cause, "ranks": verdict.ranks}
        changes |= {"explanation": verdict.explanation, "checks": verdict.checks}
    result = outcome.model_copy(update=changes)
    launched = manifest is None or manifest.launch is not None
    if launched and (other := _other(cell, result.replaced)):
        return result.model_copy(update={"result": "UNKNOWN", "cause": None, "explanation": other})
    return result


def _other(cell: Cell, packages: Sequence[Replaced]) -> str:
    """Return how the launch's package versions differ from the cell's versions, or "" if they are equal."""
    launched: Mapping[str, Replaced] = {one.name: one for one in packages}
    for one in cell.candidates:
        package = launched.get(one.package)
        if (package is None) != (not one.spec):
            used = f"{package.version} from {package.origin}" if package else "the locked version"
            return f"the launch used {used} of {one.package} instead of {one.label}"
        if package is not None and package.version != one.version:
            return f"the launch used {one.package} {package.version} instead of {one.label}"
        if package is not None and one.digest not in ("", package.digest):
            return f"{one.label} of {one.package} was changed after the first launch"
    return ""
