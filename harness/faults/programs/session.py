"""Run generated programs within a time budget. One tracker serves all programs in a session."""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from harness.context import RunContext
from harness.core import processes
from harness.core.errors import HarnessError
from harness.faults.programs import oracle
from harness.faults.programs.bundle import PROJECT, Place
from harness.faults.programs.generator import Program, program
from harness.faults.programs.ledger import Ledger, Outcome, Seed
from harness.provision.images.build import build_worker
from harness.provision.images.stack import resolve

_LISTENING = re.compile(r"running on (http://\S+:\d+)")
_START_SECONDS = 60.0
_WITH_THE_HARNESS = """
import os, runpy, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(2)), daemon=True).start()
runpy.run_module("harness.tracker", run_name="__main__", alter_sys=True)
"""
"""Python code that runs the tracker until its stdin is closed.

The operating system closes the pipe even if the harness is killed and cannot stop the tracker itself.
"""
SERVER = (sys.executable, "-c", _WITH_THE_HARNESS)
"""The command that starts a session's tracker, without its options."""
FATAL = ("wrong PASS", "judge error")
"""The oracle decisions that make a session fail. Other decisions against a verdict are still frequent, so
they are only counted."""
_FIND_TORCH = "import importlib.util as u; print(u.find_spec('torch').origin)"


@contextmanager
def place(context: RunContext) -> Iterator[Place]:
    """Yield an environment for programs, with the worker image and a tracker that the containers can reach.

    Raises HarnessError if the tracker does not start.
    """
    settings = context.settings
    image = build_worker(resolve(context), context)
    gateway = "{{(index .IPAM.Config 0).Gateway}}"
    host = processes.run(
        ["docker", "network", "inspect", "bridge", "--format", gateway], timeout=30
    ).stdout.strip()
    torch = processes.run(
        ["docker", "run", "--rm", image.tag, "python3", "-c", _FIND_TORCH], timeout=120
    ).stdout.strip()
    key = f"mlpi_{secrets.token_hex(16)}"
    runs = settings.runs_dir.absolute() / f"programs-{secrets.token_hex(4)}"
    runs.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="programs-") as folder:
        database, log = Path(folder) / "tracker.db", Path(folder) / "tracker.log"
        command = [
            *SERVER,
            "--host",
            host,
            "--port",
            "0",
            "--db",
            str(database),
        ]
        environment = processes.environment({"TRACKER_API_KEY": key}, only=("PATH",))
        with (
            log.open("wb") as out,
            processes.started(
                command, cause=None, env=environment, stdin=subprocess.PIPE, stdout=out, stderr=out
            ) as server,
        ):
            try:
                yield Place(settings, image, address(server, log), key, database, runs, torch)
            finally:
                server.terminate()
    if not any(runs.iterdir()):
        runs.rmdir()


def address(server: subprocess.Popen[str], log: Path) -> str:
    """Wait until the tracker is listening, and return its address. Raises HarnessError if it does not
    start."""
    deadline = time.monotonic() + _START_SECONDS
    while (match := _LISTENING.search(log.read_text())) is None:
        if server.poll() is not None or time.monotonic() > deadline:
            raise HarnessError(f"the tracker did not start: {log.read_text()[-500:]}")
        time.sleep(0.05)
    return match[1]


def run(site: Place, case: Program) -> Outcome:
    """Run a program, and return its outcome with the oracle's decision.

    Raises HarnessError if the program does not end.
    """
    start = time.monotonic()
    launched = site.launch(case, secrets.token_hex(4))
    points = oracle.tracked(site.database, PROJECT, launched.run_id)
    account = oracle.account(case, launched.bundle, launched.journals, launched.containers, points)
    verdict = launched.verdict
    decision = account.judge(verdict)
    if decision.word == "right":
        shutil.rmtree(launched.bundle)
    return Outcome(
        seed=case.seed,
        number=case.number,
        word=decision.word,
        about=case.about,
        got=f"{verdict.verdict} {verdict.cause or ''}".strip(),
        right=decision.right[:400],
        seconds=round(time.monotonic() - start, 1),
        bundle=None if decision.word == "right" else str(launched.bundle),
    )


def session(site: Place, cases: Iterable[Program], seconds: float, parallel: int) -> Iterator[Outcome]:
    """Run programs concurrently, and yield their outcomes in order.

    After `seconds`, or after an error, no further program is started. A program that raises HarnessError is
    retried once. If the retry fails too, its error is raised.
    """
    deadline, numbered, lock = time.monotonic() + seconds, iter(cases), threading.Lock()
    stop = threading.Event()
    outcomes: dict[int, Outcome | Exception] = {}
    changed = threading.Condition(lock)
    running = parallel
    next_number = 0

    def work() -> None:
        nonlocal next_number, running
        try:
            while time.monotonic() < deadline and not stop.is_set():
                with lock:
                    one = next(numbered, None)
                    at, next_number = next_number, next_number + (one is not None)
                if one is None:
                    return
                try:
                    result: Outcome | Exception = _run_twice(site, one)
                except Exception as error:
                    result = error
                    stop.set()
                with changed:
                    outcomes[at] = result
                    changed.notify_all()
        finally:
            with changed:
                running -= 1
                changed.notify_all()

    with ThreadPoolExecutor(parallel) as pool:
        for _ in range(parallel):
            pool.submit(work)
        try:
            for at in count():
                with changed:
                    changed.wait_for(lambda at=at: at in outcomes or not running)  # type: ignore[misc]
                    result = outcomes.pop(at, None)
                if result is None:
                    return
                if isinstance(result, Exception):
                    raise result
                yield result
        finally:
            stop.set()


def _run_twice(site: Place, case: Program) -> Outcome:
    """Run a program, and retry it once after a HarnessError, for example because Docker is slow."""
    try:
        return run(site, case)
    except HarnessError:
        return run(site, case)


def programs(
    seed: int,
    seconds: float,
    parallel: int,
    path: Path | None,
    again: bool,
    only: list[int],
    context: RunContext,
) -> list[Outcome]:
    """Run programs and return their outcomes.

    With `again`, run the programs in the ledger whose verdicts were not right. With `only`, run the programs
    with this seed and these numbers. Otherwise, run the next programs for the seed until `seconds` have
    passed.
    """
    ledger = Ledger.read(path) if path else Ledger()
    seed_results = ledger.seeds.get(seed, Seed())
    if again:
        cases: Iterable[Program] = [
            program(of, miss.number) for of, each in ledger.seeds.items() for miss in each.misses
        ]
    elif only:
        cases = [program(seed, number) for number in only]
    else:
        cases = (program(seed, number) for number in count(seed_results.programs))
    outcomes = []
    with place(context) as site:
        for outcome in session(site, cases, seconds, parallel):
            outcomes.append(outcome)
            context.progress(
                outcome.line
                if outcome.word != "right"
                else f"{outcome.number}: {outcome.got}, {outcome.about}"
            )
            if path and not only:
                (ledger.again if again else ledger.add)(outcome)
                ledger.write(path)
    context.progress(ledger.summary)
    return outcomes
