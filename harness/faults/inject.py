"""Inject a fault into a real `harness run`, undo it, and compare the result with the expected one."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core import processes
from harness.core.errors import HarnessError, UsageError, WaitError
from harness.evidence.io.reader import Bundle
from harness.evidence.schema.bundle import Verdict
from harness.faults import fault_job, step_variables
from harness.faults.fault_file import Fault, Step, When
from harness.faults.harness_process import CPU_REQUEST, Command
from harness.faults.random import oracle
from harness.faults.results import Row, judge_row, visible_seconds
from harness.faults.undo import undone
from harness.launch.konduktor.job_file import JobFile
from harness.provision.cluster import Ready
from harness.settings import Settings

AT_SECONDS = 180.0
LOOK_SECONDS = 0.02
"""The number of seconds between two polls of the files that the harness writes.

The interval must be short, because the shortest stage in which a fault is injected takes only 0.1 s.
"""
RUN_SECONDS = 600.0
WAIT_SECONDS = "300"
"""The default value of HARNESS_WAIT_SECONDS, which is long enough for a busy machine. Faults that make their
launch time out set a shorter timeout."""


@dataclass
class Injector:
    """Injects several faults, using the same cluster, healthy job and evidence folder."""

    ready: Ready
    job: JobFile
    settings: Settings
    out: Path
    started: Callable[[Command], None] = lambda _: None
    """A function that is called with each harness process that is started, so that an interruption can end
    the process."""

    def row(self, fault: Fault) -> Row:
        """Inject a fault and return its result.

        A HarnessError is recorded in the result, which then counts as wrong. A UsageError propagates.
        """
        folder = self.out / fault.name
        folder.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        code: int | None = None
        output = ""
        problem = ""
        bundle, verdict = None, None
        pattern = fault.expect.named if fault.expect else None
        changes: dict[str, Any] = {"oracle": "not struck"} if pattern else {}
        try:
            code, output, variables = self._run(fault, folder)
            bundle, verdict = _read_bundle(folder / "runs")
            if pattern:
                pattern = step_variables.render(pattern, variables, fault.name)
                decision = oracle.ask(self.ready, bundle, verdict, output, pattern)
                changes |= {"oracle": decision.word, "lost": decision.missing}
                problem = decision.wrong
        except UsageError:
            raise
        except HarnessError as error:
            problem = str(error)
        row = judge_row(fault, verdict, code, output)
        changes["seconds"] = round(time.monotonic() - start, 1)
        if problem:
            changes |= {"right": False, "wrong": "; ".join(filter(None, [row.wrong, problem]))}
        if bundle is not None:
            changes["bundle"] = str(bundle.path)
            changes["visible_seconds"] = visible_seconds(bundle, verdict) if verdict else None
        return row.model_copy(update=changes)

    def _run(self, fault: Fault, folder: Path) -> tuple[int, str, dict[str, Any]]:
        """Run the harness with the fault.

        Return the harness's exit code and stderr, and the variables for the steps of the fault.
        """
        words = fault_job.training(fault.train) if fault.train else ["run", str(folder / "job.yaml")]
        if fault.train is None:
            (folder / "job.yaml").write_text(fault_job.variant(self.job, fault.job))
        env = self._environment(fault, folder)
        variables = step_variables.of_cluster(self.ready, folder) | {"cluster": env["HARNESS_CLUSTER_NAME"]}
        variables["runs"] = env["HARNESS_RUNS_DIR"]
        env = {name: step_variables.render(value, variables, fault.name) for name, value in env.items()}
        arguments = [
            "--json",
            *(step_variables.render(text, variables, fault.name) for text in fault.arguments),
        ]
        # The arguments follow the command's name, because the trainer's own options come last, after `--`.
        words[1:1] = arguments
        with ExitStack() as last:
            if fault.at == "before":
                last.enter_context(self._injected(fault, variables, None))
            run = last.enter_context(Command(*words, env=env))
            self.started(run)
            if isinstance(fault.at, When):
                _await(fault.at, run, folder / "runs")
                variables |= {"pid": run.process.pid, **_launched(folder / "runs")}
                last.enter_context(self._injected(fault, variables, run))
            code = run.end(RUN_SECONDS)
        (folder / "stderr.log").write_text(run.stderr)
        return code, run.stderr, variables

    def _environment(self, fault: Fault, folder: Path) -> dict[str, str]:
        """Return the user's environment, changed for a launch with the fault.

        The variables that select a cluster are replaced with those for this launch.
        """
        settings = self.settings
        own = fault.scope == "own"
        changes: dict[str, str | None] = {
            "HARNESS_CLUSTER_NAME": f"{settings.cluster_name}-own" if own else settings.cluster_name,
            "HARNESS_WORKERS": "0" if own else str(settings.workers),
            "HARNESS_STATE_DIR": str(settings.state_dir.absolute()),
            "HARNESS_CACHE_DIR": str(settings.cache_dir.absolute()),
            "HARNESS_RUNS_DIR": str((folder / "runs").absolute()),
            "HARNESS_IMAGES": settings.images,
            "HARNESS_WAIT_SECONDS": WAIT_SECONDS,
            "HARNESS_CPU_REQUEST": CPU_REQUEST,
            **fault.env,
        }
        return processes.environment(changes, without=processes.CHOOSING)

    @contextmanager
    def _injected(self, fault: Fault, values: dict[str, Any], run: Command | None) -> Iterator[None]:
        commands = [step_variables.command(step, values, fault.name) for step in fault.undo]
        journal = journals(self.settings) / f"{fault.name}.json"
        with ExitStack() as last:
            if commands:
                last.enter_context(undone(commands, journal))
            if fault.freeze and run is not None:
                os.killpg(run.process.pid, signal.SIGSTOP)
                last.callback(_signal, run, signal.SIGCONT)
            for step in fault.inject:
                _inject(step, values, fault.name, run)
            if fault.freeze and run is not None:
                _signal(run, signal.SIGCONT)
            yield


def journals(settings: Settings) -> Path:
    """Return the folder with the pending undo commands for a cluster.

    Each cluster has its own folder, because other processes can inject faults on other clusters.
    """
    return settings.state_dir.absolute() / "faults" / settings.cluster_name


def _inject(step: Step, values: dict[str, Any], fault: str, run: Command | None) -> None:
    if step.is_command:
        step_variables.command(step, values, fault).run()
    elif step.sleep is not None:
        time.sleep(step.sleep)  # The fault lasts until the next step, which may end it.
    elif run is None:
        raise UsageError(f"fault {fault}: the harness process to signal has not started yet")
    elif step.signal is not None:
        _signal(run, getattr(signal, f"SIG{step.signal}"))


def _signal(run: Command, signum: signal.Signals) -> None:
    if run.process.poll() is None:
        os.killpg(run.process.pid, signum)


def _await(when: When, run: Command, runs: Path) -> None:
    """Wait until the fault is to be injected.

    Raises WaitError if the harness exits before that moment, or after a timeout.
    """
    if (stage := when.stage) is not None:
        _await_effect(f"the stage {stage}", run, lambda: begun(runs / "latest", stage))
    if when.log is not None:
        pattern = re.compile(when.log.encode(), re.MULTILINE)
        logs = "latest/logs/*.log"
        _await_effect(
            f"a log line like {when.log!r} from {when.pods} pods",
            run,
            lambda: sum(bool(pattern.search(log.read_bytes())) for log in runs.glob(logs)) >= when.pods,
        )


def _await_effect(description: str, run: Command, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + AT_SECONDS
    while not condition():
        code = run.process.poll()
        if code is not None or time.monotonic() > deadline:
            raise WaitError(description, f"exit code {code}:\n{run.stderr}", AT_SECONDS)
        time.sleep(LOOK_SECONDS)


def begun(bundle: Path, stage: str) -> bool:
    """Return whether a stage has begun or has already ended, according to a bundle that is being written."""
    manifest = Bundle.open(bundle).manifest if bundle.exists() else None
    if manifest is None:
        return False
    return stage in (manifest.in_stage, *(each.name for each in manifest.stages))


def _launched(runs: Path) -> dict[str, Any]:
    latest = runs / "latest"
    return step_variables.of_launch(Bundle.open(latest)) if latest.exists() else {}


def _read_bundle(runs: Path) -> tuple[Bundle | None, Verdict | None]:
    """Return the bundle and the verdict of the launch in `runs`, or (None, None) if there is no bundle.

    If the harness was killed before it wrote a verdict, this function judges the bundle.
    """
    latest = runs / "latest"
    if not latest.exists():
        return None, None
    bundle = Bundle.open(latest)
    if bundle.recorded_verdict is not None:
        return bundle, bundle.recorded_verdict
    from harness.judge.users import judge

    return bundle, judge(bundle)
