"""Every fault on one cluster, with healthy launches between them.

Faults of scope `launch` disturb nothing but their own launch: several run at once, and among them controls.
The others run alone, and a control follows each, or every few. A control that is not a PASS makes the faults
before it not right: they were not undone, or were not theirs alone.
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
from harness.faults.command import Command
from harness.faults.fault import Expect, Fault
from harness.faults.inject import Injector
from harness.faults.rows import Row

CONTROL = Fault(
    name="control", about="Nothing is injected.", target="harness", expect=Expect(verdict="PASS", ranks=[])
)


CONTROL_EVERY = 6
"""Faults that run beside others between two controls."""


class Matrix:
    """`start` begins; `row` waits for one fault; `stop` ends what runs, undone."""

    def __init__(
        self,
        injector: Injector,
        faults: Sequence[Fault],
        parallel: int,
        progress: Progress,
        *,
        alone_between_controls: int = 1,
    ) -> None:
        """`alone_between_controls`: faults that run alone, one after the other, before a control follows."""
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
        """When it and the control after it are done. Raises what the injection raised."""
        return self._rows[name].result()

    def stop(self) -> None:
        """No more faults; harnesses that run are ended as by Ctrl-C, and what was injected is undone."""
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
        beside = [fault for fault in self.faults if fault.scope == "launch"]
        alone = [fault for fault in self.faults if fault.scope != "launch"]
        if beside:
            self._beside(beside)
        for few in batched(alone, self._alone_between_controls):
            self._settle([(fault, self._inject(fault)) for fault in few])
        for fault in self.faults:
            if not self._rows[fault.name].done():
                self._rows[fault.name].set_exception(HarnessError("the matrix was stopped before this fault"))

    def _beside(self, faults: list[Fault]) -> None:
        """Several at a time; each control vouches for the faults that were over when it began."""
        todo: SimpleQueue[Fault | None] = SimpleQueue()
        for number, fault in enumerate(faults):
            if number and number % CONTROL_EVERY == 0:
                todo.put(None)
            todo.put(fault)
        over: SimpleQueue[tuple[Fault, Row | Exception]] = SimpleQueue()

        def work() -> None:
            with suppress(Empty):
                while True:
                    fault = todo.get_nowait()
                    if fault is None:
                        self._settle(_taken(over))
                    else:
                        over.put((fault, self._inject(fault)))

        with ThreadPoolExecutor(self._parallel) as pool:
            for worker in [pool.submit(work) for _ in range(self._parallel)]:
                worker.result()
        if not over.empty():
            self._settle(_taken(over))

    def _inject(self, fault: Fault) -> Row | Exception:
        if self._stopped.is_set():
            return HarnessError("the matrix was stopped before this fault")
        self._progress(f"{fault.name}: {fault.about}")
        try:
            return self._injector.row(fault)
        except Exception as error:
            return error

    def _settle(self, results: list[tuple[Fault, Row | Exception]]) -> None:
        """A control after them, and their rows."""
        if not results:
            return
        control = CONTROL.model_copy(update={"name": f"control-{next(self._controls):03}"})
        healthy = self._inject(control)
        for fault, row in results:
            if isinstance(row, Exception):
                self._progress(f"✗ {fault.name}: {row}")
                self._rows[fault.name].set_exception(row)
                continue
            row.control = f"{healthy}"
            if isinstance(healthy, Row):
                row.control, row.control_bundle = healthy.got, healthy.bundle
            if row.control != "PASS":
                row.right = False
                row.wrong = "; ".join(filter(None, [row.wrong, f"the control after it: {row.control}"]))
            mark = "✓" if row.right else "✗"
            self._progress(f"{mark} {fault.name}: {row.got} in {row.seconds:.0f} s {row.wrong}")
            with (self._injector.out / "ledger.jsonl").open("a") as ledger:
                ledger.write(row.model_dump_json() + "\n")
            self._rows[fault.name].set_result(row)


def batched(faults: Sequence[Fault], size: int) -> Iterator[Sequence[Fault]]:
    """In their order, `size` at a time."""
    return (faults[start : start + size] for start in range(0, len(faults), size))


def _taken(queue: SimpleQueue[tuple[Fault, Row | Exception]]) -> list[tuple[Fault, Row | Exception]]:
    taken = []
    with suppress(Empty):
        while True:
            taken.append(queue.get_nowait())
    return taken
