"""Run all faults on one cluster, with launches of a healthy job (controls) between them.

Faults with the scope `launch` disturb only their own launch, so several of them run at the same time, with
controls between them. Every other fault runs alone, and a control runs after one or a few of these faults. If
a control does not PASS, one of the faults before it was not undone or disturbed another launch. The results
of these faults then do not count as right.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from queue import Empty, SimpleQueue

from harness.core.errors import HarnessError
from harness.core.progress import Progress
from harness.faults.fault_file import Expect, Fault
from harness.faults.harness_process import Command
from harness.faults.inject import Injector
from harness.faults.results import Row

CONTROL = Fault(
    name="control",
    about="Nothing is injected.",
    target="harness",
    env={"HARNESS_WAIT_SECONDS": "400"},  # The timeout is long, because a busy machine can be slow.
    expect=Expect(verdict="PASS", ranks=[]),
)


CONTROL_EVERY = 6
"""Number of concurrently injected faults after which a healthy launch (the control) runs."""


class Matrix:
    """All faults to inject, and the controls between them.

    `start` starts the injections, `row` waits for a fault's result, and `stop` ends the running launches and
    undoes their faults.
    """

    def __init__(
        self,
        injector: Injector,
        faults: Sequence[Fault],
        parallel: int,
        progress: Progress,
        *,
        alone_between_controls: int = 1,
        control: Fault = CONTROL,
    ) -> None:
        """Prepare the injections.

        A control runs after every `alone_between_controls` faults that run alone.
        """
        self._control = control
        self.faults = [fault for fault in faults if fault.expect is not None]
        self._injector = injector
        injector.started = self._remember
        self._parallel = parallel
        self._alone_between_controls = alone_between_controls
        self._progress = progress
        self._rows: dict[str, Future[Row]] = {fault.name: Future() for fault in self.faults}
        self._commands: list[Command] = []
        self._stopped = threading.Event()
        self._controls = count(1)
        self._thread = threading.Thread(target=self._all, name="faults", daemon=True)

    def start(self) -> Matrix:
        self._thread.start()
        return self

    def row(self, name: str) -> Row:
        """Return a fault's result, once the fault and the next control have ended.

        Raises the error of the injection, or HarnessError if the matrix was stopped.
        """
        return self._rows[name].result()

    def stop(self) -> None:
        """Start no further faults, stop the running harness processes as Ctrl-C does, and undo their
        faults."""
        self._stopped.set()
        for command in self._commands:
            if command.process.poll() is None:
                with suppress(ProcessLookupError):
                    command.interrupt()
        self._thread.join()

    def _remember(self, command: Command) -> None:
        self._commands.append(command)
        if self._stopped.is_set():
            command.interrupt()

    def _all(self) -> None:
        concurrent = [fault for fault in self.faults if fault.scope == "launch"]
        exclusive = [fault for fault in self.faults if fault.scope != "launch"]
        if concurrent:
            self._run_concurrently(concurrent)
        for batch in batched(exclusive, self._alone_between_controls):
            self._settle([(fault, self._inject(fault)) for fault in batch])
        for fault in self.faults:
            if not self._rows[fault.name].done():
                self._rows[fault.name].set_exception(HarnessError("the matrix was stopped before this fault"))

    def _run_concurrently(self, faults: list[Fault]) -> None:
        """Run several faults concurrently. Each control covers the faults that ended before it began."""
        todo: SimpleQueue[Fault | None] = SimpleQueue()
        for number, fault in enumerate(faults):
            if number and number % CONTROL_EVERY == 0:
                todo.put(None)
            todo.put(fault)
        results: SimpleQueue[tuple[Fault, Row | Exception]] = SimpleQueue()

        def work() -> None:
            with suppress(Empty):
                while True:
                    fault = todo.get_nowait()
                    if fault is None:
                        self._settle(_drain(results))
                    else:
                        results.put((fault, self._inject(fault)))

        with ThreadPoolExecutor(self._parallel) as pool:
            for worker in [pool.submit(work) for _ in range(self._parallel)]:
                worker.result()
        if not results.empty():
            self._settle(_drain(results))

    def _inject(self, fault: Fault) -> Row | Exception:
        if self._stopped.is_set():
            return HarnessError("the matrix was stopped before this fault")
        self._progress(f"{fault.name}: {fault.about}")
        try:
            return self._injector.row(fault)
        except Exception as error:
            return error

    def _settle(self, results: list[tuple[Fault, Row | Exception]]) -> None:
        """Run a control after the given faults, and add its verdict to their results."""
        if not results:
            return
        control = self._control.model_copy(update={"name": f"control-{next(self._controls):03}"})
        control_result = self._inject(control)
        is_unproved = self._stopped.is_set() and not isinstance(control_result, Row)
        for fault, result in results:
            row = HarnessError("the matrix was stopped before its control") if is_unproved else result
            if isinstance(row, Exception):
                self._progress(f"✗ {fault.name}: {row}")
                self._rows[fault.name].set_exception(row)
                continue
            row.control = f"{control_result}"
            if isinstance(control_result, Row):
                row.control, row.control_bundle = control_result.got, control_result.bundle
            if row.control != "PASS":
                row.right = False
                row.wrong = "; ".join(
                    filter(None, [row.wrong, f"the control launch after this fault: {row.control}"])
                )
            mark = "✓" if row.right else "✗"
            self._progress(f"{mark} {fault.name}: {row.got} in {row.seconds:.0f} s {row.wrong}")
            with (self._injector.out / "ledger.jsonl").open("a") as ledger:
                ledger.write(row.model_dump_json() + "\n")
            self._rows[fault.name].set_result(row)


def batched(faults: Sequence[Fault], size: int) -> Iterator[Sequence[Fault]]:
    """Yield the faults in order, `size` at a time."""
    return (faults[start : start + size] for start in range(0, len(faults), size))


def _drain(queue: SimpleQueue[tuple[Fault, Row | Exception]]) -> list[tuple[Fault, Row | Exception]]:
    items = []
    with suppress(Empty):
        while True:
            items.append(queue.get_nowait())
    return items
