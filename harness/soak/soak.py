"""Run `harness run` processes, several at a time, until all of them have ended or the soak is stopped."""

from __future__ import annotations

import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from pydantic import BaseModel

from harness.core.clock import now
from harness.core.errors import HarnessError
from harness.core.progress import Progress
from harness.evidence.io.reader import Bundle
from harness.evidence.io.runs_folder import Keep
from harness.faults.harness_process import Command, launch_environment
from harness.launch.namespaces import KEPT
from harness.provision.cluster import Ready
from harness.settings import Settings
from harness.soak import snapshot
from harness.soak.growth import Growth, compare, explained
from harness.soak.ledger import Entry, Ledger, Numbers, numbers

SETTLE_SECONDS = 120.0
"""The maximum number of seconds to wait until the namespaces deleted after launches, and their containers,
are gone."""
AFTER_WAIT_SECONDS = 300.0
"""The maximum number of seconds that a launch can take in addition to `wait_seconds`."""


class Result(BaseModel):
    """The result of a soak, which is written to summary.json."""

    folder: str
    asked: int
    parallel: int
    seconds: float
    numbers: Numbers
    growth: list[Growth]

    @property
    def leaks(self) -> list[str]:
        return [growth.leak for growth in self.growth if growth.leak]

    @property
    def clean(self) -> bool:
        """Return whether all requested launches passed and nothing leaked."""
        return self.numbers.passed == self.asked and not self.leaks


class Soak:
    """A soak. `run` starts the launches and waits for them, and `stop` ends them."""

    def __init__(self, ready: Ready, settings: Settings, job: Path, folder: Path, parallel: int) -> None:
        """Create `folder`. It will contain ledger.jsonl, summary.json, logs/, tmp/, and launches/ with the
        bundles."""
        self._ready = ready
        self._settings = settings
        self._job = job
        self._folder = folder
        self._parallel = parallel
        for name in ("launches", "logs", "tmp"):
            (folder / name).mkdir(parents=True)
        self.ledger = Ledger(folder / "ledger.jsonl", Keep.parse(settings.keep_runs))
        self._running: set[Command] = set()
        self._stopped = threading.Event()

    def run(self, launches: int, progress: Progress) -> Result:
        """Run the given number of launches, then check for leaks.

        After an error or an interruption, the running launches are terminated.
        """
        start = time.monotonic()
        before = snapshot.take(self._ready, self._settings, self._folder)
        with ThreadPoolExecutor(self._parallel) as pool:
            futures = [pool.submit(self._launch, number) for number in range(1, launches + 1)]
            try:
                for future in as_completed(futures):
                    self._note(future.result(), launches, progress)
            except BaseException:
                self.stop()
                pool.shutdown(cancel_futures=True)
                raise
        progress("looking for leaks")
        allowed = explained(launches, self._parallel, KEPT)
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            growth = compare(before, snapshot.take(self._ready, self._settings, self._folder), allowed)
            if not any(each.leak for each in growth) or time.monotonic() > deadline:
                break
            # The harness polls, because some objects that are cleaned up automatically cannot be watched.
            time.sleep(5)
        result = Result(
            folder=str(self._folder),
            asked=launches,
            parallel=self._parallel,
            seconds=round(time.monotonic() - start, 1),
            numbers=numbers(self.ledger.entries),
            growth=growth,
        )
        (self._folder / "summary.json").write_text(result.model_dump_json(indent=2))
        return result

    def stop(self) -> None:
        """Start no further launches, and interrupt the running ones as Ctrl-C does."""
        self._stopped.set()
        for command in list(self._running):
            if command.process.poll() is None:
                command.interrupt()

    def _note(self, entry: Entry, launches: int, progress: Progress) -> None:
        self.ledger.add(entry)
        count, failures = len(self.ledger.entries), sum(not each.passed for each in self.ledger.entries)
        text = f"{entry.verdict} {entry.cause or ''}".rstrip()
        retries = f", {len(entry.retries)} retries" if entry.retries else ""
        progress(
            f"{'✓' if entry.passed else '✗'} launch {entry.number}: {text} in {entry.seconds:.0f} s{retries} "
            f"({count} of {launches} done, {failures} not PASS)"
        )
        for retry in entry.retries:
            progress(f"    retried {retry.what}: {retry.reason}")
        if not entry.passed:
            progress(f"    {entry.explanation}  {entry.bundle or ''}".rstrip())

    def _launch(self, number: int) -> Entry:
        if self._stopped.is_set():
            raise HarnessError("the soak was stopped")
        runs = self._folder / "launches" / f"{number:04}"
        runs.mkdir()
        started_at, start = now(), time.monotonic()
        with Command("run", str(self._job), "--json", env=self._environment(runs)) as command:
            self._running.add(command)
            if self._stopped.is_set():
                command.interrupt()
            problem = ""
            try:
                command.end(self._settings.wait_seconds + AFTER_WAIT_SECONDS)
            except subprocess.TimeoutExpired:
                problem = "`harness run` did not end in time and was terminated"
        self._running.discard(command)
        (self._folder / "logs" / f"{number:04}.log").write_text(command.stderr)
        entry = Entry(
            number=number,
            bundle=None,
            verdict="none",
            explanation=problem or command.stderr.strip().rpartition("\n")[2],
            exit_code=command.process.returncode,
            started_at=started_at,
            seconds=round(time.monotonic() - start, 2),
        )
        return entry.model_copy(update=_bundle_fields(runs))

    def _environment(self, runs: Path) -> dict[str, str]:
        """Return the user's environment for a launch on this cluster.

        The launch has its own folders for bundles and temporary files.
        """
        temporary = str((self._folder / "tmp").absolute())
        return {**launch_environment(self._settings, runs, self._parallel > 1), "TMPDIR": temporary}


def _bundle_fields(runs: Path) -> dict[str, object]:
    """Return the fields of a ledger entry that come from the launch's bundle."""
    if not (runs / "latest").exists():
        return {}
    bundle = Bundle.open((runs / "latest").resolve())
    fields: dict[str, object] = {"bundle": str(bundle.path)}
    if (manifest := bundle.manifest) is not None:
        fields["stages"] = {stage.name: stage.seconds for stage in manifest.stages}
        fields["retries"] = manifest.retries
    if (verdict := bundle.recorded_verdict) is not None:
        fields |= {"verdict": verdict.verdict, "cause": verdict.cause, "explanation": verdict.explanation}
    return fields
